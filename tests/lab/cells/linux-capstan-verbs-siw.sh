#!/usr/bin/env bash
# The Linux host (nvme-rdma) on Capstan's verbs provider, over siw.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw_shared
use_target capstan verbs
use_host linux
run_cases "$@"
