#!/usr/bin/env bash
# In the guest (booted with -n): data that no Linux target of the lab's own kernel sends over RDMA,
# read with nvme-cli from QEMU's emulated controller (*-qemu) and from nvmet over its loop
# transport. Leaves data/NAME.hex in $OUT, which are golden files, and NAME.log beside them where a
# command failed: older kernels answer less.
set -euo pipefail
modprobe -a nvme null_blk nvmet nvme-loop configfs
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
NVMET=/sys/kernel/config/nvmet
NQN=nqn.2026-11.org.example:capstan-data
HOSTID=6f0c1c1e-2b5a-4c0e-9d3f-0a1b2c3d4e5f
system="Linux $(uname -r), $(nvme version | sed -n 's/^nvme version \([^ ]*\).*/nvme-cli \1/p')"

for _ in $(seq 100); do [ -b /dev/nvme0n1 ] && break; sleep 0.2; done
mkdir "$NVMET/subsystems/$NQN" "$NVMET/subsystems/$NQN/namespaces/1" "$NVMET/ports/1"
echo 1 >"$NVMET/subsystems/$NQN/attr_allow_any_host"
echo LAB0000000000002 >"$NVMET/subsystems/$NQN/attr_serial"
cd "$NVMET/subsystems/$NQN/namespaces/1"
echo /dev/nullb0 >device_path
echo 11111111-2222-4333-8444-555555555501 >device_uuid
echo 01020304-0506-0708-090a-0b0c0d0e0f01 >device_nguid
if [ -e resv_enable ]; then echo 1 >resv_enable; fi
echo 1 >enable
echo loop >"$NVMET/ports/1/addr_trtype"
ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/"
nvme connect -t loop -n "$NQN" "--hostnqn=nqn.2014-08.org.nvmexpress:uuid:$HOSTID" "--hostid=$HOSTID"
for _ in $(seq 100); do [ -b /dev/nvme1n1 ] && break; sleep 0.2; done
mkdir -p "$OUT/data"
cd "$OUT/data"

# read_data NAME DESCRIPTION PEER COMMAND… : the data of one command as a golden file
read_data() {
    local name=$1 description=$2 peer=$3
    shift 3
    if timeout 60 "$@" >"$name.bin" 2>"$name.log" && [ -s "$name.bin" ]; then
        {
            printf '# data of %s\n# %s\n' "$description" "$*"
            printf '# %d bytes\n# %s; %s\n' "$(stat -c %s "$name.bin")" "$peer" "$system"
            od -An -v -t x1 -w32 "$name.bin" | tr -d ' '
        } >"$name.hex"
        rm "$name.log"
    else
        printf '%s: not answered: %s\n' "$name" "$(tail -n 1 "$name.log")"
    fi
    rm "$name.bin"
}
identify() { # identify SUFFIX DEVICE PEER NAME DESCRIPTION NSID CDW10
    local data_bytes=4096
    read_data "identify-$4$1" "Identify nsid $6 cdw10 $7: $5" "$3" \
        nvme admin-passthru "$2" --opcode=0x06 "--namespace-id=$6" "--cdw10=$7" --data-len=$data_bytes --read --raw-binary
}
log() { # log SUFFIX DEVICE PEER NAME DESCRIPTION BYTES CDW10
    read_data "log-$4$1" "Get Log Page cdw10 $7: $5" "$3" \
        nvme admin-passthru "$2" --opcode=0x02 --namespace-id=0xffffffff "--cdw10=$7" "--data-len=$6" --read --raw-binary
}
every() { # every SUFFIX DEVICE PEER
    identify "$@" csi-namespace-nsid1 "CNS 05h, I/O Command Set specific Identify Namespace, NVM" 1 0x05
    identify "$@" csi-controller "CNS 06h, I/O Command Set specific Identify Controller, NVM" 0 0x06
    identify "$@" cs-independent-ns-nsid1 "CNS 08h, I/O Command Set Independent Identify Namespace" 1 0x08
    identify "$@" command-sets "CNS 1Ch, I/O Command Sets" 0 0xffff001c
    log "$@" supported-pages "LID 00h, Supported Log Pages" 1024 0x00ff0000
}
qemu=(-qemu /dev/nvme0 "QEMU's NVMe controller, through the kernel's driver")
every "${qemu[@]}"
# Linux 6.17's nvmet did not answer this one any more; why was not looked into.
identify "${qemu[@]}" csi-active-ns-list "CNS 07h, active namespaces of the NVM Command Set" 0 0x07
every "" /dev/nvme1 "nvmet over its loop transport"

# Reservations: registered, then held for Write Exclusive.
report() { # report NAME BYTES CDW11 DESCRIPTION
    read_data "$1" "Reservation Report nsid 1 cdw10 $(($2 / 4 - 1)) cdw11 $3: $4" "nvmet over its loop transport" \
        nvme io-passthru /dev/nvme1n1 --opcode=0x0e --namespace-id=1 "--cdw10=$(($2 / 4 - 1))" "--cdw11=$3" \
        "--data-len=$2" --read --raw-binary
}
report reservation-report-none 64 1 "no registrant"
if nvme resv-register /dev/nvme1n1 --namespace-id=1 --nrkey=0x1122334455667788 --rrega=0; then
    report reservation-report-registered 128 1 "one registrant, extended"
    nvme resv-acquire /dev/nvme1n1 --namespace-id=1 --crkey=0x1122334455667788 --rtype=1 --racqa=0
    report reservation-report-held 128 1 "one registrant, which holds the namespace, extended"
fi
log "" /dev/nvme1 "nvmet over its loop transport" reservation-notification "LID 80h, Reservation Notification" 64 0x000f0080
ls
