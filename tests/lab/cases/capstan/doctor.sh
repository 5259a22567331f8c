# shellcheck shell=bash
# doctor goes all the way to the target, tries every RDMA opcode without writing, and measures; it finds no error, and no
# block has changed. The target's own doctor, where it is Capstan, finds what its listener needs.
random data 131072
capstan_to write -z 131072 -d data
capstan_to doctor >host || fail "capstan doctor: $(grep '^error' host || tail -1 host)"
matches "the provider" "$(diagnosis host provider)" "^ok: $HOST_PROVIDER: "
matches "discovery" "$(diagnosis host discovery)" "^ok: .*$SUBSYSTEM"
for step in 'CM connect' subsystem namespace 'SEND, RDMA WRITE' 'SEND with data' 'SEND without data' latency bandwidth; do
    matches "$step" "$(diagnosis host "$step")" '^ok: .'
done
capstan_to read -z 131072 -d back
same "the blocks that doctor read" back data
target_doctor
