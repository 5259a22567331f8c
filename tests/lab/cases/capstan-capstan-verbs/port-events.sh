# shellcheck shell=bash
# The port of the target's RDMA device goes down and comes up: the device tells, the target says so,
# and serves on. Over siw connections outlive it, as TCP does; Soft-RoCE would send into a device
# without carrier, so there no host is connected.
device=siw0 interface=$LINK_INTERFACE
[ "$LINK" != rxe ] || device=rxe1 interface=peer0
[ "$LINK" = rxe ] || load load 6 -k 15
ip -4 neigh show dev "$interface" nud permanent >neighbours
ip link set "$interface" down
within 10 "the target says that the port is down" target_said "the port is down.* device=\"?$device\"?.* port=1"
sleep 1
ip link set "$interface" up
within 10 "the target says that the port is up" target_said "the port is up.* device=\"?$device\"?.* port=1"
# They went with the port.
while read -r address _ mac _; do
    ip neigh replace "$address" lladdr "$mac" nud permanent dev "$interface"
done <neighbours
[ "$LINK" = rxe ] || finish_load load
verify -N 1 --bs 4k --iodepth 4 --size 256k
