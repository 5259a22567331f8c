# shellcheck shell=bash
# Features as nvme prints them: defaults, what the kernel set at connect, and a change that stays.
connect nr_io_queues=2,keep_alive_tmo=7
c=/dev/$CONTROLLER
feature() { nvme get-feature "$c" -f "$1" -H "${@:2}"; }

matches "Async Event Configuration" "$(feature 0x0b)" "Namespace Attribute Notices +: Send async event"
# Seven seconds, in milliseconds.
matches "Keep Alive Timer" "$(feature 0x0f)" "Current value:0x00001b58"
matches "Number of Queues" "$(feature 0x07)" "NSQA\): [1-9]"
nvme set-feature "$c" -f 0x0f -v 20000
matches "Keep Alive Timer after it was set" "$(feature 0x0f)" "20000"
refused "Invalid Field in Command" nvme get-feature "$c" -f 0x7f
matches "Arbitration" "$(feature 0x01)" "No limit"
matches "Power Management" "$(feature 0x02)" "Power State +\(PS\): 0"
matches "Write Atomicity" "$(feature 0x0a)" "\(DN\): False"
# There is no volatile write cache to turn on.
refused "Invalid Field in Command" nvme set-feature "$c" -f 0x06 -v 1
disconnect
