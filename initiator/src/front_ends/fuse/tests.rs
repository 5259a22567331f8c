//! The file behind a socket that stands for `/dev/fuse`, and behind a real mount.

mod mounted;

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::OwnedFd;

use capstan_nvme_proto::identify::Csi;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use zerocopy::{FromBytes, IntoBytes};

use super::file_system;
use super::front_end::FuseFrontEnd;
use super::wire::{
    FallocateIn, InHeader, NOTIFY_STORE, Opcode, OutHeader, ReadIn, StoreOut, WRITE_HEAD_BYTES,
    WriteIn, WriteOut,
};
use crate::front_end::FrontEnd;
use crate::front_ends::block::Geometry;
use crate::front_ends::fake::FakeQueue;
use crate::front_ends::unwritten::SharedUnwritten;
use crate::host::NamespaceInfo;

const MEMORY_BYTES: usize = 8 << 20;
const GEOMETRY: Geometry = Geometry {
    nsid: 1,
    size_bytes: 4 << 20,
    lba_bytes: 512,
    read_only: false,
    write_zeroes: true,
    discard: true,
    holes: false,
};

/// A front end on a socket: requests go in at the other end, replies come out.
struct Bench {
    kernel: File,
    front_end: FuseFrontEnd,
    queue: FakeQueue,
}

fn front_end(device: File, queue: &FakeQueue) -> FuseFrontEnd {
    let (_, life) = nix::unistd::pipe().unwrap();
    let fs = file_system::FileSystem::new("volume", queue.geometry, (0, 0), 0);
    FuseFrontEnd::new(device, fs, queue.geometry, queue.pool(), life).unwrap()
}

impl Bench {
    fn new(geometry: Geometry) -> Self {
        let (kernel, device) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_NONBLOCK,
        )
        .unwrap();
        let mut queue = FakeQueue::new(geometry, MEMORY_BYTES);
        for (at, byte) in queue.data.iter_mut().enumerate() {
            *byte = u8::try_from(at % 241).unwrap();
        }
        Self {
            kernel: File::from(kernel),
            front_end: front_end(File::from(device), &queue),
            queue,
        }
    }

    fn send(&mut self, opcode: Opcode, unique: u64, nodeid: u64, body: &[&[u8]]) {
        let len: usize = body.iter().map(|part| part.len()).sum();
        let header = InHeader {
            len_bytes: u32::try_from(size_of::<InHeader>() + len).unwrap(),
            opcode: opcode.0,
            unique,
            nodeid,
            uid: 0,
            gid: 0,
            pid: 0,
            total_extlen: 0,
            padding: 0,
        };
        let mut slices = vec![IoSlice::new(header.as_bytes())];
        slices.extend(body.iter().map(|part| IoSlice::new(part)));
        let sent = self.kernel.write_vectored(&slices).unwrap();
        assert_eq!(sent, size_of::<InHeader>() + len);
    }

    fn write(&mut self, unique: u64, offset_bytes: u64, data: &[u8]) {
        let write = WriteIn {
            fh: 0,
            offset_bytes,
            size_bytes: u32::try_from(data.len()).unwrap(),
            write_flags: 0,
            lock_owner: 0,
            flags: 0,
            padding: 0,
        };
        self.send(Opcode::WRITE, unique, 2, &[write.as_bytes(), data]);
    }

    fn read(&mut self, unique: u64, offset_bytes: u64, size_bytes: u32) {
        let read = ReadIn {
            fh: 0,
            offset_bytes,
            size_bytes,
            read_flags: 0,
            lock_owner: 0,
            flags: 0,
            padding: 0,
        };
        self.send(Opcode::READ, unique, 2, &[read.as_bytes()]);
    }

    fn fallocate(&mut self, unique: u64, offset_bytes: u64, length_bytes: u64, mode: i32) {
        let fallocate = FallocateIn {
            fh: 0,
            offset_bytes,
            length_bytes,
            mode: u32::try_from(mode).unwrap(),
            padding: 0,
        };
        self.send(Opcode::FALLOCATE, unique, 2, &[fallocate.as_bytes()]);
    }

    /// Takes requests and completes I/O, the last first, until nothing is left to do.
    fn run(&mut self) {
        loop {
            let busy = self.front_end.take_requests(&mut self.queue);
            if !self.queue.pending.is_empty() {
                let done = self.queue.complete(self.queue.pending.len() - 1);
                self.front_end.finish(done.token, &done.result, done.buffer);
            } else if !busy {
                return;
            }
        }
    }

    /// The next reply: unique, errno and data.
    fn reply(&mut self) -> (u64, i32, Vec<u8>) {
        let mut bytes = vec![0; 2 << 20];
        let count = self.kernel.read(&mut bytes).expect("a reply");
        bytes.truncate(count);
        let (header, data) = OutHeader::read_from_prefix(&bytes).unwrap();
        assert_eq!(header.len_bytes as usize, count);
        (header.unique, -header.error, data.to_vec())
    }

    fn assert_nothing_is_held(&self) {
        // The landing place is all that is leased.
        assert_eq!(self.queue.free_bytes(), MEMORY_BYTES - (1 << 20));
    }
}

