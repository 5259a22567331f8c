# shellcheck shell=bash
# Sourced in the guest by cases: a control group (cgroups(7), version 2) that the target runs in,
# and what a process is told there.
# shellcheck disable=SC2034 # variables of case.sh

GROUP=/sys/fs/cgroup/lab
ANYWHERE=$IN_NETNS
# A command and its arguments that lower a limit of target and host.
LOWERED=''

# Makes the group. The target runs in it from its next start on; the case's own programs do not.
in_group() { # in_group FILE=VALUE…
    local limit
    echo "+memory +pids +cpuset" >/sys/fs/cgroup/cgroup.subtree_control
    target_stop
    AT_THE_END=out_of_group
    mkdir "$GROUP"
    for limit in "$@"; do echo "${limit#*=}" >"$GROUP/${limit%%=*}"; done
    printf '#!/bin/sh\necho $$ >%s/cgroup.procs && exec "$@"\n' "$GROUP" >in-group
    chmod 755 in-group
    IN_NETNS="$ANYWHERE $PWD/in-group $LOWERED"
}

# The target that the next case meets is in no group.
out_of_group() {
    target_stop
    IN_NETNS=$ANYWHERE
    rmdir "$GROUP"
    target_configuration >"$RUN/target.toml"
    target_start
    AT_THE_END=''
}

# A disk of 512 MiB whose memory no group has to account for, with an ext4 at ./medium.
make_medium() {
    volume lab6 4096 512
    mkfs.ext4 -q -E nodiscard /dev/lab6
    mkdir medium
    mount /dev/lab6 medium
    AT_THE_END=out_of_group_and_medium
}

out_of_group_and_medium() {
    out_of_group
    umount medium
    echo 0 >/sys/kernel/config/nullb/lab6/power
    rmdir /sys/kernel/config/nullb/lab6
}

# shellcheck disable=SC2086 # $IN_NETNS is a command and its arguments
target_program() { $IN_NETNS "$LAB/capstan-target" "$1" --config "$RUN/target.toml"; } # target_program COMMAND

# The target does not start, and `check` and `doctor` say the same; each says all of this.
target_refused() { # target_refused EXTENDED_REGULAR_EXPRESSION…
    local command said pattern
    for command in serve check doctor; do
        if said=$(target_program $command 2>&1); then fail "capstan-target $command succeeded: $(tail -c 300 <<<"$said")"; fi
        echo "$said"
        for pattern in "$@"; do matches "capstan-target $command" "$said" "$pattern"; done
    done
}

# `check` takes the configuration; what it says is in the file check.
target_accepted() {
    local said
    said=$(target_program check 2>&1) || fail "capstan-target check: $said"
    tee check <<<"$said"
}

# Runs the target, and writes to NSID 5 at a depth of 128 from both processors; everything is read
# back.
runs_under_load() { # runs_under_load BYTES
    local pid
    target_start
    pid=$(cat "$RUN/target.pid")
    # shellcheck disable=SC2086 # a command and its arguments
    $LOWERED "$LAB/capstan" bench "${PORTAL[@]}" "${AS_HOST[@]}" -n "$SUBSYSTEM" -N 5 --queue-size 129 --rw randwrite --bs 64k --numjobs 2 \
        --iodepth 128 --size "$1" --verify crc32c >bench.out 2>&1 || fail "capstan bench: $(tail -1 bench.out)"
    cat bench.out
    matches "what bench says" "$(grep verify: bench.out)" 'verify: [1-9][0-9]* blocks? checked, 0 wrong'
    target_runs || fail "the target is gone"
    equal "the target's process" "$(cat "$RUN/target.pid")" "$pid"
}
