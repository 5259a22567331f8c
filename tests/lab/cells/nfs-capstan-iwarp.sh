#!/usr/bin/env bash
# The Linux NFS client (RPC-over-RDMA over siw) on Capstan's user-space iwarp provider: the server
# uses no RDMA device.
# By default: programs suite-4.2
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
# A case is a whole suite.
CASE_SECONDS=900
use_link siw
use_nfs capstan-nfs rdma iwarp
run_cases "$@"
