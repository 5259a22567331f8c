#!/usr/bin/env bash
# Capstan's host with the verbs provider on the Linux target (nvmet-rdma), over siw.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw_shared
use_target nvmet
use_host capstan verbs
run_cases "$@"
