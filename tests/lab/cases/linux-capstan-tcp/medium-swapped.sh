# shellcheck shell=bash
# As over RDMA: nvme-tcp holds back what was not answered, connects again and sends it by code of
# its own.
# shellcheck source=tests/lab/cases/linux-capstan-iwarp/medium-swapped.sh
. "$LAB/cases/linux-capstan-iwarp/medium-swapped.sh"
