# shellcheck shell=bash
# The clock is set, a day ahead and two days back, while a volume is in use: no association is lost
# for it, and nothing waits for a day.
# shellcheck source=tests/lab/guest/stacked.sh
. "$LAB/stacked.sh"
undo_with 'set_back'
began=$(date +%s) up=$(cut -d . -f 1 /proc/uptime)
set_back() { date -s "@$((began + $(cut -d . -f 1 /proc/uptime) - up))"; }
attach -k 5
disk_load load "$DISK" 12
date -s "@$((began + 86400))"
sleep 3
date -s "@$((began - 86400))"
sleep 3
set_back
finish load
if target_said disconnected; then fail "an association was lost: $(target_log_since | grep disconnected)"; fi
# A loss after a jump is mended as any.
date -s "@$((began + 86400))"
disk_load load "$DISK" 8
target_kill
target_start
date -s "@$((began - 86400))"
within 30 "I/O goes on" goes_on load "$DISK"
finish load
detach
