# shellcheck shell=bash
# Cross-Controller Reset (NVMe Base 2.3, section 5.4.3) by raw admin commands of the Linux host: a
# controller is reset through another one of the same host, and the target says that it is over when
# the connections of the first are gone.
connect nr_io_queues=1,reconnect_delay=1,ctrl_loss_tmo=60
impacted=$CONTROLLER
connect nr_io_queues=1,reconnect_delay=1,ctrl_loss_tmo=60,duplicate_connect
through=$CONTROLLER

# An unsigned little-endian field of Identify Controller.
field() { od -A n -t "u$3" -j "$2" -N "$3" --endian=little "$1" | tr -d ' '; } # field FILE OFFSET BYTES

identify() { nvme id-ctrl "/dev/$1" -b >"$1.id"; } # identify CONTROLLER

# CDW10, CDW12 and CDW13 that name the instance a file of Identify tells of.
instance() { # instance FILE
    local cirn
    cirn=$(field "$1" 136 8)
    printf -- '--cdw10=%#x --cdw12=%#x --cdw13=%#x\n' "$(($(field "$1" 78 2) | $(field "$1" 135 1) << 16))" \
        "$((cirn & 0xffffffff))" "$((cirn >> 32 & 0xffffffff))"
}

# shellcheck disable=SC2046 # options
reset_instance() { nvme admin-passthru "/dev/$through" --opcode=0x38 $(instance "$1") 2>&1; } # reset_instance FILE

# The entry of log page 1Eh for a CNTLID: CIU, ACID, CCRS, CCRF.
logged() { # logged CNTLID
    nvme get-log "/dev/$through" --log-id=0x1e --log-len=4096 -b >log
    local at count
    count=$(field log 0 2)
    for ((at = 8; at < 8 + 8 * count; at += 8)); do
        [ "$(field log "$at" 2)" = "$1" ] || continue
        echo "$(field log $((at + 2)) 1) $(field log $((at + 4)) 2) $(field log $((at + 6)) 1) $(field log $((at + 7)) 1)"
    done
}
succeeded() { [[ $(logged "$1") == *" 1 3" ]]; } # succeeded CNTLID: CCRS is success, CCRF valid and reset

identify "$impacted"
identify "$through"
equal "CCRL" "$(field "$impacted.id" 1807 1)" 4
[ "$(field "$impacted.id" 135 1)" != 0 ] || fail "CIU is 0"
[ "$(field "$impacted.id" 386 2)" != 0 ] || fail "CQT is 0"
equal "bit 20 of OAES" "$(($(field "$impacted.id" 92 4) >> 20 & 1))" 1
cntlid=$(field "$impacted.id" 78 2)

# Its own instance is refused.
refused 'Invalid Field in Command.*\(0x[0-9a-f]*002\)' nvme admin-passthru "/dev/$through" --opcode=0x38 \
    "--cdw10=$(($(field "$through.id" 78 2) | $(field "$through.id" 135 1) << 16))"

said=$(reset_instance "$impacted.id")
echo "$said"
# Bit 0 of the result: the reset was over at once. Otherwise the log tells when it is.
if ! grep -qE 'result: ?0?x?0*1\b' <<<"$said"; then
    within 20 "log page 1Eh tells of success" succeeded "$cntlid"
fi
CONTROLLER=$impacted
# The host makes another one, of which nothing is the same.
another() { is_live && identify "$impacted" && [ "$(field "$impacted.id" 78 2) $(field "$impacted.id" 136 8)" != "$1" ]; }
old=$cntlid\ $(field "$impacted.id" 136 8)
cp "$impacted.id" old.id
within 40 "the host is connected again" another "$old"
target_said 'cntlid='"$cntlid"'.*disconnected' || target_said 'disconnected.*cntlid='"$cntlid" || fail "the target does not say that controller $cntlid ended"

# That instance is gone: the answer is at once that it is reset.
matches "the answer for an instance that is gone" "$(reset_instance old.id)" 'result: ?0?x?0*1\b'
# What is over is told once more and then removed (LSP bit 0).
nvme get-log "/dev/$through" --log-id=0x1e --log-len=4096 --lsp=1 -b >log
equal "entries after Remove Completed" "$(nvme get-log "/dev/$through" --log-id=0x1e --log-len=4096 -b | od -A n -t u2 -N 2 | tr -d ' ')" 0
disconnect "$impacted"
disconnect "$through"
