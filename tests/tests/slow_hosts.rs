//! Hosts over NVMe/TCP that go on so slowly that it helps nobody, or with something else: what
//! their commands hold comes free as if they had stopped. And one that takes no zeroes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use capstan_nvme_proto::command::{Flush, IoCommand, LbaRange, Read, Write};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::tcp::setup::Digests;
use capstan_tests::attack::file_target::{BUSY, FileTarget, PRESSED};
use capstan_tests::program::{Daemon, own_address};
use capstan_tests::raw_tcp::{RawHost, capsule, sgl};
use capstan_tests::tcp_host::{Data, TcpHost};

const MIB: u32 = 1 << 20;
const LBA_BYTES: u32 = 4096;
/// More than there are buffers.
const HOLDERS: u8 = 4;
/// Entries of a queue of theirs, and commands of 1 MiB.
const ENTRIES: u16 = 32;
const LARGE: u16 = 30;

fn mebibyte(n: u16) -> LbaRange {
    let nlb = MIB / LBA_BYTES;
    LbaRange {
        slba: u64::from(n) * u64::from(nlb),
        nlb,
    }
}

fn write(n: u16) -> Sqe {
    IoCommand::Write(Write::new(1, mebibyte(n))).encode(n, sgl(MIB, false))
}

fn read(n: u16) -> Sqe {
    IoCommand::Read(Read::new(1, mebibyte(n))).encode(n, sgl(MIB, false))
}

fn flush() -> Sqe {
    IoCommand::Flush(Flush { nsid: 1 }).encode(99, Sgl::EMPTY)
}

/// What a host does while its commands of 1 MiB hold buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// It sends a byte of the data of its first write now and then.
    Drips,
    /// It sends a Flush now and then, and no data.
    Flushes,
    /// It takes no data of its reads, and sends a byte of a capsule now and then.
    TakesNothing,
}

/// Does it until the target ends the connection.
fn go_on_slowly(mut stream: TcpStream, does: Does) {
    let flush = capsule(&flush(), &[]);
    // Longer than any test goes on.
    for at in 0..600 {
        let bytes = match does {
            Does::Drips => Some(&[7_u8][..]),
            Does::Flushes => Some(flush.as_slice()),
            // All of it but its last byte.
            Does::TakesNothing => flush.get(at..=at).filter(|_| at + 1 < flush.len()),
        };
        let sent = bytes.map(|bytes| stream.write_all(bytes));
        if !matches!(sent, Some(Ok(()))) {
            return;
        }
        // As slow as it goes on.
        thread::sleep(Duration::from_millis(300));
    }
}

/// Hosts together hold all buffers, and go on in a way that gives none of them back: they are ended
/// as those are that do not go on at all.
fn others_have_their_buffers(does: Does, complaint: &str) {
    let target = FileTarget::start(3);
    let mut other = TcpHost::connect(target.at, 99, Digests::empty(), 32);
    let holders: Vec<_> = (1..=HOLDERS)
        .map(|number| {
            let host = RawHost::connect(target.at, Ipv4Addr::LOCALHOST, number, ENTRIES);
            let RawHost { admin, mut io } = host.expect("connects");
            for n in 0..LARGE {
                let sqe = match does {
                    Does::TakesNothing => read(n),
                    Does::Drips | Does::Flushes => write(n),
                };
                io.send(&sqe, &[]).expect("sent");
            }
            if does == Does::Drips {
                io.begin_data().expect("an R2T");
            }
            let stream = io.stream.try_clone().expect("a descriptor");
            let goes_on = thread::spawn(move || go_on_slowly(stream, does));
            (admin, io, goes_on)
        })
        .collect();
    let begin = Instant::now();
    let wanted = IoCommand::Read(Read::new(1, mebibyte(0))).encode(0, Sgl::EMPTY);
    let (cqe, _) = other.io.run(wanted, Data::In(MIB));
    let took = begin.elapsed();
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    assert!(
        took < 4 * PRESSED,
        "{took:?} for 1 MiB beside hosts: {does:?}"
    );
    target.wait_for_log(&[complaint, "at most 2 s while other hosts wait for buffers"]);
    for (admin, io, goes_on) in holders {
        let _ = io.stream.shutdown(Shutdown::Both);
        drop((admin, io));
        goes_on.join().expect("it ends with its connection");
    }
    drop(other);
    assert!(target.daemon.stop().success());
}

#[test]
fn data_that_comes_byte_by_byte_is_no_headway() {
    others_have_their_buffers(Does::Drips, "that the host was asked for (R2T)");
}

#[test]
fn other_commands_are_no_headway_of_data_that_is_asked_for() {
    others_have_their_buffers(Does::Flushes, "that the host was asked for (R2T)");
}

#[test]
fn a_capsule_that_comes_byte_by_byte_is_no_headway_of_data_to_take() {
    others_have_their_buffers(
        Does::TakesNothing,
        "the host took less than 256 KiB of its data and responses",
    );
}

/// The data of a write of an old association comes byte by byte: it has 2 s, and not the minute
/// after which a new association gives up.
#[test]
fn a_new_association_does_not_wait_for_data_that_comes_byte_by_byte() {
    let at = own_address();
    let daemon = Daemon::start("ram:64MiB", LBA_BYTES, at);
    let host = RawHost::connect(at, Ipv4Addr::LOCALHOST, 1, 32).expect("connects");
    let RawHost { admin, mut io } = host;
    io.send(&write(0), &[]).expect("sent");
    io.begin_data().expect("an R2T");
    let mut stream = io.stream.try_clone().expect("a descriptor");
    let goes_on = thread::spawn(move || go_on_slowly(io.stream, Does::Drips));
    let begin = Instant::now();
    let new = TcpHost::connect(at, 1, Digests::empty(), 32);
    let waited = begin.elapsed();
    assert!(waited < 4 * PRESSED, "{waited:?}");
    // The end of the connection comes to its host.
    stream.set_read_timeout(Some(BUSY)).expect("a time above 0");
    let end = stream.read(&mut [0; 64]);
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    goes_on.join().expect("it ends with its connection");
    daemon.wait_for_log(&[
        "1 MiB of data that the host was asked for (R2T) was missing",
        "while a new association of the host waits for it",
    ]);
    drop((new, admin));
    assert!(daemon.stop().success());
}

/// Reads of a null namespace take no buffers, and their data is not copied where much is to be sent
/// already: a host that takes nothing has as many commands outstanding as its queue has entries,
/// and ends with one more.
#[test]
fn a_host_that_takes_no_zeroes_has_as_many_commands_as_its_queue_has_entries() {
    let at = own_address();
    let daemon = Daemon::start("null:1GiB", LBA_BYTES, at);
    let host = RawHost::connect(at, Ipv4Addr::LOCALHOST, 1, 128).expect("connects");
    let RawHost { admin, mut io } = host;
    let range = LbaRange { slba: 0, nlb: 1 };
    let read = IoCommand::Read(Read::new(1, range)).encode(7, sgl(LBA_BYTES, false));
    let reads = capsule(&read, &[]).repeat(16);
    // What the kernel has of 4 KiB each beside them is a few MiB.
    let ends = (0..1024).any(|_| {
        let sent = io.stream.write_all(&reads);
        // So that the target is not behind: it would count commands that it has not looked at.
        thread::sleep(Duration::from_millis(5));
        sent.is_err()
    });
    assert!(
        ends,
        "16,384 commands are outstanding in a queue of 128 entries"
    );
    daemon.wait_for_log(&["outstanding commands", "no more than the queue has entries"]);
    drop((admin, io));
    assert!(daemon.stop().success());
}
