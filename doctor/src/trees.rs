//! Machines to test on. Soft-RoCE and siw are copies of what Linux 6.12 shows; the hardware follows
//! the kernel's description of the files.

use crate::testing::Tree;

/// Files of a port.
fn port(tree: Tree, device: &str, number: u32, files: &[(&str, &str)]) -> Tree {
    tree.files(
        &format!("sys/class/infiniband/{device}/ports/{number}"),
        files,
    )
}

const ACTIVE: [(&str, &str); 4] = [
    ("state", "4: ACTIVE\n"),
    ("phys_state", "5: LinkUp\n"),
    ("rate", "2.5 Gb/sec (1X SDR)\n"),
    ("link_layer", "Ethernet\n"),
];
const DOWN: [(&str, &str); 4] = [
    ("state", "1: DOWN\n"),
    ("phys_state", "3: Disabled\n"),
    ("rate", "2.5 Gb/sec (1X SDR)\n"),
    ("link_layer", "Ethernet\n"),
];
const NO_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";

/// rxe1 on dum1 (10.8.0.1), and rxe2 on dum2, which is down.
pub(crate) fn soft_roce(tree: Tree) -> Tree {
    let mut tree = tree
        .files(
            "sys/class/infiniband/rxe1",
            &[
                ("node_type", "1: CA\n"),
                ("fw_ver", "\n"),
                ("parent", "dum1\n"),
            ],
        )
        .files(
            "sys/class/infiniband/rxe2",
            &[
                ("node_type", "1: CA\n"),
                ("fw_ver", "\n"),
                ("parent", "dum2\n"),
            ],
        )
        .file("sys/class/infiniband_verbs/abi_version", "6\n")
        .file("sys/class/infiniband_verbs/uverbs1/ibdev", "rxe1\n")
        .file("sys/class/infiniband_verbs/uverbs2/ibdev", "rxe2\n")
        .file("sys/class/net/dum1/mtu", "1500\n")
        .file("sys/class/net/dum2/mtu", "1500\n")
        .address("dum1", "10.8.0.1");
    tree = port(tree, "rxe1", 1, &ACTIVE);
    tree = port(
        tree,
        "rxe1",
        1,
        &[
            ("gids/0", "fe80:0000:0000:0000:9ceb:04ff:feff:6410\n"),
            ("gids/1", "0000:0000:0000:0000:0000:ffff:0a08:0001\n"),
            ("gids/2", NO_GID),
            ("gid_attrs/types/0", "RoCE v2\n"),
            ("gid_attrs/types/1", "RoCE v2\n"),
            ("gid_attrs/ndevs/0", "dum1\n"),
            ("gid_attrs/ndevs/1", "dum1\n"),
        ],
    );
    tree = port(tree, "rxe2", 1, &DOWN);
    port(tree, "rxe2", 1, &[("gids/0", NO_GID)])
}

/// siw0 on dum0 (10.9.0.1 and fd09::1); `ndev` is whether the kernel names the interface.
pub(crate) fn siw(tree: Tree, ndev: bool) -> Tree {
    let tree = tree
        .file("sys/class/infiniband/siw0/node_type", "4: RNIC\n")
        .file("sys/class/infiniband_verbs/uverbs0/ibdev", "siw0\n")
        .file("sys/class/net/dum0/mtu", "1500\n")
        .file("sys/class/net/dum0/address", "7a:49:fe:92:fe:72\n")
        .file("sys/class/net/lo/address", "00:00:00:00:00:00\n")
        .address("lo", "127.0.0.1")
        .address("dum0", "10.9.0.1")
        .address("dum0", "fd09::1")
        .address("dum0", "fe80::7849:feff:fe92:fe72");
    let tree = port(tree, "siw0", 1, &ACTIVE);
    let tree = port(
        tree,
        "siw0",
        1,
        &[
            ("gids/0", "7a49:fe92:fe72:0000:0000:0000:0000:0000\n"),
            ("gid_attrs/types/0", "IB/RoCE v1\n"),
        ],
    );
    if ndev {
        port(tree, "siw0", 1, &[("gid_attrs/ndevs/0", "dum0\n")])
    } else {
        tree
    }
}

