#!/usr/bin/env bash
# The Linux NFS client on the kernel's NFS server over TCP: what ours is compared with.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
# A case is a whole suite.
CASE_SECONDS=900
use_link siw
use_nfs knfsd tcp
run_cases "$@"
