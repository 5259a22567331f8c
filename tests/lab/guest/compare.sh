#!/usr/bin/env bash
# In the guest: capstan-target and Linux nvmet in turn, with the Linux host and fio: over Soft-RoCE
# (verbs), or by NVMe/TCP over the loopback interface. Both export a null namespace: nvmet a
# null_blk that answers at once and touches no data, without a queue of its own.
#
#   scripts/bench.sh soft-roce          tests/lab/boot.sh -p -f CAPSTAN_TARGET compare.sh rdma
#   scripts/bench.sh nvmet-tcp          the same with tcp in place of rdma
#   scripts/bench.sh soft-roce-counted  soft-roce with -i in place of -p, and 1 5 1 0.3 at the end
#
# Arguments: rdma or tcp; number of the round, which says which target begins; turns of each;
# seconds of a turn; seconds before that in which commands end that were in progress when fio was
# stopped.
#
# Each job runs on both at once, but one of them is always stopped. Writes $OUT/samples, a line for
# each turn of both: JOB CAPSTAN_IOPS NVMET_IOPS.
set -euo pipefail
TRANSPORT=$1
ROUND=${2:-1}
TURNS=${3:-12}
TURN_SECONDS=${4:-0.5}
SETTLE_SECONDS=${5:-0.1}

case $TRANSPORT in
    rdma)
        # shellcheck source=tests/lab/guest/rdma-rxe.sh
        . "$LAB/rdma-rxe.sh"
        ADDRESS=10.9.0.1
        listener='provider = "verbs"'
        ;;
    tcp)
        ip link set lo up
        ADDRESS=127.0.0.1
        listener='transports = ["tcp"]'
        # The sockets of both targets and of the host have the same.
        echo cubic >/proc/sys/net/ipv4/tcp_congestion_control
        ;;
esac
modprobe -a "nvme-$TRANSPORT" nvmet "nvmet-$TRANSPORT" configfs
modprobe null_blk nr_devices=0
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
ulimit -l unlimited

NQN=nqn.2026-11.org.example
NVMET=/sys/kernel/config/nvmet
NULLB=/sys/kernel/config/nullb/compare

set_all() { # set_all FOLDER NAME=VALUE…: attributes of a configfs item
    local folder=$1 pair
    shift
    for pair in "$@"; do echo "${pair#*=}" >"$folder/${pair%%=*}"; done
}

# queue_mode 0 is bios without a block queue, irqmode 0 completes where the command was submitted.
mkdir "$NULLB"
set_all "$NULLB" size=1024 blocksize=4096 memory_backed=0 queue_mode=0 irqmode=0 power=1
mkdir "$NVMET/subsystems/$NQN:nvmet" "$NVMET/subsystems/$NQN:nvmet/namespaces/1" "$NVMET/ports/1"
set_all "$NVMET/subsystems/$NQN:nvmet" attr_allow_any_host=1
set_all "$NVMET/subsystems/$NQN:nvmet/namespaces/1" device_path=/dev/compare enable=1
set_all "$NVMET/ports/1" addr_trtype="$TRANSPORT" addr_adrfam=ipv4 addr_traddr="$ADDRESS" addr_trsvcid=4420
ln -s "$NVMET/subsystems/$NQN:nvmet" "$NVMET/ports/1/subsystems/"

# One core for the target and one for the load, where there are two. The target of Linux has no core
# of its own: its work goes where the scheduler puts it, and before other work (ib-comp-wq is a
# high-priority work queue, so its threads have nice -20). The reactor is before other work on its
# core, too: a drop-in of CPUSchedulingPolicy=fifo. A spin is longer than a round trip, which takes
# more than half a millisecond here.
load_core=$(($(nproc) - 1))
before_others=(chrt -f 1)
# Of one core it would leave nothing to the load while it spins.
[ $load_core -gt 0 ] || before_others=()
cat >"$OUT/target.toml" <<TOML
[target]
reactors = [0]
spin = "2ms"

[[listener]]
address = "$ADDRESS"
port = 4421
$listener

