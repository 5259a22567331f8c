# shellcheck shell=bash
# Commands that cannot be carried out get the status the specification names, and harm no other: the
# next one works.
connect nr_io_queues=1
c=/dev/$CONTROLLER
disk 1
random data 4096
nvme write "$DISK" -s $((LBAS_1 - 8)) -c 7 -z 4096 -d data

out_of_range='LBA Out of Range.*\(0x[0-9a-f]*080\)'
refused "$out_of_range" nvme read "$DISK" -s "$LBAS_1" -c 7 -z 4096 -d back
refused "$out_of_range" nvme read "$DISK" -s $((LBAS_1 - 4)) -c 7 -z 4096 -d back
refused "$out_of_range" nvme write "$DISK" -s $((LBAS_1 - 4)) -c 7 -z 4096 -d data
refused "$out_of_range" nvme read "$DISK" -s 0xffffffffffffffff -c 7 -z 4096 -d back
refused "$out_of_range" nvme write-zeroes "$DISK" -s $((LBAS_1 - 4)) -c 7
refused "$out_of_range" nvme dsm "$DISK" -d -s "$LBAS_1" -b 8 -a 0
refused "$out_of_range" nvme verify "$DISK" -s "$LBAS_1" -c 7
refused "$out_of_range" nvme compare "$DISK" -s "$LBAS_1" -c 7 -z 4096 -d data
refused "$out_of_range" nvme copy "$DISK" --sdlba=0 --slbs="$LBAS_1" --blocks=7 --format=0

opcode='Invalid Command Opcode.*\(0x[0-9a-f]*001\)'
field='Invalid Field in Command.*\(0x[0-9a-f]*002\)'
refused "$opcode" nvme io-passthru "$DISK" --opcode=0x7a --namespace-id=1
refused "$opcode" nvme admin-passthru "$c" --opcode=0xc5
refused "$field" nvme admin-passthru "$c" --opcode=0x06 --cdw10=0x55 -l 4096 -r
refused 'Invalid Namespace or Format.*\(0x[0-9a-f]*00b\)' nvme id-ns "$c" -n 2000
refused "$field" nvme get-feature "$c" -f 0x7f
refused 'Invalid Log Page.*\(0x[0-9a-f]*109\)' nvme get-log "$c" -i 0x7e -l 512
# A command that does not exist cannot be aborted: success, with bit 0 set.
matches "the result of Abort" "$(nvme admin-passthru "$c" --opcode=0x08 --cdw10=0xffff0001 2>&1)" "result: 0x0*1"

# What was there before is there still.
nvme read "$DISK" -s $((LBAS_1 - 8)) -c 7 -z 4096 -d back
same "the last eight blocks" back data
equal "state" "$(state)" live
disconnect
