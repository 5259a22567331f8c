# shellcheck shell=bash
# Another medium comes under the NQN and NSID of one to which writes wait: the host sends them as
# soon as it has connected again, before it looks at what is there. None of them lands on the other
# medium; on the one that they are for, all of them do.
BLOCKS=16
export STATE_DIRECTORY=$PWD/state
# shellcheck disable=SC2034 # of case.sh
AT_THE_END=as_before
as_before() {
    unset STATE_DIRECTORY
    target_configuration >"$RUN/target.toml"
    target_stop
    target_start
}

serve() { # serve MEDIUM: under NSID 5
    SUBSYSTEM_OPTIONS=$(printf '[[subsystem.namespace]]\nnsid = 5\npath = "%s"' "$PWD/$1") target_configuration >"$RUN/target.toml"
    target_start
}

write_block() { dd if=data of="$DISK" bs=4k count=1 skip="$1" seek="$1" oflag=direct conv=notrunc status=none; }

# Writes to each of the first blocks, from when the target is gone on, until MEDIUM is served.
writes_meet() { # writes_meet MEDIUM
    local block
    random data $((BLOCKS * 4096))
    target_stop
    within 15 "the host sees that the target is gone" is_not_live
    for block in $(seq 0 $((BLOCKS - 1))); do begin "write-$block" write_block "$block"; done
    serve "$1"
    within 30 "the host is connected again" is_live
}

mkdir state
truncate -s 64M first other
target_stop
# Hosts have seen both.
serve other
target_stop
serve first
connect nr_io_queues=2,keep_alive_tmo=5,reconnect_delay=1,ctrl_loss_tmo=120
disk 5

writes_meet first
for block in $(seq 0 $((BLOCKS - 1))); do finish "write-$block"; done
cp data expected
truncate -s 64M expected
same "what waited, on the medium that it is for" first expected

writes_meet other
for block in $(seq 0 $((BLOCKS - 1))); do
    if wait "$(cat "write-$block.pid")"; then fail "write $block was answered well by another medium"; fi
done
within 10 "the host refuses the other medium" no_disk 5
cmp -n $((64 << 20)) other /dev/zero || fail "what waited for the first medium is on the other one"
same "the first medium" first expected
disconnect
