# shellcheck shell=bash
# SMART and the error log, as capstan prints them.
capstan_to smart-log >smart
values smart <<EXPECTED
critical_warning: 0x0
percent_used:     0
media_errors:     0
EXPECTED
capstan_to error-log >errors
[ -s errors ] || fail "error-log prints nothing"
