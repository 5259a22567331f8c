#!/usr/bin/env bash
# In the guest: the conformance suite on the verbs provider.
#
#   tests/lab/boot.sh conformance-verbs.sh rxe|siw PATH_OF_CONFORMANCE_VERBS [LIBTEST_OPTIONS…]
set -euo pipefail
link=$1 program=$2
shift 2
# Only siw looks at it: see setup.sh for what is wrong with the stock one.
export SIW=$LAB/siw-mended.ko
# shellcheck source=/dev/null
. "$LAB/rdma-$link.sh"
ulimit -l unlimited
trap 'dmesg | tail -40 >"$OUT/dmesg.txt"' EXIT
"$program" 10.9.0.1 fd09::1 -- "$@" 2>&1
rdma resource show
if dmesg | grep -E 'WARNING|BUG:|Oops|refcount'; then
    echo "the kernel complained"
    exit 1
fi
echo "case passed"
