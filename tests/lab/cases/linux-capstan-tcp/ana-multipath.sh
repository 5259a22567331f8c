# shellcheck shell=bash
# Two paths of native multipath through two listeners, and what the operator says of each: I/O takes
# the one that is optimized, moves while it is under way, waits while neither is accessible, and has
# no error.
target() { "$LAB/capstan-target" "$@"; }
first=$TARGET_ADDRESS:4420 second=$TARGET_ADDRESS:4421
target listener add "$TARGET_ADDRESS" --port 4421 --transports tcp
undo() {
    target listener remove "$second"
    target ana remove "$SUBSYSTEM" 1 || true
}
# shellcheck disable=SC2034 # of case.sh
AT_THE_END=undo

connect nr_io_queues=1
one=$CONTROLLER
connect nr_io_queues=1,trsvcid=4421
two=$CONTROLLER
disk 1
ana_state() { cat "/sys/class/nvme/$1"/nvme*c*n*/ana_state | sort -u; } # ana_state CONTROLLER
is_ana() { [ "$(ana_state "$1")" = "$2" ]; } # is_ana CONTROLLER STATE
# Of the disk by one path: the sectors read and written so far (Documentation/block/stat.rst).
sectors() { awk '{ sum += $3 + $7 } END { print sum }' /sys/class/nvme/"$1"/nvme*c*n*/stat; } # sectors CONTROLLER
moved_more() { [ "$(sectors "$1")" -gt "$2" ]; } # moved_more CONTROLLER SECTORS

begin load verify "$DISK" --bs=16k --iodepth=8 --size=8m --rate=1m
target ana set "$SUBSYSTEM" 1 inaccessible --listener "$first"
within 10 "the host knows it of $one" is_ana "$one" inaccessible
from=$(sectors "$two")
within 20 "I/O goes by $two" moved_more "$two" "$from"
target ana set "$SUBSYSTEM" 1 optimized --listener "$first"
target ana set "$SUBSYSTEM" 1 inaccessible --listener "$second"
within 10 "the host knows it of $two" is_ana "$two" inaccessible
from=$(sectors "$one")
within 20 "I/O goes by $one" moved_more "$one" "$from"
running load || fail "the load has ended too early to show anything: $(tail -1 load.out)"
finish load

# Neither: what comes waits for one.
target ana set "$SUBSYSTEM" 1 inaccessible
within 10 "the host knows it of $one" is_ana "$one" inaccessible
begin waits verify "$DISK" --bs=16k --iodepth=8 --size=1m
sleep 2
running waits || fail "I/O went where no path is accessible: $(tail -1 waits.out)"
target ana set "$SUBSYSTEM" 1 non-optimized --listener "$second"
finish waits
is_ana "$two" non-optimized || fail "the state of $two is $(ana_state "$two")"
disconnect "$one"
disconnect "$two"