#[test]
fn writes_of_any_length_land_and_are_read_back() {
    let mut bench = Bench::new(GEOMETRY);
    let mut unique = 0;
    for len in [512_usize, 4096, 65_536, 66_048, 131_072, 4096, 150_016] {
        let data: Vec<u8> = (0..len)
            .map(|at| u8::try_from((at + len) % 199).unwrap())
            .collect();
        unique += 2;
        bench.write(unique, 1024, &data);
        bench.run();
        let (_, errno, out) = bench.reply();
        assert_eq!(errno, 0);
        let out = WriteOut::read_from_bytes(&out).unwrap();
        assert_eq!(out.size_bytes as usize, len);
        assert!(bench.queue.data[1024..1024 + len] == data);
        bench.read(unique + 1, 1024, u32::try_from(len).unwrap());
        bench.run();
        assert!(bench.reply() == (unique + 1, 0, data));
        bench.assert_nothing_is_held();
    }
}

#[test]
fn reads_of_any_range_are_answered_and_writes_past_the_end_refused() {
    let mut bench = Bench::new(GEOMETRY);
    bench.read(1, 700, 1000);
    bench.run();
    let expected = bench.queue.data[700..1700].to_vec();
    assert!(bench.reply() == (1, 0, expected));
    // The end of the volume cuts a read, and beyond there is nothing.
    bench.read(2, GEOMETRY.size_bytes - 100, 4096);
    bench.read(3, GEOMETRY.size_bytes, 4096);
    bench.read(4, u64::MAX, 4096);
    bench.run();
    let mut lens: Vec<_> = (0..3)
        .map(|_| bench.reply())
        .map(|r| (r.0, r.2.len()))
        .collect();
    lens.sort_unstable();
    assert_eq!(lens, [(2, 100), (3, 0), (4, 0)]);
    bench.write(5, GEOMETRY.size_bytes, &[1; 512]);
    bench.write(6, GEOMETRY.size_bytes - 100, &[1; 101]);
    bench.write(7, u64::MAX, &[1; 512]);
    bench.run();
    for unique in 5..8 {
        assert_eq!(bench.reply(), (unique, libc::EINVAL, Vec::new()));
    }
    bench.assert_nothing_is_held();
}

#[test]
fn parts_of_lbas_are_written_without_harm_to_the_rest() {
    let mut bench = Bench::new(GEOMETRY);
    bench.queue.capacity = 3;
    let mut expected = bench.queue.data.clone();
    // Neighbours that share LBAs, as the kernel cuts them, among whole ones.
    let writes = [
        (0, 512),
        (700, 1300),
        (2000, 96),
        (2096, 5),
        (4096, 512),
        (2101, 1995),
    ];
    for (unique, (offset, len)) in (0_u8..).zip(writes) {
        expected[offset..offset + len].fill(unique);
        bench.write(unique.into(), offset as u64, &vec![unique; len]);
    }
    bench.read(6, 0, 8192);
    bench.run();
    let mut replies: Vec<_> = (0..7).map(|_| bench.reply()).collect();
    replies.sort_unstable();
    assert!(replies.iter().all(|(_, errno, _)| *errno == 0));
    assert!(bench.queue.data == expected);
    bench.assert_nothing_is_held();
    // A merge that fails leaves the way free.
    bench.queue.bad_lba = Some(1);
    bench.write(7, 600, &[0; 8]);
    bench.write(8, 2048, &[9; 512]);
    bench.run();
    assert_eq!(bench.reply().1, libc::EIO);
    assert_eq!(bench.reply().1, 0);
    assert_eq!(bench.queue.data[2048..2560], [9; 512]);
    bench.assert_nothing_is_held();
}

