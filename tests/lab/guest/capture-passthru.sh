#!/usr/bin/env bash
# In the guest (booted with -n): Linux host and target over siw as in capture-linux.sh, but the
# subsystem passes commands through to QEMU's emulated NVMe controller, which answers what nvmet's
# own block back end refuses: Compare, Verify, Copy, LBA out of range, Write Uncorrectable, and so
# on. Leaves NAME.pcap and NAME.commands.log in $OUT.
#
#   capture-passthru.sh [NAME]
set -euo pipefail
name=${1:-linux-passthru}
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
modprobe -a nvme nvme-rdma configfs
for _ in $(seq 50); do [ -b /dev/nvme0n1 ] && break; sleep 0.2; done
[ -b /dev/nvme0n1 ] || { echo "no emulated NVMe disk: boot with -n" >&2; exit 1; }
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
PASSTHRU=nqn.2026-11.org.example:capstan-passthru
mkdir "$NVMET/subsystems/$PASSTHRU"
echo 1 >"$NVMET/subsystems/$PASSTHRU/attr_allow_any_host"
echo /dev/nvme0 >"$NVMET/subsystems/$PASSTHRU/passthru/device_path"
echo 1 >"$NVMET/subsystems/$PASSTHRU/passthru/enable"
ln -s "$NVMET/subsystems/$PASSTHRU" "$NVMET/ports/1/subsystems/"

# shellcheck source=tests/lab/guest/capture.sh
. "$LAB/capture.sh"
start_capture "$OUT/$name.pcap" 4420
head -c 4096 /dev/zero | tr '\0' 'A' >/tmp/a4k
head -c 4096 /dev/zero | tr '\0' 'B' >/tmp/b4k
exec 3>&1 >"$OUT/$name.commands.log" 2>&1
run nvme connect -t rdma -a 10.9.0.1 -s 4420 "--hostnqn=$HOSTNQN" "--hostid=$HOSTID" -n "$PASSTHRU" -i 1
c=/dev/nvme1
n=$(disk_of nvme1 1)
run nvme list -v
run nvme id-ctrl $c
run nvme id-ns $c -n 1
run nvme ns-descs $c -n 1
run nvme cmdset-ind-id-ns $c -n 1
run nvme nvm-id-ctrl $c
run nvme supported-log-pages $c
run nvme smart-log $c
run nvme effects-log $c
run nvme error-log $c -e 4
for f in 0x01 0x02 0x04 0x05 0x06 0x07 0x0a 0x0b; do run nvme get-feature $c -f $f -n 0; done
run nvme write "$n" -s 0 -c 7 -z 4096 -d /tmp/a4k
run nvme compare "$n" -s 0 -c 7 -z 4096 -d /tmp/a4k
run nvme compare "$n" -s 0 -c 7 -z 4096 -d /tmp/b4k
run nvme verify "$n" -s 0 -c 7
run nvme copy "$n" --sdlba=64 --slbs=0,8 --blocks=7,7 --format=0
run nvme read "$n" -s 64 -c 7 -z 4096 -d /tmp/r4k
run nvme write-zeroes "$n" -s 0 -c 7
run nvme dsm "$n" -d -s 0 -b 8 -a 0
run nvme flush "$n"
run nvme write-uncor "$n" -s 100 -c 0
run nvme read "$n" -s 0x40000000 -c 7 -z 4096 -d /tmp/r4k
run nvme write "$n" -s 0x40000000 -c 7 -z 4096 -d /tmp/a4k
run nvme read "$n" -s 0x1ffff -c 7 -z 4096 -d /tmp/r4k
run nvme write-zeroes "$n" -s 0x40000000 -c 7
run nvme verify "$n" -s 0x40000000 -c 7
run nvme io-passthru "$n" --opcode=0x7a --namespace-id=1
run nvme io-passthru "$n" --opcode=0x02 --namespace-id=9 --data-len=4096 --read --cdw12=7
run nvme admin-passthru $c --opcode=0x08 --cdw10=0xffff0001
run nvme get-log $c -i 0x7e -l 512
run nvme resv-report "$n"
run nvme disconnect -n "$PASSTHRU"
exec >&3 2>&3
end_capture
dmesg >"$OUT/$name.dmesg.log"
