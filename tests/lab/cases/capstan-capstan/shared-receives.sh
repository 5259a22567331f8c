# shellcheck shell=bash
# The target with a shared receive queue, in place of each queue's own receives of every other case:
# capsules with and without data, several queues, a target that goes under load and comes back.
case $HOST_PROVIDER in
    tcp) skip "NVMe/TCP has no receives that queues could share" ;;
esac
target_stop
TARGET_OPTIONS='shared_receive_queue = true' target_configuration >"$RUN/target.toml"
target_start
verify -N 1 -i 2 --bs 4k --iodepth 16 --size 512k
verify -N 1 -i 2 --bs 32k --iodepth 4 --size 1m
target_said "queues share their receives, as configured" || fail "the target does not say that receives are shared"
load load 8
target_kill
target_start
within 30 "I/O goes on" goes_on load /dev/lab1
finish_load load
target_stop
target_configuration >"$RUN/target.toml"
target_start
