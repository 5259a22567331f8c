# shellcheck shell=bash
# Sourced in the guest: loads the RDMA stack and siw, and puts an siw device on the dummy interface
# dum0 (10.9.0.1/24). Both ends of a connection are in this guest, so the traffic itself passes
# through lo.

ip link set lo up
modprobe -a crc32c libcrc32c iw_cm rdma_cm ib_core rdma_ucm ib_uverbs dummy
insmod "${SIW:-$LAB/siw.ko}"
ip link add dum0 type dummy
ip addr add 10.9.0.1/24 dev dum0
ip addr add fd09::1/64 dev dum0 nodad
ip link set dum0 up
rdma link add siw0 type siw netdev dum0
