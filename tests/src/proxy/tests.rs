use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{Direction, Flow, Proxy, abort};

/// A proxy, and the two ends of its first connection: host, target.
fn connection() -> (Proxy, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    let host = TcpStream::connect(proxy.address).unwrap();
    let (target, _) = listener.accept().unwrap();
    proxy.wait_for_connections(1);
    (proxy, host, target)
}

fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_held_comes_after_the_host_has_cut_the_connection_and_then_its_end() {
    let (proxy, mut host, mut target) = connection();
    host.write_all(b"before ").unwrap();
    assert_eq!(read(&mut target, 7), b"before ");
    proxy.set(0, Direction::ToTarget, Flow::Hold);
    host.write_all(b"old").unwrap();
    proxy.wait_for_kept_bytes(0, Direction::ToTarget, 3);
    target.write_all(b"answer").unwrap();
    assert_eq!(read(&mut host, 6), b"answer", "the other direction goes on");
    abort(&host);
    drop(host);
    proxy.wait_for_end(0, Direction::ToTarget);
    target.set_nonblocking(true).unwrap();
    let error = target.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    target.set_nonblocking(false).unwrap();
    proxy.set_all(Direction::ToTarget, Flow::Pass);
    assert_eq!(read(&mut target, 3), b"old");
    let error = target.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn delays_crumbs_and_both_kinds_of_end() {
    let (proxy, mut host, mut target) = connection();
    proxy.set(
        0,
        Direction::ToTarget,
        Flow::Delay(Duration::from_millis(50)),
    );
    let start = Instant::now();
    host.write_all(b"late").unwrap();
    assert_eq!(read(&mut target, 4), b"late");
    assert!(start.elapsed() >= Duration::from_millis(50));
    proxy.set(0, Direction::ToHost, Flow::Crumble);
    target.write_all(b"crumbs").unwrap();
    assert_eq!(read(&mut host, 6), b"crumbs");
    proxy.half_close(0, Direction::ToHost);
    assert_eq!(host.read(&mut [0]).unwrap(), 0);
    host.write_all(b"more").unwrap();
    assert_eq!(read(&mut target, 4), b"more", "the other direction goes on");
    host.shutdown(Shutdown::Write).unwrap();
    assert_eq!(target.read(&mut [0]).unwrap(), 0);
    proxy.wait_until_passed(0, Direction::ToTarget);

    let (proxy, mut host, mut target) = connection();
    host.write_all(b"MPA ID Req Frame\xff").unwrap();
    assert_eq!(read(&mut target, 17)[16], 0xfe, "no shared memory");
    proxy.reset(0);
    for end in [&mut host, &mut target] {
        let error = end.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    proxy.refuse_new(true);
    let mut refused = TcpStream::connect(proxy.address).unwrap();
    let error = refused.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.connections(), 1);
}
