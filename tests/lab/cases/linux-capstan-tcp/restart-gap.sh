# shellcheck shell=bash
# An orderly restart of the target while the host writes and reads back: no error, the same disk
# with the same ANA state, and I/O goes on within seconds, where the host looks again each second.
# How long it stands still is said; most of that is the program, which is read from the machine
# around this one (9p). No systemd keeps the sockets here.
undo() {
    cp target.toml "$RUN/target.toml"
    kill -HUP "$(cat "$RUN/target.pid")"
}
cp "$RUN/target.toml" .
# shellcheck disable=SC2034 # of case.sh
AT_THE_END=undo
connect nr_io_queues=2,keep_alive_tmo=5,reconnect_delay=1,ctrl_loss_tmo=60
disk 1
identity() { cat "/sys/block/$(basename "$DISK")"/{wwid,uuid,size}; }
# Of the path, which with native multipath is no disk of its own.
ana_state() { cat "/sys/class/nvme/$CONTROLLER"/nvme*n*/ana_state | sort -u; }
"$LAB/capstan-target" ana set "$SUBSYSTEM" 1 non-optimized
"$LAB/capstan-target" config save
within 10 "the host knows the ANA state" grep -qx non-optimized <(ana_state)
before=$(identity)
begin load python3 "$LAB/io_gap.py" "$DISK" 12
within 15 "I/O is under way" moves "$DISK"
target_stop
target_start
finish load
cat load.out
gap_ms=$(awk '$1 == "gap_ms" { print $2 }' load.out)
[ "$gap_ms" -lt 15000 ] || fail "$gap_ms ms without I/O, expected less than 15000"
equal "the disk" "$(identity)" "$before"
equal "ANA state" "$(ana_state)" non-optimized
disconnect
