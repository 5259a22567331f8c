//! A capsule of which a part has arrived when its host connects anew: the rest is waited for, so
//! that it never lands behind a newer write, or its connection ends.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use capstan_nvme_proto::command::{IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_tests::attack::{Stranger, connect_capsule, fpdu};
use capstan_tests::program::{Daemon, own_address};
use capstan_tests::raw_tcp::{RawHost, capsule, sgl};
use capstan_tests::tcp_host::{Data, TcpHost};
use capstan_tests::wire_host::connect_data;
use zerocopy::IntoBytes;

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const LBA_BYTES: usize = 4096;
const FIRST: LbaRange = LbaRange { slba: 0, nlb: 1 };
/// Beside what an in-capsule write of one LBA and its heads take.
const NO_SQE: usize = LBA_BYTES + 40;

/// The socket of an old association's I/O queue, and the bytes of a write of ones.
struct Old {
    stream: TcpStream,
    bytes: Vec<u8>,
    /// Another connection of the association.
    _admin: TcpStream,
}

impl Old {
    /// Sends its bytes but for the last `missing` ones, which are returned.
    fn send_but(mut self, missing: usize) -> (Self, Vec<u8>) {
        let late = self.bytes.split_off(self.bytes.len() - missing);
        self.stream.write_all(&self.bytes).expect("sent");
        (self, late)
    }
}

fn write(data: &[u8]) -> Sqe {
    let len_bytes = u32::try_from(data.len()).expect("an LBA");
    IoCommand::Write(Write::new(1, FIRST)).encode(7, sgl(len_bytes, true))
}

/// Over NVMe/TCP.
fn over_tcp(at: SocketAddr) -> Old {
    let RawHost { admin, io } = RawHost::connect(at, LOCAL, 1, 32).expect("connects");
    let data = [1; LBA_BYTES];
    Old {
        stream: io.stream,
        bytes: capsule(&write(&data), &data),
        _admin: admin.stream,
    }
}

/// Over user-space iWARP, without shared memory. In `two` FPDUs, the message is cut in the middle.
fn over_iwarp(at: SocketAddr, two: bool) -> Old {
    let mut parameters = connect_data(1);
    let mut admin = Stranger::connect(at, LOCAL, 0).expect("accepted");
    admin
        .send(&connect_capsule(0, 0, 0, &parameters, false))
        .expect("sent");
    // An FPDU of 2 + 18 bytes of heads, and a CQE whose first word has the CNTLID.
    let mut response = [0; 40];
    admin.stream.read_exact(&mut response).expect("a response");
    parameters.cntlid = u16::from_le_bytes([response[20], response[21]]);
    admin.enable().expect("sent");
    let mut io = Stranger::connect(at, LOCAL, 1).expect("accepted");
    io.send(&connect_capsule(0, 1, 0, &parameters, false))
        .expect("sent");
    assert!(io.hears(), "its Connect is answered");
    let data = [1; LBA_BYTES];
    let message = [write(&data).as_bytes(), &data].concat();
    let bytes = if two {
        let (first, second) = message.split_at(64);
        let mut first = fpdu(2, first);
        // RFC 5041 §4.1: without the flag Last.
        first[2] &= !0x40;
        let mut second = fpdu(2, second);
        // The message offset, behind length, control, STag, queue number and MSN.
        second[16..20].copy_from_slice(&64_u32.to_be_bytes());
        [first, second].concat()
    } else {
        fpdu(2, &message)
    };
    Old {
        stream: io.stream,
        bytes,
        _admin: admin.stream,
    }
}

/// The same host once more, over NVMe/TCP; returns when its controller is ready.
fn again(at: SocketAddr) -> TcpHost {
    TcpHost::connect(at, 1, Digests::empty(), 32)
}

