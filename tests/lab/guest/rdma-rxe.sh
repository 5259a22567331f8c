# shellcheck shell=bash
# Sourced in the guest: loads the RDMA stack and puts a Soft-RoCE device on the dummy interface dum0
# (10.9.0.1/24). Both ends of a connection are in this guest.

ip link set lo up
modprobe -a rdma_rxe rdma_cm rdma_ucm ib_uverbs dummy
ip link add dum0 type dummy
ip addr add 10.9.0.1/24 dev dum0
ip addr add fd09::1/64 dev dum0 nodad
ip link set dum0 up
rdma link add rxe0 type rxe netdev dum0
