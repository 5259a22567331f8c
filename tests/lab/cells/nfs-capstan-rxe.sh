#!/usr/bin/env bash
# The Linux NFS client (RPC-over-RDMA) on Capstan's verbs provider, over Soft-RoCE.
# By default: suite-4.2
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
# A case is a whole suite.
CASE_SECONDS=900
use_link rxe
use_nfs capstan-nfs rdma verbs
run_cases "$@"
