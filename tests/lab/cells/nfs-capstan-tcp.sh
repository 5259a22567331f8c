#!/usr/bin/env bash
# The Linux NFS client on Capstan over TCP: neither side uses an RDMA module.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
# A case is a whole suite.
CASE_SECONDS=900
use_link siw
use_nfs capstan-nfs tcp iwarp
run_cases "$@"
