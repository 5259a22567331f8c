#!/usr/bin/env bash
# In the guest: Linux nvme-tcp host and Linux nvmet-tcp target over lo, with tcpdump running:
# discovery, then one association for each of the four combinations of digests, each with SQ flow
# control disabled, and one with it. Leaves linux-tcp-COMBINATION.pcap, linux-tcp.commands.log and
# linux-tcp.dmesg.log in $OUT.
set -euo pipefail
ip link set lo up
ip link set lo mtu 65536
modprobe -a crc32c libcrc32c
# A write of 4 KiB goes in the capsule, and one of 8 KiB when the target is ready for it (R2T).
TRTYPE=tcp TRADDR=127.0.0.1 INLINE_BYTES=4096
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
modprobe nvme-tcp
# shellcheck source=tests/lab/guest/capture.sh
. "$LAB/capture.sh"
fabric=(-t tcp -a 127.0.0.1 -s 4420 "--hostnqn=$HOSTNQN" "--hostid=$HOSTID")
# No two LBAs alike, so that data in the wrong place is seen.
for lba in $(seq 0 15); do printf '%0512x' "$lba" | tr 0 "$(printf '\\%o' $((97 + lba)))"; done >/tmp/w8k
head -c 4096 /tmp/w8k >/tmp/w4k
exec 3>&1 >"$OUT/linux-tcp.commands.log" 2>&1

start_capture "$OUT/linux-tcp-discovery.pcap" 4420
run nvme discover "${fabric[@]}"
end_capture
association() { # association NAME OPTION…
    local name=$1 disk
    shift
    start_capture "$OUT/linux-tcp-$name.pcap" 4420
    run nvme connect "${fabric[@]}" -n "$SUBSYSTEM" -i 1 -k 30 "$@"
    disk=$(disk_of nvme0 1)
    run nvme write "$disk" -s 0 -c 15 -z 8192 -d /tmp/w8k
    run nvme write "$disk" -s 128 -c 7 -z 4096 -d /tmp/w4k
    run nvme read "$disk" -s 128 -c 7 -z 4096 -d /tmp/r4k
    run cmp /tmp/w4k /tmp/r4k
    run nvme flush "$disk"
    run nvme read "$disk" -s 0x20000 -c 7 -z 4096 -d /tmp/r4k
    run nvme disconnect -n "$SUBSYSTEM"
    end_capture
}
association flow-control
association none --disable-sqflow
association hdgst --disable-sqflow --hdr-digest
association ddgst --disable-sqflow --data-digest
association hdgst-ddgst --disable-sqflow --hdr-digest --data-digest
exec >&3 2>&3
dmesg >"$OUT/linux-tcp.dmesg.log"
