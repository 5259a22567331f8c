# shellcheck shell=bash
# Fifty times: connect, disconnect; every tenth time data is read back. The target uses no more
# memory and no more files. Two at once, so that one connects while the other one's controller goes.
# Queues of 16 entries: the host registers memory for each, which would be most of the time.
options="transport=$HOST_TRANSPORT,traddr=$TARGET_ADDRESS,trsvcid=4420,host_traddr=$HOST_ADDRESS,nr_io_queues=1,queue_size=16"
options+=",duplicate_connect,hostnqn=$HOSTNQN,hostid=$HOSTID,nqn=$SUBSYSTEM"

# Without starting a program, of which each takes as long as a connect here.
round() { # round [COMMAND…]: connects, runs the command, disconnects
    local reply id now
    exec 3<>/dev/nvme-fabrics
    printf '%s' "$options" >&3
    read -r reply <&3
    exec 3>&-
    [[ $reply =~ instance=([0-9]+) ]] || fail "the kernel says '$reply', expected an instance"
    CONTROLLER=nvme${BASH_REMATCH[1]}
    read -r id <"/sys/class/nvme/$CONTROLLER/cntlid"
    "$@"
    echo 1 >"/sys/class/nvme/$CONTROLLER/delete_controller"
    # The other loop may have a controller of that name by now.
    if read -r now 2>/dev/null <"/sys/class/nvme/$CONTROLLER/cntlid" && [ "$now" = "$id" ]; then fail "$CONTROLLER is still there"; fi
}

rounds() { # rounds COUNT
    local back=back.$BASHPID
    for ((i = 1; i <= $1; i++)); do
        if ((i % 10)); then round true; else round read_data "$back"; fi
    done
}

write_data() {
    disk 3
    dd if=data of="$DISK" bs=64k oflag=direct status=none
}

read_data() { # read_data FILE
    disk 3
    dd if="$DISK" of="$1" bs=64k count=1 iflag=direct status=none
    same "the first blocks" "$1" data
}

random data 65536
round write_data
target_holds >before
begin odd rounds 25
begin even rounds 25
finish odd
finish even
target_holds >after
echo "memory (KiB) and files: $(cat before), then $(cat after)"
read -r kib files <before
read -r kib_after files_after <after
[ "$kib_after" -le $((kib + 4096)) ] || fail "the target's memory grew from $kib to $kib_after KiB in 50 rounds"
equal "files the target has open" "$files_after" "$files"
