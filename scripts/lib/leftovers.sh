# shellcheck shell=bash
# Proof that a script leaves nothing behind: processes, mounts, loop devices and files that have to
# do with its folder. Sourced after say.sh.

# watch_leftovers FOLDER: what is looked for later.
watch_leftovers() {
    WATCHED=$1
    WATCHED_DISKS=()
    CAPSTAN_BEFORE=$(capstan_processes)
}

# watch_disk DEVICE: a loop device of ours. The number of the disk in it says later whether the
# device serves somebody else by then: the machine may have other users of loop devices.
watch_disk() { WATCHED_DISKS+=("$1 $(disk_number "$1")"); }
disk_number() { cat "/sys/block/${1##*/}/diskseq" 2>/dev/null || true; }

# Processes whose program was built here, by id; also those of root.
capstan_processes() {
    # Processes that end while find looks are errors to it.
    { as_root find /proc -maxdepth 2 -path '/proc/[0-9]*/exe' -lname "$PWD/build/*/capstan*" \
        -printf '%h\n' 2>/dev/null || true; } | sed 's|/proc/||' | sort
}

# Dies when something is there that was not before.
no_leftovers() {
    local left='' disk device processes
    [ ! -e "$WATCHED" ] || left+="the folder $WATCHED; "
    if grep -qF " $WATCHED" /proc/self/mountinfo; then
        left+="mounts below $WATCHED; "
    fi
    for disk in "${WATCHED_DISKS[@]}"; do
        device=${disk%% *}
        if [ -e "/sys/block/${device##*/}/loop" ] && [ "$device $(disk_number "$device")" = "$disk" ]; then
            left+="the loop device $device; "
        fi
    done
    processes=$(comm -13 <(printf '%s\n' "$CAPSTAN_BEFORE") <(capstan_processes))
    [ -z "$processes" ] || left+="processes ${processes//$'\n'/ }; "
    [ -z "$left" ] || die "left behind: $left"
    note "nothing left behind: no process, mount, loop device or file"
}
