//! The conformance suite on the `verbs` provider, on a machine that has an RDMA device.
//!
//! ```text
//! conformance_verbs IPV4_ADDRESS [IPV6_ADDRESS] [-- LIBTEST_OPTIONS]
//! ```
//!
//! Both ends of each connection are in this process, on the device that owns the address. It is a
//! program and no test of cargo's, as few machines have a device; `scripts/lab.sh conformance`
//! boots ones that have.

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::OnceLock;

use capstan_rdma::conformance::{Behaviour, Fabric, RealClock, Side};
use capstan_rdma::contract::{
    CmEventKind, ConnectionManager, DeviceAttributes, Transport, WcStatus,
};
use capstan_rdma::direct::works_in_kernel;
use capstan_rdma::verbs::{Provider, device_for};
use harness::Variant;

/// The device under test and where it is.
struct Subject {
    v4: IpAddr,
    v6: Option<IpAddr>,
    device: DeviceAttributes,
    /// What is wrong with siw is in tests/lab/README.md.
    siw: bool,
}

static SUBJECT: OnceLock<Subject> = OnceLock::new();

fn subject() -> &'static Subject {
    SUBJECT.get().expect("main sets it before any case runs")
}

struct Verbs {
    /// One provider for each side.
    providers: [Provider; 2],
    clock: RealClock,
}

impl Fabric for Verbs {
    fn manager(&mut self, side: Side) -> Result<Box<dyn ConnectionManager>, String> {
        let provider = match side {
            Side::Active => &self.providers[0],
            Side::Passive => &self.providers[1],
        };
        provider.connection_manager().map_err(|e| e.to_string())
    }

    fn listen_address(&self) -> SocketAddr {
        SocketAddr::new(subject().v4, 0)
    }

    fn listen_address_v6(&self) -> Result<SocketAddr, String> {
        let v6 = subject().v6.ok_or("no IPv6 address was given")?;
        Ok(SocketAddr::new(v6, 0))
    }

    fn behaviour(&self) -> Behaviour {
        behaviour(&subject().device)
    }

    fn now_us(&mut self) -> u64 {
        self.clock.now_us()
    }

    fn pause(&mut self, until_us: u64) {
        self.clock.pause(until_us);
    }
}

/// The drivers whose deviations are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    Rxe,
    Siw,
    Other,
}

impl Driver {
    /// Of a device, which may have any name: software devices describe themselves.
    fn of(device: &str) -> Self {
        let path = format!("/sys/class/infiniband/{device}/node_desc");
        match std::fs::read_to_string(path).unwrap_or_default().trim() {
            "rxe" => Self::Rxe,
            "Software iWARP stack" => Self::Siw,
            _ => Self::Other,
        }
    }

    /// What it says in place of the status that names an error of its own side.
    fn local_error_stand_ins(self) -> &'static [WcStatus] {
        match self {
            // It moves the queue pair to the error state first, which makes a failed send a flush
            // (rxe_requester), and has one status for whatever is wrong with a receive
            // (RESPST_ERR_MALFORMED_WQE in rxe_receiver).
            Self::Rxe => &[WcStatus::WrFlushError, WcStatus::LocalQpOperationError],
            // One status for whatever goes wrong with a request (siw_qp_sq_process), or a receive
            // (siw_rdmap_complete).
            Self::Siw => &[WcStatus::LocalQpOperationError, WcStatus::GeneralError],
            Self::Other => &[],
        }
    }
}

