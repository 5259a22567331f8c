# shellcheck shell=bash
# Random writes with checksums, each read back and compared: 512 B to 1 MiB at depths 1 to 64, over
# two queues.
connect nr_io_queues=2
disk 1
jobs=() at_kib=0
job() { # job BLOCK DEPTH KIB
    jobs+=("--name=$1-at-$2" "--stonewall" "--bs=$1" "--iodepth=$2" "--offset=${at_kib}k" "--size=$3k")
    at_kib=$((at_kib + $3))
}
job 512 1 16
job 512 64 64
job 4k 1 128
job 4k 32 512
job 16k 64 2048
job 64k 16 2048
job 256k 8 2048
job 1m 1 1024
job 1m 4 4096
verify "$DISK" --stonewall --bsrange=512-1m --blockalign=512 --iodepth=16 --offset=32m --size=4m "${jobs[@]}"
equal "jobs that ran" "$(wc -l <fio.jobs)" 10
disconnect
