# shellcheck shell=bash
# The target goes while capstan writes, and comes back: capstan reconnects by itself, and everything
# that was acknowledged is there. Over siw nvmet-rdma never ends a queue of which it has RDMA READs
# outstanding (README.md): in a capsule the data needs none.
bs=16k
case $TARGET-$LINK in nvmet-siw*) bs=4k ;; esac
load load 8 --bs $bs
target_kill
sleep 2
running load || fail "the load ended while its target was gone: $(tail -1 load.out)"
target_start
within "$GOES_ON_WITHIN" "I/O goes on" goes_on load /dev/lab1
finish_load load
