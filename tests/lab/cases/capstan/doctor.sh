# shellcheck shell=bash
# doctor goes all the way to the target, moves data in every way without writing, and measures; it
# finds no error, and no block has changed. The target's own doctor, where it is Capstan, finds what
# its listener needs.
random data 131072
capstan_to write -z 131072 -d data
capstan_to doctor >host || fail "capstan doctor: $(grep '^error' host || tail -1 host)"
case $HOST_PROVIDER in
    tcp)
        matches "the transport" "$(diagnosis host transport)" "^ok: NVMe/TCP: "
        ways=('TCP connect' C2HData H2CData 'capsule without data')
        ;;
    *)
        matches "the provider" "$(diagnosis host provider)" "^ok: $HOST_PROVIDER: "
        ways=('CM connect' 'SEND, RDMA WRITE' 'SEND with data' 'SEND without data')
        ;;
esac
matches "discovery" "$(diagnosis host discovery)" "^ok: .*$SUBSYSTEM"
for step in "${ways[@]}" subsystem namespace latency bandwidth; do
    matches "$step" "$(diagnosis host "$step")" '^ok: .'
done
capstan_to read -z 131072 -d back
same "the blocks that doctor read" back data
target_doctor
