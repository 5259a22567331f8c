# shellcheck shell=bash
# The network keeps what capstan has sent on its old connections, and delivers it after it has
# connected again: before it issues the write again, capstan has the target reset its old
# controller.
# shellcheck source=tests/lab/guest/replay.sh
. "$LAB/replay.sh"
rounds delayed_write_behind_a_reset
