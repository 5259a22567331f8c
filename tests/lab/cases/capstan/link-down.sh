# shellcheck shell=bash
# The link goes down for two seconds while capstan writes: I/O stops, goes on, and nothing is lost.
load load 6 -k 15
link_down
sleep 1
before=$(completed /dev/lab1)
sleep 1
equal "I/Os completed while the link was down" $(($(completed /dev/lab1) - before)) 0
running load || fail "the load ended before the link was down"
link_up
within "$GOES_ON_WITHIN" "I/O goes on" goes_on load /dev/lab1
finish_load load
