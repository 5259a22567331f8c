#!/usr/bin/env bash
# Capstan's host over NVMe/TCP on the Linux target (nvmet-tcp): RDMA has no part in it.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
use_target nvmet tcp
use_host capstan tcp
run_cases "$@"
