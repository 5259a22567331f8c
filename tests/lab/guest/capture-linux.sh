#!/usr/bin/env bash
# In the guest: Linux nvme-rdma host and Linux nvmet-rdma target over siw, every command worth a
# golden file, with tcpdump running. Leaves linux-siw.pcap, commands.log and dmesg.log in $OUT.
#
#   capture-linux.sh [NAME [LO_MTU [SIW_MODULE]]]
set -euo pipefail
name=${1:-linux-siw}
lo_mtu=${2:-65536}
SIW=$LAB/${3:-siw.ko}
export SIW
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
ip link set lo mtu "$lo_mtu"
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
modprobe nvme-rdma

# shellcheck source=tests/lab/guest/capture.sh
. "$LAB/capture.sh"
start_capture "$OUT/$name.pcap" 4420

failures=0
# must COMMAND…: runs it, which has to succeed; `fails` expects a failure.
must() {
    local status=0
    printf '\n%s $ %s\n' "$(date +%s.%N)" "$*"
    "$@" || status=$?
    printf '[status %d]\n' "$status"
    if [ $status -ne 0 ]; then
        failures=$((failures + 1))
        echo "capture-linux: FAILED ($status): $*" >&2
    fi
}
fabric=(-t rdma -a 10.9.0.1 -s 4420 "--hostnqn=$HOSTNQN" "--hostid=$HOSTID")
head -c 4096 /dev/zero | tr '\0' 'A' >/tmp/w4k
head -c 65536 /dev/urandom >/tmp/w64k
exec 3>&1 >"$OUT/$name.commands.log"

must nvme discover "${fabric[@]}"
must nvme connect "${fabric[@]}" -n "$SUBSYSTEM" -i 2 -k 5
c=/dev/nvme0
n1=$(disk_of nvme0 1)
n3=$(disk_of nvme0 3)
must nvme id-ctrl $c
must nvme id-ns $c -n 1
must nvme id-ns $c -n 3
must nvme list-ns $c
must nvme ns-descs $c -n 1
run nvme cmdset-ind-id-ns $c -n 1
run nvme nvm-id-ctrl $c
run nvme id-ns $c -n 2
# nvme-cli 2.3 asks for every property, then aborts by itself on a fabrics controller.
run nvme show-regs $c
run nvme supported-log-pages $c
must nvme smart-log $c
must nvme error-log $c -e 4
run nvme effects-log $c
run nvme fw-log $c
run nvme changed-ns-list-log $c
run nvme ana-log $c
for f in 0x02 0x04 0x06 0x07 0x08 0x0a 0x0b 0x0f 0x81 0x82 0x84; do run nvme get-feature $c -n 0 -f $f; done
run nvme set-feature $c -f 0x0f -v 15000
must nvme read "$n1" -s 0 -c 7 -z 4096 -d /tmp/r4k
must nvme write "$n1" -s 8 -c 7 -z 4096 -d /tmp/w4k
must nvme write "$n1" -s 128 -c 127 -z 65536 -d /tmp/w64k
must nvme read "$n1" -s 128 -c 127 -z 65536 -d /tmp/r64k
must cmp /tmp/w64k /tmp/r64k
must nvme read "$n3" -s 0 -c 0 -z 4096 -d /tmp/r4k
must nvme write "$n3" -s 1 -c 0 -z 4096 -d /tmp/w4k
run nvme write "$n1" -s 16 -c 7 -z 4096 -d /tmp/w4k --force-unit-access
must nvme flush "$n1"
must nvme write-zeroes "$n1" -s 8 -c 7
run nvme write-zeroes "$n1" -s 8 -c 7 --deac
must nvme dsm "$n1" -d -s 128,512 -b 64,8 -a 0,0
run nvme compare "$n1" -s 128 -c 7 -z 4096 -d /tmp/w4k
run nvme verify "$n1" -s 0 -c 7
run nvme write-uncor "$n1" -s 0 -c 7
run nvme resv-report "$n1"
# Beyond the end (64 MiB is 20000h LBAs of 512 bytes), an unknown opcode, an invalid namespace, a
# field out of range.
run nvme read "$n1" -s 0x20000 -c 7 -z 4096 -d /tmp/r4k
run nvme write "$n1" -s 0x1fffc -c 7 -z 4096 -d /tmp/w4k
run nvme io-passthru "$n1" --opcode=0x7a --namespace-id=1
run nvme admin-passthru $c --opcode=0xc5
run nvme get-log $c -i 0x7e -l 512
run nvme admin-passthru $c --opcode=0x06 --namespace-id=0 --cdw10=0x55 -l 4096 -r
run nvme get-feature $c -f 0x7f
must nvme error-log $c -e 4
# The block layer's own reads and writes (8 KiB pages from several bios), not pass-through.
must dd if="$n1" of=/dev/null bs=128k count=4 iflag=direct
must dd if=/tmp/w64k of="$n1" bs=8k count=2 seek=64 oflag=direct conv=fsync
must dd if=/tmp/w64k of="$n1" bs=64k count=1 seek=16 oflag=direct
must blkdiscard -o 1048576 -l 65536 "$n1"
must blkdiscard -z -o 2097152 -l 65536 "$n1"
# A namespace appears and goes: asynchronous events.
namespace "$SUBSYSTEM" 5 /dev/labspare 11111111-2222-4333-8444-555555555505 01020304-0506-0708-090a-0b0c0d0e0f05
sleep 2
echo 0 >"$NVMET/subsystems/$SUBSYSTEM/namespaces/5/enable"
sleep 2
# Keep Alive: 5 s of KATO, sent every half of it when idle.
sleep 6
must nvme reset $c
sleep 2
must nvme id-ctrl $c
# Disconnect, which no Linux host sends by itself, passed through on an I/O queue. The type of a
# Fabrics command is where others have the NSID, and the kernel passes through only what names the
# disk it was asked at: one of NSID 8.
namespace "$SUBSYSTEM" 8 /dev/labspare 11111111-2222-4333-8444-555555555508 01020304-0506-0708-090a-0b0c0d0e0f08
n8=$(disk_of nvme0 8)
run nvme io-passthru "$n8" --opcode=0x7f --namespace-id=8
sleep 2
must nvme disconnect -n "$SUBSYSTEM"
sleep 1
# Refused connects: this host is not allowed; there is no such subsystem.
run nvme connect "${fabric[@]}" -n "$RESTRICTED"
run nvme connect "${fabric[@]}" -n nqn.2026-11.org.example:no-such-subsystem
# Header and data digests do not exist on RDMA; queue depth 16 shows hrqsize/hsqsize; no keep-alive.
must nvme connect "${fabric[@]}" -n "$SUBSYSTEM" -i 1 -Q 16 -k 0
sleep 2
must nvme disconnect -n "$SUBSYSTEM"
# A persistent discovery controller.
run nvme discover "${fabric[@]}" --persistent --keep-alive-tmo=5
sleep 1
run nvme disconnect-all
exec >&3
end_capture
dmesg >"$OUT/$name.dmesg.log"
cat "$OUT/$name.tcpdump.log"
echo "capture-linux: $failures unexpected failures"
exit $((failures > 0))
