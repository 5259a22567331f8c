# shellcheck shell=bash
# SMART counts what was moved; the effects log names the commands; the error log tells of a refused
# command.
connect nr_io_queues=1
c=/dev/$CONTROLLER
disk 1
nvme smart-log "$c" >before
dd if=/dev/urandom of="$DISK" bs=256k count=8 oflag=direct status=none
dd if="$DISK" of=/dev/null bs=256k count=16 iflag=direct status=none
nvme smart-log "$c" >after
values after <<EXPECTED
critical_warning:  0
available_spare:   100%
percentage_used:   0%
media_errors:      $(value media_errors before)
EXPECTED
units() { value "$1" "$2" | sed 's/ .*//'; }
# Units of a thousand 512-byte blocks, rounded up: 2 MiB are 4.096 of them, 4 MiB 8.192; udev reads
# a little of its own.
for check in "Written 4 5" "Read 8 12"; do
    read -r what least most <<<"$check"
    moved=$(($(units "Data Units $what" after) - $(units "Data Units $what" before)))
    { [ $moved -ge "$least" ] && [ $moved -le "$most" ]; } || fail "Data Units $what grew by $moved, expected $least to $most"
done
equal "host_write_commands more" $(($(value host_write_commands after) - $(value host_write_commands before))) 8

nvme effects-log "$c" --csi=0 >effects
for command in Identify 'Get Features' 'Set Features' Abort 'Asynchronous Event Request' 'Keep Alive' \
    Flush Write Read 'Dataset Management' 'Write Zeroes'; do
    matches "the effects log" "$(cat effects)" "\[$command *\] 0000000[13]$"
done
# Bit 1: it changes what is in logical blocks.
matches "the effects log: Write" "$(cat effects)" '\[Write *\] 00000003$'

errors=$(value num_err_log_entries after)
refused 'LBA Out of Range' nvme read "$DISK" -s "$LBAS_1" -c 0 -z 512 -d /dev/null
nvme error-log "$c" -e 1 >error
nvme smart-log "$c" >later
equal "num_err_log_entries" "$(value num_err_log_entries later)" $((errors + 1))
values error <<EXPECTED
error_count: $((errors + 1))
sqid:        1
lba:         $(printf '%#x' "$LBAS_1")
nsid:        0x1
EXPECTED
matches "the error's status" "$(value status_field error)" "LBA Out of Range"
disconnect
