#!/usr/bin/env bash
# Capstan's host with the user-space iwarp provider on the Linux target (nvmet-rdma over siw).
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
use_target nvmet
use_host capstan iwarp
run_cases "$@"
