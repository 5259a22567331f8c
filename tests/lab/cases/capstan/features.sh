# shellcheck shell=bash
# Features as capstan prints them: what it set at connect, and what is not there.
feature() { capstan_to get-feature "$@" >feature; }

feature -f 0x0f -k 7
values feature <<EXPECTED
fid:     0xf
feature: Keep Alive Timer
value:   0x1b58
kato:    7000 ms
EXPECTED
feature -f 7
equal "feature" "$(value feature feature)" "Number of Queues"
[ "$(value submission_queues feature)" -ge 2 ] || fail "$(value submission_queues feature) submission queues, expected 2 or more"
feature -f 0x0b
matches "events" "$(value events feature)" NAMESPACE_ATTRIBUTE
matches "as JSON" "$(capstan_to get-feature -f 0x0f -k 7 --output json)" '"kato": 7000'
refused 'Get Features \(60h\).*Invalid Field in Command' capstan_to get-feature -f 0x60
# Linux answers with the seconds.
matches "the answer to Set Features" "$(capstan_to admin-passthru --opcode 9 --cdw10 0x0f --cdw11 20000)" '^result : 0x000000(00|14)$'
