#!/usr/bin/env bash
# The Linux host (nvme-rdma over siw) on Capstan's user-space iwarp provider: the target uses no
# RDMA device.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
use_target capstan iwarp
use_host linux
run_cases "$@"
