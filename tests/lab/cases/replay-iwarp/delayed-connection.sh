# shellcheck shell=bash
# The network keeps what capstan has sent on its old connections, and delivers it after it has connected again: before it issues the
# write again, capstan has the target reset its old controller, or waits until none of it can come any more.
# shellcheck source=tests/lab/guest/replay.sh
. "$LAB/replay.sh"
delayed_once() { # delayed_once BLOCK
    attach_nsid 1 --io-timeout 2 -k 10 -c 1 -l 120
    delayed_write "$1"
    detach
}
rounds delayed_once
