#!/usr/bin/env bash
# The Linux NFS client on Capstan over TCP: neither side uses an RDMA module.
# By default: killed-under-load local-locks suite-4.1
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
# A case is a whole suite.
CASE_SECONDS=900
use_link siw
use_nfs capstan-nfs tcp iwarp
run_cases "$@"
