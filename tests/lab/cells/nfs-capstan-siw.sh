#!/usr/bin/env bash
# The Linux NFS client (RPC-over-RDMA) on Capstan's verbs provider, over siw.
# By default: suite-3
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
# A case is a whole suite.
CASE_SECONDS=900
use_link siw_shared
use_nfs capstan-nfs rdma verbs
run_cases "$@"
