# shellcheck shell=bash
# Sourced in the guest: capstan-target, as an operator runs it: a configuration file, SIGHUP after a
# change of it, SIGTERM to end it.

TARGET_ADDRESS=$CAPSTAN_ADDRESS
TARGET_LOG=$RUN/target.log

# The configuration, with the lines of $TARGET_OPTIONS in [target], of $LISTENER_OPTIONS in
# [[listener]] and of $SUBSYSTEM_OPTIONS in the first [[subsystem]]; with an argument, with NSID 5
# as well, which is $DISK_5 or /dev/lab5, with the lines of $NAMESPACE_5_OPTIONS.
target_configuration() {
    cat <<TOML
[target]
reactors = 2
memory_budget = "128MiB"
${TARGET_OPTIONS:-}

[[listener]]
address = "$TARGET_ADDRESS"
$(case ${LISTENER_OPTIONS:-} in *'["tcp"]'*) ;; *) echo "provider = \"$TARGET_PROVIDER\"" ;; esac)
${LISTENER_OPTIONS:-}

[[subsystem]]
nqn = "$SUBSYSTEM"
serial = "$SERIAL"
model = "$MODEL"
allow_any_host = true
${SUBSYSTEM_OPTIONS:-}
$(target_namespace 1 /dev/lab1 "$UUID_1" "$NGUID_1")
$(target_namespace 3 /dev/lab3 "$UUID_3" "$NGUID_3")
$([ $# -eq 0 ] || target_namespace 5 "${DISK_5:-/dev/lab5}" "$UUID_5" "$NGUID_5")
${NAMESPACE_5_OPTIONS:-}

[[subsystem]]
nqn = "$SUBSYSTEM_A"
allowed_hosts = ["$HOSTNQN_A"]
$(target_namespace 1 /dev/laba "$UUID_A" "$NGUID_A")

[[subsystem]]
nqn = "$SUBSYSTEM_B"
allowed_hosts = ["$HOSTNQN_B"]
$(target_namespace 1 /dev/labb "$UUID_B" "$NGUID_B")
TOML
}

target_namespace() { # target_namespace NSID PATH UUID NGUID
    printf '\n[[subsystem.namespace]]\nnsid = %s\npath = "%s"\nuuid = "%s"\nnguid = "%s"\n' "$1" "$2" "$3" "${4//-/}"
}

target_set_up() {
    target_configuration >"$RUN/target.toml"
    : >"$TARGET_LOG"
}

target_start() {
    local from try
    from=$(wc -l <"$TARGET_LOG")
    # shellcheck disable=SC2086 # a command and its arguments, or nothing
    setsid $IN_NETNS "$LAB/capstan-target" serve --config "$RUN/target.toml" >>"$TARGET_LOG" 2>&1 </dev/null &
    echo $! >"$RUN/target.pid"
    for try in $(seq 200); do
        tail -n "+$((from + 1))" "$TARGET_LOG" | grep -qE 'listening (at|for NFS at) ' && return 0
        target_runs || break
        sleep 0.1
    done
    echo "capstan-target does not listen after $((try / 10)) s: $(tail -1 "$TARGET_LOG")" >&2
    return 1
}

target_runs() { kill -0 "$(cat "$RUN/target.pid")" 2>/dev/null; }

# Asks it to end, as an operator does, and waits for it.
target_stop() {
    local try
    kill -TERM "$(cat "$RUN/target.pid")" 2>/dev/null || return 0
    for try in $(seq 100); do
        target_runs || return 0
        sleep 0.1
    done
    echo "capstan-target has not ended $((try / 10)) s after SIGTERM" >&2
    target_kill
    return 1
}

# Ends it as a power cut does.
target_kill() {
    local try
    kill -KILL "$(cat "$RUN/target.pid")" 2>/dev/null || return 0
    for try in $(seq 50); do
        target_runs || return 0
        sleep 0.1
    done
    return 1
}

target_reload() {
    local before
    before=$(grep -c 'reloaded' "$TARGET_LOG" || true)
    kill -HUP "$(cat "$RUN/target.pid")"
    for _ in $(seq 100); do
        [ "$(grep -c 'reloaded' "$TARGET_LOG" || true)" -gt "$before" ] && return 0
        sleep 0.1
    done
    echo "capstan-target has not reloaded its configuration after 10 s: $(tail -1 "$TARGET_LOG")" >&2
    return 1
}

target_add_namespace() {
    target_configuration with-5 >"$RUN/target.toml"
    target_reload
}

target_remove_namespace() {
    target_configuration >"$RUN/target.toml"
    target_reload
}

# Resident memory in KiB, and files that are open.
target_holds() {
    local pid
    pid=$(cat "$RUN/target.pid")
    echo "$(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status") $(find "/proc/$pid/fd" -type l | wc -l)"
}

# Its doctor, with its configuration, while it runs.
target_doctor() {
    # shellcheck disable=SC2086 # a command and its arguments, or nothing
    $IN_NETNS "$LAB/capstan-target" doctor --config "$RUN/target.toml" >target ||
        fail "capstan-target doctor: $(grep '^error' target || tail -1 target)"
    cat target
    matches "the configuration" "$(diagnosis target configuration)" '^(ok|warning): .'
    local listener
    listener=$(diagnosis target "listen $TARGET_ADDRESS:4420")
    case ${LISTENER_OPTIONS:-} in
        *'["tcp"]'*) matches "the listener" "$listener" "NVMe/TCP; " ;;
        *) matches "the listener" "$listener" ": $TARGET_PROVIDER: .*; NVMe/TCP at the (same|next) port" ;;
    esac
    [ "$TARGET_PROVIDER" = iwarp ] || matches "limits of devices" "$(grep ' limits ' target)" '^(ok|warning) .* QPs of [0-9]+ WRs'
}

target_log_mark() { wc -l <"$TARGET_LOG" >"$RUN/target.log.mark"; }
target_log_since() { tail -n "+$(($(cat "$RUN/target.log.mark") + 1))" "$TARGET_LOG"; }

# Whether its log has N lines (1) with this since the case began.
target_said() { # target_said EXTENDED_REGULAR_EXPRESSION [N]
    [ "$(target_log_since | grep -cE -- "$1")" -ge "${2:-1}" ]
}

# Says what is wrong with the target on stdout, and fails.
target_is_well() {
    local line
    if ! target_runs; then
        echo "capstan-target is gone: $(tail -1 "$TARGET_LOG")"
        return 1
    fi
    line=$(target_log_since | grep -m1 -E ' ERROR |panicked') || return 0
    echo "capstan-target says: $line"
    return 1
}