/// What the transport allows.
fn behaviour(device: &DeviceAttributes) -> Behaviour {
    let driver = Driver::of(&device.name);
    let common = Behaviour {
        local_error_stand_ins: driver.local_error_stand_ins(),
        // Emulated machines are slow, and InfiniBand's retries take their time.
        patience_us: 10_000_000,
        ..Behaviour::FULL
    };
    match device.transport {
        // InfiniBand specification: private data of REQ (less the IP addressing annex), REP, REJ.
        Transport::InfiniBand | Transport::Loopback => Behaviour {
            connect_private_data_bytes_max: 56,
            accept_private_data_bytes_max: 196,
            reject_private_data_bytes_max: 148,
            flush_needs_cm_poll: true,
            ..common
        },
        Transport::Iwarp => Behaviour {
            // What siw takes, see `rdma/src/verbs/manager`.
            connect_private_data_bytes_max: 251,
            accept_private_data_bytes_max: 251,
            reject_private_data_bytes_max: 251,
            raises_read_depths: driver == Driver::Siw,
            receiver_not_ready: capstan_rdma::conformance::ReceiverNotReady::Ends,
            names_remote_errors: false,
            passive_may_send_first: false,
            others_overtake_reads: true,
            serves_reads_faithfully: !subject().siw,
            ..common
        },
    }
}

fn fabric() -> Box<dyn Fabric> {
    let provider = || Provider::new().expect("main has made one already");
    Box::new(Verbs {
        providers: [provider(), provider()],
        clock: RealClock::new(),
    })
}

/// Resolves the machine's own address to get at its device.
fn attributes(addr: IpAddr) -> Result<DeviceAttributes, String> {
    let provider = Provider::new().map_err(|e| e.to_string())?;
    let mut cm = provider.connection_manager().map_err(|e| e.to_string())?;
    let clock = RealClock::new();
    let id = cm
        .resolve(SocketAddr::new(addr, 9), None, 5_000_000, clock.now_us())
        .map_err(|e| e.to_string())?;
    loop {
        match cm.poll(clock.now_us()) {
            Some(event) if matches!(event.kind, CmEventKind::Resolved) => break,
            Some(event) => return Err(format!("resolving {addr} led to {:?}", event.kind)),
            None => clock.pause(u64::MAX),
        }
    }
    let device = cm.device(id).ok_or("a resolved address without a device")?;
    Ok(device.attributes().clone())
}

fn set_up(addresses: &[String]) -> Result<(), String> {
    let parse = |text: &String| text.parse::<IpAddr>().map_err(|e| format!("{text}: {e}"));
    let mut addresses = addresses.iter().map(parse);
    let v4 = addresses.next().ok_or("which address?")??;
    let v6 = addresses.next().transpose()?;
    let device = attributes(v4)?;
    let found = device_for(v4)?;
    eprintln!("{found:?}: {device:?}");
    let software = Driver::of(&device.name) != Driver::Other;
    let in_kernel = works_in_kernel(&device);
    if in_kernel != software {
        return Err(format!(
            "the provider says {} to whether the kernel does the work of {}, which describes itself as {} device: see `works_in_kernel` in rdma/src/direct.rs",
            in_kernel,
            device.name,
            if software {
                "a software"
            } else {
                "no software"
            },
        ));
    }
    let siw = found.completes_early;
    let subject = Subject {
        v4,
        v6,
        device,
        siw,
    };
    let set = SUBJECT.set(subject);
    set.map_err(|_| "set up twice".to_owned())
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .init();
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let addresses: Vec<String> = arguments.by_ref().take_while(|text| text != "--").collect();
    if let Err(why) = set_up(&addresses) {
        eprintln!("{program} IPV4_ADDRESS [IPV6_ADDRESS] [-- LIBTEST_OPTIONS]: {why}");
        return ExitCode::FAILURE;
    }
    let device = &subject().device;
    // A device puts every message into a receive.
    let mut not_applicable = vec!["receive::a_lent_message"];
    if subject().v6.is_none() {
        not_applicable.push("connection::ipv6");
    }
    if !device.memory_windows || !device.send_with_invalidate {
        not_applicable.extend(["windows::", "exchange::"]);
    }
    if device.transport == Transport::Iwarp {
        not_applicable.extend([
            "receive::send_before_the_receive_is_posted",
            "receive::empty_shared_receive_queue",
        ]);
    }
    if subject().siw {
        not_applicable.push("protection::read_without_access");
    }
    let variant = Variant {
        name: "verbs",
        fabric,
        not_applicable,
    };
    harness::main(vec![variant], std::iter::once(program).chain(arguments))
}
