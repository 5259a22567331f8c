#!/usr/bin/env bash
# The stock Linux host (nvme-tcp) on Capstan's NVMe/TCP: neither side uses an RDMA module.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
LISTENER_OPTIONS='transports = ["tcp"]'
use_target capstan iwarp
use_host linux tcp
run_cases "$@"
