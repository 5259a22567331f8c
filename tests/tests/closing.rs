//! Connections over NVMe/TCP that the target has ended and whose hosts do not close them: few of
//! them keep a socket, and not for long.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use capstan_tests::attack::tcp;
use capstan_tests::process::{allow_many_descriptors, descriptors_of};
use capstan_tests::program::{Daemon, own_address};
use capstan_tests::raw_tcp::ICREQ;

const CONNECTIONS: u16 = 2_000;
/// As docs/resources.md says, with what else the target may have of these connections.
const CLOSING_MAX: usize = 1_024 + 300;
/// One second, and what a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(4);

/// A connection that the target ends with a TermReq.
fn violates(at: std::net::SocketAddr, number: u16) -> TcpStream {
    let [high, low] = number.to_be_bytes();
    let mut stream = tcp(at, Ipv4Addr::new(127, 9, high, low.max(1))).expect("taken");
    let bytes = [&ICREQ[..], &[0xFF; 128]].concat();
    // It may have made room already.
    let _ = stream.write_all(&bytes);
    stream
}

#[test]
fn connections_that_were_ended_keep_few_descriptors_for_a_second() {
    allow_many_descriptors();
    let at = own_address();
    let daemon = Daemon::start("ram:64MiB", 4096, at);
    let before = descriptors_of(daemon.pid());
    let mut most = 0;
    let mut begin = Instant::now();
    let held: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let stream = violates(at, number);
            if number % 50 == 0 {
                most = most.max(descriptors_of(daemon.pid()).saturating_sub(before));
            }
            begin = Instant::now();
            stream
        })
        .collect();
    most = most.max(descriptors_of(daemon.pid()).saturating_sub(before));
    assert!(most <= CLOSING_MAX, "{most} descriptors");
    loop {
        let left = descriptors_of(daemon.pid()).saturating_sub(before);
        if left < 16 {
            break;
        }
        let waited = begin.elapsed();
        assert!(waited < PATIENCE, "{left} descriptors after {waited:?}");
        thread::sleep(Duration::from_millis(10));
    }
    drop(held);
    assert!(daemon.stop().success());
}

/// What comes behind the end is read, so that the TermReq can be, but not without end.
#[test]
fn what_comes_behind_the_end_is_not_read_at_length() {
    const MOST: usize = 32 << 20;
    let at = own_address();
    let daemon = Daemon::start("ram:64MiB", 4096, at);
    let mut stream = violates(at, 1);
    let begin = Instant::now();
    let bytes = vec![0xFF; 64 << 10];
    let mut sent = 0;
    while stream.write_all(&bytes).is_ok() {
        sent += bytes.len();
        // What the kernels of both ends take, beside the mebibyte that the target reads.
        assert!(sent < MOST, "it reads on after {:?}", begin.elapsed());
    }
    drop(stream);
    assert!(daemon.stop().success());
}
