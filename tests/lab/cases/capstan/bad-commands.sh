# shellcheck shell=bash
# Commands that cannot be carried out get the status the specification names, and hurt nobody: the next one works.
passthru() { capstan_to admin-passthru "$@"; }

refused 'Invalid Command Opcode \(SCT 0h, SC 01h' passthru --opcode 0xc5
refused 'Invalid Field in Command \(SCT 0h, SC 02h' passthru --opcode 6 --cdw10 0x55 --data-len 4096
refused 'Data SGL Length Invalid \(SCT 0h, SC 0Fh' passthru --opcode 6 --cdw10 1 --data-len 64
# Linux has a field that is wrong where the specification has a log page that is not there.
case $TARGET in
    nvmet) log_page='Invalid Field in Command \(SCT 0h, SC 02h' ;;
    *) log_page='Invalid Log Page \(SCT 1h, SC 09h' ;;
esac
refused "$log_page" passthru --opcode 2 --cdw10 0x7f007e --data-len 512
# What this side can see is not sent.
refused 'has data from the controller' passthru --opcode 6 --input-file "$LAB/case.sh"
refused 'has no answer until something happens' passthru --opcode 0x0c
# A command that does not exist cannot be aborted: success, with bit 0 set.
equal "the answer to Abort" "$(passthru --opcode 8 --cdw10 0xffff0000)" "result : 0x00000001"
passthru --opcode 6 --cdw10 1 --data-len 4096 --raw-binary >ctrl
equal "the serial number in Identify Controller" "$(head -c 24 ctrl | tail -c 20 | sed 's/ *$//')" "$SERIAL"