/// A card of two ports: one with 10.1.0.7 and jumbo frames, one without a cable.
pub(crate) fn mlx5(tree: Tree) -> Tree {
    let function = "sys/class/infiniband/mlx5_0";
    let tree = tree
        .files(
            function,
            &[
                ("node_type", "1: CA\n"),
                ("fw_ver", "16.35.3006\n"),
                ("device/net/ens1f0np0/dev_port", "0\n"),
                ("device/net/ens1f1np1/dev_port", "1\n"),
            ],
        )
        .file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
        .file("sys/class/net/ens1f0np0/mtu", "9000\n")
        .file("sys/class/net/ens1f1np1/mtu", "1500\n")
        .address("ens1f0np0", "10.1.0.7");
    let tree = port(tree, "mlx5_0", 1, &ACTIVE);
    let tree = port(
        tree,
        "mlx5_0",
        1,
        &[
            ("rate", "100 Gb/sec (4X EDR)\n"),
            ("gids/0", "fe80:0000:0000:0000:ba59:9fff:fe01:0203\n"),
            ("gids/1", "fe80:0000:0000:0000:ba59:9fff:fe01:0203\n"),
            ("gids/2", "0000:0000:0000:0000:0000:ffff:0a01:0007\n"),
            ("gids/3", "0000:0000:0000:0000:0000:ffff:0a01:0007\n"),
            ("gids/4", NO_GID),
            ("gid_attrs/types/0", "IB/RoCE v1\n"),
            ("gid_attrs/types/1", "RoCE v2\n"),
            ("gid_attrs/types/2", "IB/RoCE v1\n"),
            ("gid_attrs/types/3", "RoCE v2\n"),
            ("gid_attrs/ndevs/0", "ens1f0np0\n"),
            ("gid_attrs/ndevs/2", "ens1f0np0\n"),
        ],
    );
    let tree = port(tree, "mlx5_0", 2, &DOWN);
    port(tree, "mlx5_0", 2, &[("gids/0", NO_GID)])
}

/// A port on an InfiniBand fabric, with IP over InfiniBand at 10.2.0.7.
pub(crate) fn infiniband(tree: Tree) -> Tree {
    let tree = tree
        .files(
            "sys/class/infiniband/ibp1s0",
            &[
                ("node_type", "1: CA\n"),
                ("fw_ver", "20.31.1014\n"),
                ("device/net/ib0/dev_port", "0\n"),
            ],
        )
        .file("sys/class/net/ib0/mtu", "2044\n")
        .address("ib0", "10.2.0.7");
    let tree = port(tree, "ibp1s0", 1, &ACTIVE);
    port(
        tree,
        "ibp1s0",
        1,
        &[
            ("link_layer", "InfiniBand\n"),
            ("rate", "200 Gb/sec (4X HDR)\n"),
            ("gids/0", "fe80:0000:0000:0000:1070:fd03:0012:3456\n"),
        ],
    )
}

/// The rest of a machine on which nothing is to mend: modules, device files, limits.
pub(crate) fn well(tree: Tree) -> Tree {
    let mut tree = tree
        .file("proc/sys/kernel/osrelease", "6.12.0\n")
        .file("proc/sys/kernel/io_uring_disabled", "0\n")
        .file("proc/self/status", "CapEff:\t0000000000000000\n")
        .file("proc/sys/net/ipv4/tcp_congestion_control", "cubic\n")
        .file(
            "proc/sys/net/ipv4/tcp_allowed_congestion_control",
            "reno cubic\n",
        )
        .file(
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "0\n",
        )
        .file(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        )
        .memlock("unlimited");
    for module in ["rdma_cm", "ib_uverbs", "rdma_ucm"] {
        tree = tree.file(&format!("sys/module/{module}/refcnt"), "0\n");
    }
    for file in ["fuse", "loop-control", "infiniband/rdma_cm"] {
        tree = tree.file(&format!("dev/{file}"), "");
    }
    for number in 0..3 {
        tree = tree.file(&format!("dev/infiniband/uverbs{number}"), "");
    }
    tree
}
