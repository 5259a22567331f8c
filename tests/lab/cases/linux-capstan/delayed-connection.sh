# shellcheck shell=bash
# The network keeps what the host has sent on its old connections, and delivers it when the host has
# given up and gone on over new ones. A Linux host cannot tell the target of it, so this is with the
# subsystem's `end_older_association`.
# shellcheck source=tests/lab/guest/replay.sh
. "$LAB/replay.sh"
target_stop
SUBSYSTEM_OPTIONS='end_older_association = true' target_configuration >"$RUN/target.toml"
target_start
delayed_once() { # delayed_once BLOCK
    connect nr_io_queues=1,keep_alive_tmo=30,reconnect_delay=1,ctrl_loss_tmo=120
    disk 1
    wait_for_io 2
    delayed_write_behind_an_end "$1"
    disconnect
}
rounds delayed_once
target_stop
target_configuration >"$RUN/target.toml"
target_start
