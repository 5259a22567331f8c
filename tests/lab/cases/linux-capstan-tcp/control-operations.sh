# shellcheck shell=bash
# 500 operations by the control socket, chosen at random, while fio writes and verifies another
# namespace: the target serves what was asked for after each one, the host sees that at the end, the
# I/O never fails, and nothing is kept. A seed that failed is in the log.
connect nr_io_queues=2
disk 1
begin load fio --filename="$DISK" --direct=1 --ioengine=libaio --thread --randrepeat=0 --rw=randwrite --bsrange=4k-64k \
    --iodepth=4 --size=8m --time_based --runtime=540 --verify=crc32c --verify_fatal=1 --verify_backlog=16 \
    --verify_state_save=0 --output-format=terse --terse-version=3 --name=load
within 15 "fio works on $DISK" moves "$DISK"
mkdir images
read -r _ files_before <<<"$(target_holds)"
seed=$RANDOM
echo "seed $seed"
# Blank lines may go with what is taken out.
configuration() { grep -v '^$' "$RUN/target.toml"; }
before=$(configuration)
timeout 520 python3 "$LAB/control_operations.py" "${CONTROL_OPERATIONS:-500}" "$seed" "$PWD/images" "$SUBSYSTEM" "$TARGET_ADDRESS" \
    >operations.log 2>&1 || fail "seed $seed: $(tail -1 operations.log)"
tail -1 operations.log
running load || finish load
moves "$DISK" || fail "fio does not write any more"
for nsid in $(seq 10 41); do
    within 20 "NSID $nsid goes" no_disk "$nsid"
done
equal "the configuration" "$(configuration)" "$before"
few_more_files() {
    read -r _ files_after <<<"$(target_holds)"
    [ "$files_after" -le $((files_before + 2)) ]
}
within 20 "the target has closed what it had opened ($files_before files before)" few_more_files
kill -INT "$(cat "$WORK/load.pid")"
status=0
wait "$(cat "$WORK/load.pid")" || status=$?
cat load.out
# What ends it by a signal says so in its status; an error is in field 5.
{ [ "$status" = 128 ] || [ "$status" = 0 ]; } || fail "fio ended with status $status: $(grep -v '^$' load.out | tail -1)"
equal "errors of fio" "$(awk -F';' '/^3;/ { print $5 }' load.out)" 0
disconnect