#[test]
fn holes_and_zeroes_are_zero_and_sync_is_a_flush() {
    let mut bench = Bench::new(GEOMETRY);
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    bench.fallocate(1, 512, 1024, keep | libc::FALLOC_FL_PUNCH_HOLE);
    bench.fallocate(2, 4096, 512, keep | libc::FALLOC_FL_ZERO_RANGE);
    bench.fallocate(3, 0, 1 << 20, 0);
    bench.fallocate(4, 0, 512, libc::FALLOC_FL_COLLAPSE_RANGE);
    bench.fallocate(5, 1, 512, keep | libc::FALLOC_FL_PUNCH_HOLE);
    bench.run();
    let mut replies: Vec<_> = (0..5).map(|_| bench.reply()).map(|r| (r.0, r.1)).collect();
    replies.sort_unstable();
    let not_supported = libc::EOPNOTSUPP;
    assert_eq!(
        replies,
        [
            (1, 0),
            (2, 0),
            (3, 0),
            (4, not_supported),
            (5, libc::EINVAL)
        ]
    );
    assert_eq!(bench.queue.data[512..1536], [0; 1024]);
    assert_eq!(bench.queue.data[4096..4608], [0; 512]);
    assert_ne!(bench.queue.data[1536..2048], [0; 512]);
    assert_ne!(bench.queue.durable, bench.queue.data);
    bench.send(Opcode::FSYNC, 6, 2, &[&[0; 16]]);
    bench.run();
    assert_eq!(bench.reply().1, 0);
    assert!(bench.queue.durable == bench.queue.data);
}

#[test]
fn a_read_only_volume_refuses_changes_whoever_opened_it() {
    let mut bench = Bench::new(Geometry {
        read_only: true,
        ..GEOMETRY
    });
    bench.write(1, 0, &[1; 512]);
    bench.fallocate(
        2,
        0,
        512,
        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
    );
    bench.run();
    assert_eq!(bench.reply().1, libc::EROFS);
    assert_eq!(bench.reply().1, libc::EROFS);
}

#[test]
fn with_little_memory_and_few_places_requests_wait_and_none_is_lost() {
    let mut bench = Bench::new(GEOMETRY);
    bench.queue.capacity = 2;
    // Leaves 128 KiB beside the landing place.
    let held: Vec<_> = [20, 20, 20, 20, 20, 20, 19, 18, 17]
        .map(|order| bench.queue.pool().take(1 << order).unwrap())
        .into();
    for unique in 0..9 {
        match unique % 3 {
            0 => bench.read(unique, unique * 4096, 30 << 10),
            1 => bench.write(unique, 2 << 20, &[7; 4096]),
            _ => bench.write(unique, 3 << 20, &[8; 66 << 10]),
        }
        bench.front_end.take_requests(&mut bench.queue);
    }
    assert!(!bench.queue.pending.is_empty() && bench.queue.pending.len() < 9);
    bench.run();
    let mut replies: Vec<_> = (0..9).map(|_| bench.reply()).map(|r| (r.0, r.1)).collect();
    replies.sort_unstable();
    assert_eq!(
        replies,
        (0..9).map(|unique| (unique, 0)).collect::<Vec<_>>()
    );
    drop(held);
    bench.assert_nothing_is_held();
}

#[test]
fn errors_of_the_volume_are_errors_of_the_file() {
    let mut bench = Bench::new(GEOMETRY);
    bench.queue.bad_lba = Some(9);
    bench.read(1, 4096, 4096);
    bench.run();
    assert_eq!(bench.reply(), (1, libc::EIO, Vec::new()));
    bench.queue.gone = true;
    bench.read(2, 0, 4096);
    bench.write(3, 0, &[0; 512]);
    bench.send(Opcode::FSYNC, 4, 2, &[&[0; 16]]);
    bench.run();
    for unique in 2..5 {
        assert_eq!(bench.reply(), (unique, libc::EIO, Vec::new()));
    }
    bench.assert_nothing_is_held();
}