fn write_two(host: &mut TcpHost) {
    let write = IoCommand::Write(Write::new(1, FIRST)).encode(0, Sgl::EMPTY);
    let (cqe, _) = host.io.run(write, Data::InCapsule(&[2; LBA_BYTES]));
    assert_eq!(cqe.status(), Status::SUCCESS);
}

fn read_first(host: &mut TcpHost) -> u8 {
    let read = IoCommand::Read(Read::new(1, FIRST)).encode(0, Sgl::EMPTY);
    let (cqe, data) = host.io.run(read, Data::In(4096));
    assert_eq!(cqe.status(), Status::SUCCESS);
    data[0]
}

/// Whether the target ends the connection of the socket.
fn has_ended(mut stream: &TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 256]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// `missing` bytes of a write come when its host has begun to connect anew.
fn comes_late(old: fn(SocketAddr) -> Old, missing: usize) {
    let at = own_address();
    let daemon = Daemon::start("ram:64MiB", 4096, at);
    let (
        Old {
            mut stream, _admin, ..
        },
        late,
    ) = old(at).send_but(missing);
    let comes = Arc::new(AtomicBool::new(false));
    let comes_now = Arc::clone(&comes);
    let old = thread::spawn(move || {
        // Time for a controller that does not wait to become ready.
        thread::sleep(Duration::from_millis(500));
        comes_now.store(true, Ordering::SeqCst);
        stream.write_all(&late).expect("sent");
        stream
    });
    let mut new = again(at);
    assert!(
        comes.load(Ordering::SeqCst),
        "ready though {missing} bytes of a write of the old association are missing"
    );
    write_two(&mut new);
    let stream = old.join().expect("sent");
    assert_eq!(read_first(&mut new), 2, "the old copy landed behind it");
    drop((new, stream, _admin));
    assert!(daemon.stop().success());
}

/// `missing` bytes of a write never come in time: what comes then goes nowhere.
fn never_comes(old: fn(SocketAddr) -> Old, missing: usize) {
    let at = own_address();
    let daemon = Daemon::start("ram:64MiB", 4096, at);
    let (
        Old {
            mut stream, _admin, ..
        },
        late,
    ) = old(at).send_but(missing);
    let begin = Instant::now();
    let mut new = again(at);
    let waited = begin.elapsed();
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    write_two(&mut new);
    // The connection has ended: nobody takes this.
    let _ = stream.write_all(&late);
    assert!(has_ended(&stream), "it lives on");
    assert_eq!(read_first(&mut new), 2, "the old copy landed behind it");
    daemon.wait_for_log(&[
        "that the host has begun to send was missing for",
        "while a new association of the host waits for it",
    ]);
    drop((new, stream, _admin));
    assert!(daemon.stop().success());
}

#[test]
fn a_pdu_of_which_the_last_byte_is_missing_ends_before_its_host_goes_on() {
    comes_late(over_tcp, 1);
}

#[test]
fn a_pdu_whose_sqe_is_not_whole_ends_before_its_host_goes_on() {
    comes_late(over_tcp, NO_SQE);
}

#[test]
fn an_fpdu_of_which_the_last_byte_is_missing_ends_before_its_host_goes_on() {
    comes_late(|at| over_iwarp(at, false), 1);
}

#[test]
fn an_fpdu_whose_sqe_is_not_whole_ends_before_its_host_goes_on() {
    comes_late(|at| over_iwarp(at, false), NO_SQE);
}

/// The first FPDU has come as a whole: SQE without data.
#[test]
fn a_message_of_which_an_fpdu_is_missing_ends_before_its_host_goes_on() {
    // The second one: heads, data and CRC.
    comes_late(|at| over_iwarp(at, true), 20 + LBA_BYTES + 4);
}

#[test]
fn a_pdu_whose_rest_never_comes_ends_its_connection() {
    never_comes(over_tcp, 1);
}

#[test]
fn an_fpdu_whose_rest_never_comes_ends_its_connection() {
    never_comes(|at| over_iwarp(at, false), NO_SQE);
}
