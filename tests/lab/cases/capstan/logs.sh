# shellcheck shell=bash
# SMART, the error log and the effects log, as capstan prints them.
capstan_to smart-log >smart
values smart <<EXPECTED
critical_warning: 0x0
percent_used:     0
media_errors:     0
EXPECTED
capstan_to error-log >errors
[ -s errors ] || fail "error-log prints nothing"

capstan_to effects-log >effects
for command in 'admin +0x06 +Identify +00000001' 'admin +0x18 +Keep Alive +0000000[1-9a-f]' 'io +0x02 +Read +00000001' \
    'io +0x01 +Write +00000003 +LOGICAL_BLOCK_CONTENT'; do
    matches "the effects log" "$(cat effects)" "$command"
done
