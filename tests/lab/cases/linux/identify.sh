# shellcheck shell=bash
# Identify Controller, Identify Namespace and the namespace identification descriptors, as nvme
# prints them.
connect nr_io_queues=1
c=/dev/$CONTROLLER
nvme id-ctrl "$c" >ctrl
values ctrl <<EXPECTED
sn:        $SERIAL
mn:        $MODEL
cntrltype: 1
sqes:      0x66
cqes:      0x44
nn:        1024
mdts:      8
kas:       10
subnqn:    $SUBSYSTEM
iorcsz:    1
icdoff:    0
ofcs:      1
fuses:     0
EXPECTED
# Data in the capsule at an offset (SGLS bit 20); and keyed SGLs (bit 2), or those of the transport
# (bit 21).
sgls=$(value sgls ctrl)
case $HOST_TRANSPORT in
    tcp) equal "SGLS bits 0, 2, 20 and 21" $((sgls & 0x300005)) $((0x300001)) ;;
    *) equal "SGLS bits 0, 2, 20 and 21" $((sgls & 0x300005)) $((0x100005)) ;;
esac
[ "$(value ioccsz ctrl)" -ge 260 ] || fail "ioccsz is $(value ioccsz ctrl), expected room for 4096 bytes of data"

nvme list-ns "$c" >list
equal "namespaces" "$(sed 's/.*://' list | tr '\n' ' ')" "0x1 0x3 "
lbads=9
for nsid in 1 3; do
    nvme id-ns "$c" -n $nsid >ns
    lbas=LBAS_$nsid nguid=NGUID_$nsid uuid=UUID_$nsid
    values ns <<EXPECTED
nsze:   $(printf '%#x' "${!lbas}")
ncap:   $(printf '%#x' "${!lbas}")
nuse:   $(printf '%#x' "${!lbas}")
nlbaf:  0
flbas:  0
nmic:   0x1
nguid:  ${!nguid//-/}
lbaf 0: ms:0   lbads:$lbads rp:0 (in use)
EXPECTED
    nvme ns-descs "$c" -n $nsid >descs
    values descs <<EXPECTED
nguid: ${!nguid//-/}
uuid:  ${!uuid}
csi:   0
EXPECTED
    # The block device has the same size and the same identity.
    disk $nsid
    sys=/sys/block/${DISK#/dev/}
    equal "bytes of $DISK" $(($(cat "$sys/size") * 512)) $((${!lbas} << lbads))
    equal "logical block size of $DISK" "$(cat "$sys/queue/logical_block_size")" $((1 << lbads))
    equal "wwid of $DISK" "$(cat "$sys/wwid")" "uuid.${!uuid}"
    lbads=12
done
disconnect
