# shellcheck shell=bash
# Three associations of one host at once, with two I/O queues each; everything is read back and
# compared.
verify -N 3 -i 2 --bs 4k --iodepth 4 --numjobs 3 --size 64k
