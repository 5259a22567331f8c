#!/usr/bin/env bash
# The Linux host (nvme-rdma) on Capstan's verbs provider, over Soft-RoCE.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link rxe
use_target capstan verbs
use_host linux
run_cases "$@"
