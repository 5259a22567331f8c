//! Attacks over NVMe/TCP on a target that serves both transports, and what a permitted host over
//! RDMA sees of them. `CAPSTAN_ATTACKS=full` makes the bounds those of `docs/resources.md`.

use std::io::Write as _;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use capstan_nvme_proto::command::{Abort, AdminCommand, IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_tests::attack::file_target::{
    PRESSED, attackers, pause, withstand, withstand_strangers,
};
use capstan_tests::tcp_host::{Data, TcpHost};

const MIB: u32 = 1 << 20;
/// Large commands of a host; its memory is 8 MiB.
const LARGE: u32 = 6;
/// Of an Admin queue.
const ENTRIES: u16 = 32;
/// As many as a controller keeps.
const EVENT_REQUESTS: u16 = 4;
/// ICReq PDU (NVMe/TCP transport specification 1.1, section 3.6.2.2).
const ICREQ: [u8; 128] = {
    let mut bytes = [0; 128];
    (bytes[2], bytes[4]) = (128, 128);
    bytes
};

fn mebibyte(n: u32) -> LbaRange {
    LbaRange {
        slba: u64::from(n) * u64::from(MIB / 4096),
        nlb: MIB / 4096,
    }
}

fn write(n: u32) -> Sqe {
    IoCommand::Write(Write::new(1, mebibyte(n))).encode(0, Sgl::EMPTY)
}

fn read(n: u32) -> Sqe {
    IoCommand::Read(Read::new(1, mebibyte(n))).encode(0, Sgl::EMPTY)
}

/// The hosts of the attack from this address, as far as the target lets them in.
fn hosts(at: SocketAddr, source: IpAddr, digests: Digests) -> Vec<TcpHost> {
    let IpAddr::V4(source) = source else {
        return Vec::new();
    };
    let connect = |number| TcpHost::connect_from(source, at, number, digests, ENTRIES);
    attackers()
        .filter_map(|number| catch_unwind(AssertUnwindSafe(|| connect(number))).ok())
        .collect()
}

#[test]
fn connections_that_send_nothing_behind_their_icreq_are_withstood() {
    withstand_strangers("ICReq and no more", |stream| stream.write_all(&ICREQ));
}

#[test]
fn half_an_icreq_is_withstood() {
    withstand_strangers("half an ICReq", |stream| stream.write_all(&ICREQ[..60]));
}

#[test]
fn connections_that_are_half_closed_behind_their_icreq_are_withstood() {
    withstand_strangers("ICReq and half-closed", |stream| {
        stream.write_all(&ICREQ)?;
        stream.shutdown(Shutdown::Write)
    });
}

#[test]
fn pdus_of_no_kind_are_withstood() {
    withstand_strangers("PDUs of no kind", |stream| {
        stream.write_all(&ICREQ)?;
        stream.write_all(&[0xFF; 4096])
    });
}

#[test]
fn r2t_that_many_hosts_do_not_answer_is_withstood() {
    withstand("unanswered R2T", |at, source, stop| {
        let bytes = vec![7; MIB as usize];
        while !stop.load(Ordering::Relaxed) {
            let mut hosts = hosts(at, source, Digests::empty());
            for host in &mut hosts {
                for n in 0..LARGE {
                    host.io.post(write(n), Data::Out(&bytes));
                }
            }
            // Long enough that the target ends those that hold what others wait for.
            pause(stop, PRESSED * 2);
        }
    });
}

#[test]
fn data_that_many_hosts_do_not_take_is_withstood() {
    withstand("data not taken", |at, source, stop| {
        while !stop.load(Ordering::Relaxed) {
            let mut hosts = hosts(at, source, Digests::all());
            for host in &mut hosts {
                for n in 0..LARGE {
                    host.io.post(read(n), Data::In(MIB));
                }
            }
            pause(stop, PRESSED * 2);
        }
    });
}

#[test]
fn admin_queues_full_of_event_requests_and_aborts_are_withstood() {
    withstand("event requests and aborts", |at, source, stop| {
        let event = AdminCommand::AsynchronousEventRequest.encode(0, Sgl::EMPTY);
        let abort = AdminCommand::Abort(Abort { sqid: 1, cid: 7 }).encode(0, Sgl::EMPTY);
        while !stop.load(Ordering::Relaxed) {
            let mut hosts = hosts(at, source, Digests::empty());
            for host in &mut hosts {
                for _ in 0..EVENT_REQUESTS {
                    host.admin.post(event, Data::None);
                }
            }
            // The identifiers of what is outstanding are not used again.
            for _ in 0..ENTRIES - 2 * EVENT_REQUESTS {
                for host in &mut hosts {
                    host.admin.run(abort, Data::None);
                }
            }
        }
    });
}

/// Hosts that go in the midst of everything, and come again at once.
#[test]
fn hosts_that_come_and_go_are_withstood() {
    withstand("hosts that come and go", |at, source, stop| {
        let bytes = vec![7; MIB as usize];
        while !stop.load(Ordering::Relaxed) {
            let mut hosts = hosts(at, source, Digests::empty());
            for host in &mut hosts {
                host.io.post(write(0), Data::Out(&bytes));
                host.io.post(read(1), Data::In(MIB));
                host.io.event();
            }
        }
    });
}