[[subsystem]]
nqn = "$NQN:capstan"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
null = "1GiB"
lba = 4096
TOML
"${before_others[@]}" "$LAB/capstan-target" serve --config "$OUT/target.toml" >"$OUT/target.log" 2>&1 &
trap 'kill %1; wait %1; cat "$OUT/target.log"' EXIT
for _ in $(seq 100); do
    grep -q 'listening at' "$OUT/target.log" && break
    kill -0 %1
    sleep 0.2
done

connect() { # connect SUBSYSTEM PORT: sets DISK
    local nqn=$NQN:$1
    exec 3<>/dev/nvme-fabrics
    printf '%s' "transport=$TRANSPORT,traddr=$ADDRESS,trsvcid=$2,nqn=$nqn,nr_io_queues=2,queue_size=64" >&3
    cat <&3
    exec 3>&-
    for _ in $(seq 100); do
        DISK=$(grep -lx "$nqn" /sys/class/nvme-subsystem/*/subsysnqn | head -1)
        DISK=/dev/$(basename "$(find "$(dirname "$DISK")/" -maxdepth 1 -name 'nvme*n1' | head -1)")
        [ -b "$DISK" ] && return 0
        sleep 0.2
    done
    echo "no disk of $nqn" >&2
    return 1
}

run() { # run TARGET SECONDS: lets its fio go on, sets DONE to the commands a second of its disk
    local completed before=$EPOCHREALTIME after words
    kill -CONT "${fio[$1]}"
    sleep "$SETTLE_SECONDS"
    read -ra words <"/sys/block/${disk[$1]#/dev/}/stat"
    before=$EPOCHREALTIME completed=$((words[0] + words[4]))
    sleep "$2"
    read -ra words <"/sys/block/${disk[$1]#/dev/}/stat"
    after=$EPOCHREALTIME completed=$((words[0] + words[4] - completed))
    kill -STOP "${fio[$1]}"
    DONE=$((completed * 1000000 / (${after/./} - ${before/./})))
}

measure() { # measure JOB FIO_OPTION…: both targets in turn, so that both find the same machine
    local job=$1 target turn
    local -A fio iops
    shift
    for target in "${order[@]}"; do
        taskset -c "$load_core" fio --name=job --filename="${disk[$target]}" --direct=1 --ioengine=libaio \
            --thread --time_based --runtime=10m "$@" \
            >"$OUT/fio-$target" 2>&1 &
        fio[$target]=$!
        # Both begin once, and end what they have begun, before the first turn.
        run "$target" 1
    done
    for ((turn = 0; turn < TURNS; turn++)); do
        for target in "${order[@]}"; do
            run "$target" "$TURN_SECONDS"
            iops[$target]=$DONE
        done
        echo "$job ${iops[capstan]} ${iops[nvmet]}" >>"$OUT/samples"
    done
    tail -1 "$OUT/samples"
    for target in "${order[@]}"; do
        kill -INT "${fio[$target]}"
        kill -CONT "${fio[$target]}"
        wait "${fio[$target]}" || true
        if ! [ "${iops[$target]}" -gt 0 ]; then
            cat "$OUT/fio-$target" >&2
            echo "$job on $target did nothing in its last turn" >&2
            return 1
        fi
    done
}

declare -A disk
connect nvmet 4420
disk[nvmet]=$DISK
connect capstan 4421
disk[capstan]=$DISK

: >"$OUT/samples"
order=(nvmet capstan)
[ $((ROUND % 2)) = 1 ] || order=(capstan nvmet)
measure randread-4k-qd1 --rw=randread --bs=4k --iodepth=1
measure randread-4k-qd32 --rw=randread --bs=4k --iodepth=32
measure randwrite-4k-qd32 --rw=randwrite --bs=4k --iodepth=32
measure read-128k-qd8 --rw=read --bs=128k --iodepth=8
measure write-128k-qd8 --rw=write --bs=128k --iodepth=8
for controller in /sys/class/nvme/nvme*/delete_controller; do echo 1 >"$controller"; done
