# shellcheck shell=bash
# capstan is killed with I/O in flight: the target notices, and the next one is served.
for round in 1 2; do
    load "load$round" 30
    kill -KILL "$(cat "load$round.pid")"
    wait "$(cat "load$round.pid")" || true
done
verify -N 1 --bs 4k --iodepth 8 --size 64k