#[test]
fn writes_that_failed_are_noted_until_they_are_made_good() {
    let unwritten = SharedUnwritten::default();
    let mut bench = Bench::new(GEOMETRY);
    bench.front_end.set_unwritten(unwritten.clone());
    let words = || unwritten.with(|unwritten| unwritten.in_words(1, 512));
    bench.queue.bad_lba = Some(9);
    bench.read(1, 4096, 4096);
    bench.run();
    assert_eq!(bench.reply().1, libc::EIO);
    assert_eq!(words(), None, "a read loses nothing");
    // Whole LBAs, and parts of one whose read fails.
    bench.write(2, 4096, &[1; 4096]);
    bench.write(3, 4700, &[1; 8]);
    bench.run();
    for _ in 2..4 {
        assert_eq!(bench.reply().1, libc::EIO);
    }
    let said = words().unwrap();
    assert!(said.contains("(8 blocks, the first at LBA 8)"), "{said}");
    bench.queue.bad_lba = None;
    bench.write(4, 4096, &[2; 4096]);
    bench.run();
    assert_eq!(bench.reply().1, 0);
    assert_eq!(words(), None);
    // So are those of an association that is over.
    bench.queue.gone = true;
    bench.write(5, 0, &[1; 512]);
    bench.run();
    assert_eq!(bench.reply().1, libc::EIO);
    assert!(words().is_some());
    bench.assert_nothing_is_held();
}

#[test]
fn a_write_that_is_shorter_than_it_says_is_refused() {
    let mut bench = Bench::new(GEOMETRY);
    let write = WriteIn {
        fh: 0,
        offset_bytes: 0,
        size_bytes: 4096,
        write_flags: 0,
        lock_owner: 0,
        flags: 0,
        padding: 0,
    };
    bench.send(Opcode::WRITE, 1, 2, &[write.as_bytes(), &[0; 512]]);
    bench.kernel.write_all(&[0; 7]).unwrap();
    bench.run();
    assert_eq!(bench.reply(), (1, libc::EIO, Vec::new()));
    assert_eq!(WRITE_HEAD_BYTES, 80);
}

/// Keeps `OwnedFd` in the signature of the front end honest: closing it is what `life` is for.
#[test]
fn the_pipe_closes_with_the_front_end() {
    let (mut watch, life): (File, OwnedFd) = {
        let (read, write) = nix::unistd::pipe().unwrap();
        (File::from(read), write)
    };
    let bench = Bench::new(GEOMETRY);
    let fs = file_system::FileSystem::new("volume", GEOMETRY, (0, 0), 0);
    let device = File::open("/dev/null").unwrap();
    let front_end = FuseFrontEnd::new(device, fs, GEOMETRY, bench.queue.pool(), life).unwrap();
    drop(front_end);
    assert_eq!(watch.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_volume_that_grows_is_told_to_the_kernel_once_and_nothing_else_is() {
    let mut bench = Bench::new(GEOMETRY);
    let (told, life) = nix::unistd::pipe().unwrap();
    bench.front_end.set_life(life);
    let namespace = |nsze_lbas, lba_bytes| NamespaceInfo {
        nsid: 1,
        nsze_lbas,
        lba_bytes,
        metadata_bytes: 0,
        read_only: false,
        eui64: [0; 8],
        nguid: [0; 16],
        uuid: None,
        csi: Csi::NVM,
        unusable: None,
    };
    // As it is, cut short, longer with other LBAs, longer, and that again.
    for (lbas, lba_bytes) in [
        (8192, 512),
        (100, 512),
        (8192, 4096),
        (16384, 512),
        (16384, 512),
    ] {
        bench
            .front_end
            .namespace_changed(&namespace(lbas, lba_bytes));
    }
    let mut message = [0; 64];
    let len = bench.kernel.read(&mut message).unwrap();
    let (header, rest) = OutHeader::read_from_prefix(&message[..len]).unwrap();
    assert_eq!((header.unique, header.error), (0, NOTIFY_STORE));
    let (store, data) = StoreOut::read_from_prefix(rest).unwrap();
    assert_eq!((store.nodeid, store.offset_bytes), (2, (8 << 20) - 1));
    assert_eq!((store.size_bytes, data), (1, &[0][..]));
    let more = bench.kernel.read(&mut message).unwrap_err();
    assert_eq!(more.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(nix::unistd::read(&told, &mut message).unwrap(), 1);
}
