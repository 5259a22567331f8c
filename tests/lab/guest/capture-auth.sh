#!/usr/bin/env bash
# In the guest: Linux host and target over siw. The target wants its host to authenticate itself
# (DH-HMAC-CHAP), and the host registers, acquires and releases a reservation, which this kernel's
# target refuses. Leaves NAME.pcap and NAME.commands.log in $OUT.
#
#   capture-auth.sh [NAME]
set -euo pipefail
name=${1:-linux-auth}
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
modprobe -a nvme-rdma configfs
# shellcheck source=tests/lab/guest/nvmet.sh
. "$LAB/nvmet.sh"
# The 32 bytes from 00 to 1f, and their CRC.
KEY=DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:
mkdir "$NVMET/hosts/$HOSTNQN"
echo "$KEY" >"$NVMET/hosts/$HOSTNQN/dhchap_key"
echo 'hmac(sha256)' >"$NVMET/hosts/$HOSTNQN/dhchap_hash"
echo 0 >"$NVMET/subsystems/$SUBSYSTEM/attr_allow_any_host"
ln -s "$NVMET/hosts/$HOSTNQN" "$NVMET/subsystems/$SUBSYSTEM/allowed_hosts/"

# shellcheck source=tests/lab/guest/capture.sh
. "$LAB/capture.sh"
start_capture "$OUT/$name.pcap" 4420
exec 3>&1 >"$OUT/$name.commands.log" 2>&1
run nvme connect -t rdma -a 10.9.0.1 -s 4420 "--hostnqn=$HOSTNQN" "--hostid=$HOSTID" -n "$SUBSYSTEM" -i 1 "--dhchap-secret=$KEY"
n=$(disk_of nvme0 1)
run nvme resv-register "$n" --nrkey=0x0123456789abcdef --rrega=0 --cptpl=2
run nvme resv-acquire "$n" --crkey=0x0123456789abcdef --rtype=3 --racqa=0
run nvme resv-acquire "$n" --crkey=0x0123456789abcdef --prkey=0xfedcba9876543210 --rtype=3 --racqa=1
run nvme resv-release "$n" --crkey=0x0123456789abcdef --rtype=3 --rrela=0
run nvme disconnect -n "$SUBSYSTEM"
exec >&3 2>&3
end_capture
dmesg >"$OUT/$name.dmesg.log"
