# shellcheck shell=bash
# Identify Controller and Namespace, as capstan prints them.
capstan_to id-ctrl >ctrl
values ctrl <<EXPECTED
sn:        $SERIAL
mn:        $MODEL
cntrltype: 1
sqes:      0x66
cqes:      0x44
subnqn:    $SUBSYSTEM
iorcsz:    1
icdoff:    0
EXPECTED
capstan_to list-ns >list
equal "namespaces" "$(sed 's/.*://' list | tr '\n' ' ')" "0x1 0x3 "
for check in "1 512" "3 4096"; do
    read -r nsid lba_bytes <<<"$check"
    lbas=LBAS_$nsid nguid=NGUID_$nsid uuid=UUID_$nsid
    capstan_to id-ns -N "$nsid" >ns
    values ns <<EXPECTED
nsze:  ${!lbas}
ncap:  ${!lbas}
nlbaf: 0
flbas: 0
nguid: ${!nguid//-/}
uuid:  ${!uuid}
lbafs: $lba_bytes + 0 bytes (in use)
EXPECTED
done
refused 'namespace 9|NSID 9|nsid 9' capstan_to id-ns -N 9
