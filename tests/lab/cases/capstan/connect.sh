# shellcheck shell=bash
# One I/O queue, and four; every queue carries I/O that is checked.
for queues in 1 4; do
    verify -N 3 -i $queues -Q 32 --bs 4k --iodepth 31 --size 256k
done
