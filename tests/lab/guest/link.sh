# shellcheck shell=bash
# Sourced in the guest: the link between host and target, and the RDMA device on it.
#
# siw: a veth pair. The kernel's side has the siw device; the other end is in the network namespace
# `capstan`, where a program with the user-space iwarp provider runs as on a machine of its own
# ($IN_NETNS COMMAND…). rxe: two interfaces with a device each. RDMA devices of namespaces other
# than the first do not exist in this kernel, so both are in the first one, and a host has to say
# which of its addresses it connects from ($HOST_ADDRESS).
#
#   $KERNEL_ADDRESS   of the kernel's RDMA device    $LINK_INTERFACE   on which that device is
#   $CAPSTAN_ADDRESS  of Capstan                     $WIRE             where the packets can be seen
#   $MARK_ADDRESS     what is sent there can be seen there, too

export KERNEL_ADDRESS CAPSTAN_ADDRESS TARGET_ADDRESS MARK_ADDRESS LINK_INTERFACE WIRE IN_NETNS

rdma_modules() {
    # libibverbs loads every driver that is named there, in each program; over 9p that takes longer
    # than all the rest.
    mount -t tmpfs drivers /etc/libibverbs.d
    echo "driver rxe" >/etc/libibverbs.d/rxe.driver
    echo "driver siw" >/etc/libibverbs.d/siw.driver
    ip link set lo up
    modprobe -a crc32c libcrc32c iw_cm rdma_cm ib_core rdma_ucm ib_uverbs dummy "$@"
}

# siw says why it breaks a connection, and what happens to a listener, at the level of debugging
# only.
load_siw() { # load_siw MODULE
    local words
    insmod "$LAB/$1.ko"
    for words in "processing failed" "task failed" "rx error" "mem check" "not found/invalid" mismatch unknown "init TERM" "TERM reports" \
        "work type"; do
        echo "module siw format \"$words\" +p" >/sys/kernel/debug/dynamic_debug/control
    done
}

# The kernel at 10.9.0.1, Capstan in its own network namespace at 10.9.0.2.
link_siw() {
    rdma_modules veth
    load_siw siw
    KERNEL_ADDRESS=10.9.0.1 CAPSTAN_ADDRESS=10.9.0.2 MARK_ADDRESS=10.9.0.2 LINK_INTERFACE=lab0 WIRE=lab0
    IN_NETNS="nsenter --net=/run/netns/capstan"
    ip netns add capstan
    ip link add "$LINK_INTERFACE" mtu 9000 type veth peer name peer0 mtu 9000 netns capstan
    ip addr add "$KERNEL_ADDRESS/24" dev "$LINK_INTERFACE"
    ip link set "$LINK_INTERFACE" up
    $IN_NETNS ip addr add "$CAPSTAN_ADDRESS/24" dev peer0
    $IN_NETNS ip link set lo up
    $IN_NETNS ip link set peer0 up
    add_device siw0
}

# Pulls the cable. With siw the other end of the veth pair goes down, or, with both ends in one
# namespace, the loopback interface, over which their TCP goes. What Soft-RoCE sends by an interface
# without carrier fails and puts the queue pair in error, the one of the connection manager for
# ever, too; so there everything sent is lost on the way, as behind a switch.
link_down() { set_link down private; }
link_up() { set_link up bridge; }
set_link() { # set_link up|down MODE_OF_MACVLAN
    case $LINK in
        siw) $IN_NETNS ip link set peer0 "$1" ;;
        siw_shared) ip link set lo "$1" ;;
        rxe) ip link set "$LINK_INTERFACE" type macvlan mode "$2" ;;
    esac
}

# siw where Capstan uses the device as well: both ends at 10.9.0.1, over the loopback interface.
# Without zero copy: setup.sh says what is wrong with the stock one.
link_siw_shared() {
    rdma_modules
    load_siw siw-mended
    KERNEL_ADDRESS=10.9.0.1 CAPSTAN_ADDRESS=10.9.0.1 MARK_ADDRESS=10.9.0.1 LINK_INTERFACE=lab0 WIRE=lo IN_NETNS=''
    ip link add "$LINK_INTERFACE" type dummy
    ip addr add "$KERNEL_ADDRESS/24" dev "$LINK_INTERFACE"
    ip link set "$LINK_INTERFACE" up
    add_device siw0
}

# Soft-RoCE hands what one device sends to itself on without any packet: there would be no wire to
# look at or to cut. So there is a device on each of two interfaces, over a dummy one that connects
# them.
link_rxe() {
    local end interface address
    rdma_modules rdma_rxe macvlan
    KERNEL_ADDRESS=10.9.0.1 CAPSTAN_ADDRESS=10.9.0.2 MARK_ADDRESS=10.9.0.99 LINK_INTERFACE=lab0 WIRE=lab0 IN_NETNS=''
    ip link add cable mtu 9000 type dummy
    ip link set cable up
    for end in "0 $LINK_INTERFACE $KERNEL_ADDRESS" "1 peer0 $CAPSTAN_ADDRESS"; do
        read -r end interface address <<<"$end"
        ip link add link cable name "$interface" mtu 9000 type macvlan mode bridge
        # Packets of this machine come in from the other end.
        sysctl -qw "net.ipv4.conf.$interface.accept_local=1" "net.ipv4.conf.$interface.rp_filter=0"
        ip addr add "$address/24" dev "$interface"
        ip link set "$interface" up
        add_device "rxe$end"
    done
    # An answer of ARP that is there at once is missed by the connection manager (rdma_resolve_ip in
    # Linux 6.12 asks before it waits), which then looks again when all its time is over.
    ip neigh add "$CAPSTAN_ADDRESS" lladdr "$(cat /sys/class/net/peer0/address)" nud permanent dev "$LINK_INTERFACE"
    ip neigh add "$KERNEL_ADDRESS" lladdr "$(cat "/sys/class/net/$LINK_INTERFACE/address")" nud permanent dev peer0
    # No machine is there.
    ip neigh add "$MARK_ADDRESS" lladdr 02:00:00:00:00:99 nud permanent dev "$LINK_INTERFACE"
}

# Another client of an NFS server: a namespace of networks of its own, for which this one forwards.
link_second_client() {
    local in_second="nsenter --net=/run/netns/second"
    ip netns add second
    ip link add second0 mtu 9000 type veth peer name peer1 mtu 9000 netns second
    ip addr add 10.10.0.1/24 dev second0
    ip link set second0 up
    $in_second ip link set lo up
    $in_second ip addr add 10.10.0.2/24 dev peer1
    $in_second ip link set peer1 up
    $in_second ip route add default via 10.10.0.1
    sysctl -qw net.ipv4.ip_forward=1
    [ -z "$IN_NETNS" ] || $IN_NETNS ip route add 10.10.0.0/24 via "$KERNEL_ADDRESS"
}

add_device() { # add_device rxe0|rxe1|siw0
    local interface=$LINK_INTERFACE
    [ "$1" != rxe1 ] || interface=peer0
    rdma link add "$1" type "${1%[01]}" netdev "$interface"
    wait_for_port "$1"
}

# Unplugs an RDMA device. That ends when no process has it open any more, and cannot be interrupted.
remove_device() { # remove_device DEVICE
    local pid try
    rdma link delete "$1" &
    pid=$!
    for try in $(seq 150); do
        if ! kill -0 $pid 2>/dev/null; then
            wait $pid
            return
        fi
        sleep 0.1
    done
    echo "removing $1 hangs for $((try / 10)) s: somebody keeps it open" >&2
    return 1
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
