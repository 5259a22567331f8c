# shellcheck shell=bash
# Commands that cannot be carried out get the status the specification names, and harm no other: the
# next one works.
passthru() { capstan_to admin-passthru "$@"; }
io() { capstan_to io-passthru -i 1 "$@"; }

refused 'Invalid Command Opcode \(SCT 0h, SC 01h' passthru --opcode 0xc5
refused 'Invalid Field in Command \(SCT 0h, SC 02h' passthru --opcode 6 --cdw10 0x55 --data-len 4096
refused 'Data SGL Length Invalid \(SCT 0h, SC 0Fh' passthru --opcode 6 --cdw10 1 --data-len 64
# Linux has a field that is wrong where the specification has a log page that is not there, and
# tells of a range that its disk has not as an error of its own.
case $TARGET in
    nvmet)
        log_page='Invalid Field in Command \(SCT 0h, SC 02h'
        out_of_range='Internal Error \(SCT 0h, SC 06h'
        ;;
    *)
        log_page='Invalid Log Page \(SCT 1h, SC 09h'
        out_of_range='LBA Out of Range \(SCT 0h, SC 80h'
        ;;
esac
refused "$log_page" passthru --opcode 2 --cdw10 0x7f007e --data-len 512
# What this side can see is not sent.
refused 'has data from the controller' passthru --opcode 6 --input-file "$LAB/case.sh"
refused 'has no answer until something happens' passthru --opcode 0x0c
# A command that does not exist cannot be aborted: success, with bit 0 set.
equal "the answer to Abort" "$(passthru --opcode 8 --cdw10 0xffff0000)" "result : 0x00000001"
# I/O beyond the last LBA, by one block, and by all of them; 8 blocks of 512 bytes, CDW12 is 0's
# based.
last=$((LBAS_1 - 8)) over=$((LBAS_1 - 4))
random data 4096
io --opcode 1 --cdw10 $last --cdw12 7 --input-file data
refused "Read: $out_of_range" io --opcode 2 --cdw10 "$LBAS_1" --cdw12 7 --data-len 4096
refused "Read: $out_of_range" io --opcode 2 --cdw10 $over --cdw12 7 --data-len 4096
refused "Read: $out_of_range" io --opcode 2 --cdw10 0xffffffff --cdw11 0xffffffff --cdw12 7 --data-len 4096
refused "Write: $out_of_range" io --opcode 1 --cdw10 $over --cdw12 7 --input-file data
refused "Write Zeroes: $out_of_range" io --opcode 8 --cdw10 $over --cdw12 7
# One range of 8 blocks that begins where the namespace ends: attributes, length, first LBA.
python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<IIQ", 0, 8, int(sys.argv[1])))' "$LBAS_1" >range
refused "Dataset Management: $out_of_range" io --opcode 9 --cdw10 0 --cdw11 4 --input-file range
refused 'Invalid Command Opcode \(SCT 0h, SC 01h' io --opcode 0x7c
refused 'Invalid Namespace or Format \(SCT 0h, SC 0Bh' io --opcode 2 -N 2000 --data-len 512
refused 'Data SGL Length Invalid \(SCT 0h, SC 0Fh' io --opcode 2 --cdw12 7 --data-len 512
case $TARGET in
    nvmet) ;;
    *)
        refused "Compare: $out_of_range" io --opcode 5 --cdw10 "$LBAS_1" --cdw12 7 --input-file data
        refused "Verify: $out_of_range" io --opcode 0xc --cdw10 "$LBAS_1" --cdw12 7
        ;;
esac
# What was there before is there still, on the controller and on the target's disk.
io --opcode 2 --cdw10 $last --cdw12 7 --data-len 4096 --raw-binary >back
same "the last eight blocks" back data
dd if=/dev/lab1 of=medium bs=512 skip=$last count=8 iflag=direct status=none
same "the last eight blocks of the target's disk" medium data
passthru --opcode 6 --cdw10 1 --data-len 4096 --raw-binary >ctrl
equal "the serial number in Identify Controller" "$(head -c 24 ctrl | tail -c 20 | sed 's/ *$//')" "$SERIAL"
