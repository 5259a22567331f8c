//! Names, addresses and configurations of tests.

use alloc::collections::BTreeSet;
use core::net::SocketAddr;

use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::sgl::Sgl;

use super::{GEOMETRY, PORT};
use crate::{
    BackendId, HostPolicy, NamespaceConfig, NamespaceIdentity, Persistence, QueueSizes,
    SubsystemConfig, Transport,
};

/// The NQN of the subsystem of [`Bench::new`](super::Bench::new).
#[must_use]
pub fn subnqn() -> Nqn {
    nqn("nqn.2024-01.org.example:volume")
}

/// The NQN of host `n`.
#[must_use]
pub fn host(n: u8) -> Nqn {
    nqn(&alloc::format!("nqn.2024-01.org.example:host{n}"))
}

/// An NQN from a text that is one.
///
/// # Panics
/// When it is none.
#[must_use]
#[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
pub fn nqn(text: &str) -> Nqn {
    Nqn::new(text).expect("an NQN")
}

/// A socket address from a text that is one.
///
/// # Panics
/// When it is none.
#[must_use]
#[expect(clippy::expect_used, reason = "a mistake in a test is to stop it")]
pub fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// What the connection request of a queue of `entries` announces.
#[must_use]
pub fn announced(qid: u16, entries: u16) -> QueueSizes {
    QueueSizes {
        transport: Transport::Rdma,
        qid,
        entries,
        host_receives: entries,
        cntlid: 0,
    }
}

/// The configuration of the subsystem of [`Bench::new`](super::Bench::new).
#[must_use]
pub fn subsystem_config() -> SubsystemConfig {
    SubsystemConfig {
        nqn: subnqn(),
        serial: "SN1".into(),
        model: "Capstan test".into(),
        firmware: "1.0".into(),
        ieee_oui: [0xAA, 0xBB, 0xCC],
        hosts: HostPolicy::Only(BTreeSet::from([host(1), host(2)])),
        ports: BTreeSet::from([PORT]),
        end_older_association: false,
    }
}

/// A namespace that every host of the subsystem sees.
#[must_use]
pub fn namespace_config(nsid: u32) -> NamespaceConfig {
    let [byte, ..] = nsid.to_le_bytes();
    NamespaceConfig {
        nsid,
        backend: BackendId(nsid),
        geometry: GEOMETRY,
        identity: NamespaceIdentity {
            nguid: Some([byte; 16]),
            ..NamespaceIdentity::default()
        },
        anagrpid: 1,
        visible_to: HostPolicy::Any,
        replaces: false,
        persistence: Persistence::None,
    }
}

/// The SGL of a host buffer of `length_bytes`.
#[must_use]
pub fn buffer(length_bytes: u32) -> Sgl {
    Sgl::Keyed {
        address: 0x1000,
        length_bytes,
        rkey: 0x77,
        invalidate: false,
    }
}
