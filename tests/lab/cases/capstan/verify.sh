# shellcheck shell=bash
# Random writes with checksums, each read back and compared: 512 B to 1 MiB at depths 1 to 64, over
# two queues.
job() { # job BLOCK DEPTH SIZE
    verify -N 1 -i 2 --bs "$1" --iodepth "$2" --size "$3"
}
job 512 1 16k
job 512 64 64k
job 4k 32 512k
job 16k 64 1m
job 64k 16 1m
job 256k 8 2m
job 1m 1 1m
job 1m 4 4m
