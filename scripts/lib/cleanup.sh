# shellcheck shell=bash
# Undoing what a script did, in reverse order, on every way out. Sourced after say.sh.

UNDO=()

# undo COMMAND…: to be run at the end, before everything that was given earlier.
undo() { UNDO=("$(printf '%q ' "$@")" "${UNDO[@]}"); }

# Runs what undo was given, once, and keeps the exit status. Traps only the shell that asks.
undo_all() {
    local status=$? command
    trap - EXIT
    # A second ctrl-C must not leave half of it behind.
    trap '' INT TERM HUP
    set +e
    for command in "${UNDO[@]}"; do
        eval "$command"
    done
    exit "$status"
}
trap undo_all EXIT
# A signal ends the script through exit, and so through the trap above, with the status shells use.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# stop PID SECONDS: SIGTERM, then SIGKILL when it is still there. Only for children of this shell.
stop() {
    local pid=$1 tenths=$(($2 * 10))
    kill -TERM "$pid" 2>/dev/null || return 0
    while [ "$tenths" -gt 0 ] && kill -0 "$pid" 2>/dev/null; do
        sleep 0.1
        tenths=$((tenths - 1))
    done
    # Also under `set -e`: it is gone by now, as a rule, and its status is nobody's concern.
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}
