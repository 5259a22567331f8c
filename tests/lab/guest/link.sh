# shellcheck shell=bash
# Sourced in the guest: the link between host and target, and the RDMA device on it.
#
# siw: a veth pair. The kernel's side has the siw device; the other end is in the network namespace `capstan`, where a
# program with the user-space iwarp provider runs as on a machine of its own ($IN_NETNS COMMAND…).
# rxe: RDMA devices of namespaces other than the first do not exist in this kernel, so both ends are in the first one.
#
#   $KERNEL_ADDRESS   of the kernel's RDMA device      $LINK_INTERFACE   on which that device is
#   $CAPSTAN_ADDRESS  of Capstan                       $WIRE             where the packets can be seen

export KERNEL_ADDRESS CAPSTAN_ADDRESS TARGET_ADDRESS LINK_INTERFACE WIRE IN_NETNS

rdma_modules() {
    ip link set lo up
    modprobe -a crc32c libcrc32c iw_cm rdma_cm ib_core rdma_ucm ib_uverbs dummy "$@"
}

# The kernel at 10.9.0.1, Capstan in its own network namespace at 10.9.0.2.
link_siw() {
    rdma_modules veth
    insmod "$LAB/siw.ko"
    KERNEL_ADDRESS=10.9.0.1 CAPSTAN_ADDRESS=10.9.0.2 LINK_INTERFACE=lab0 WIRE=lab0
    IN_NETNS="nsenter --net=/run/netns/capstan"
    ip netns add capstan
    ip link add "$LINK_INTERFACE" mtu 9000 type veth peer name peer0 mtu 9000 netns capstan
    ip addr add "$KERNEL_ADDRESS/24" dev "$LINK_INTERFACE"
    ip link set "$LINK_INTERFACE" up
    $IN_NETNS ip addr add "$CAPSTAN_ADDRESS/24" dev peer0
    $IN_NETNS ip link set lo up
    $IN_NETNS ip link set peer0 up
    rdma link add siw0 type siw netdev "$LINK_INTERFACE"
    wait_for_port siw0
}

# Pulls the cable. The other end of the veth pair, so that the kernel's end only loses its carrier; the dummy interface
# has no other end.
link_down() { set_link down; }
link_up() { set_link up; }
set_link() { # set_link up|down
    if [ -n "$IN_NETNS" ]; then
        $IN_NETNS ip link set peer0 "$1"
    else
        ip link set "$LINK_INTERFACE" "$1"
    fi
}

# siw where Capstan uses the device as well: both ends at 10.9.0.1, over the loopback interface. Without zero copy:
# setup.sh says what is wrong with the stock one.
link_siw_shared() {
    rdma_modules
    insmod "$LAB/siw-copy.ko"
    one_address siw
}

link_rxe() {
    rdma_modules rdma_rxe
    one_address rxe
}

one_address() { # one_address siw|rxe
    KERNEL_ADDRESS=10.9.0.1 CAPSTAN_ADDRESS=10.9.0.1 LINK_INTERFACE=lab0 WIRE=lo IN_NETNS=''
    ip link add "$LINK_INTERFACE" type dummy
    ip addr add "$KERNEL_ADDRESS/24" dev "$LINK_INTERFACE"
    ip link set "$LINK_INTERFACE" up
    rdma link add "${1}0" type "$1" netdev "$LINK_INTERFACE"
    wait_for_port "${1}0"
}

wait_for_port() { # wait_for_port DEVICE
    local try
    for try in $(seq 50); do
        rdma link show "$1/1" | grep -q 'state ACTIVE' && return 0
        sleep 0.1
    done
    echo "$1 is not active after $((try / 10)) s: $(rdma link show "$1/1")" >&2
    return 1
}
