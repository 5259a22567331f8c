# shellcheck shell=bash
# Controller reset and namespace rescan while fio writes to a disk of capstan and verifies: no I/O
# fails, and the controller is live again.
attach
is_live() { matches "state" "$(capstan list)" "$DISK .* live "; }
disk_load load "$DISK" 8
for _ in 1 2; do
    capstan reset "$DISK"
    is_live
    capstan ns-rescan "$DISK"
    within 20 "I/O goes on" goes_on load "$DISK"
done
finish load
is_live
detach
