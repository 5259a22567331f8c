//! The real binary: killed under a verified workload and started again, and ended as systemd does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use capstan_initiator::{BlockingVolume, Controller};
use capstan_tests::attack::tolerance;
use capstan_tests::host::options;
use capstan_tests::program::{Daemon, own_address, utf8};

const LBA: usize = 4096;
const WRITERS: usize = 3;
/// From the start of the next process, in seconds. Ten times that is for machines that do other
/// things meanwhile.
const BACK_WITHIN_SECONDS: u32 = 1;
/// LBAs of one writer.
const AREA: usize = 512;

fn connect(at: SocketAddr) -> Controller {
    let mut options = options(at, 1);
    options.reconnect_delay = Duration::from_millis(500);
    Controller::connect(options).expect("connects")
}

/// What LBA `lba` holds after its `version`th write.
fn contents(lba: usize, version: u32) -> Vec<u8> {
    let word = (lba as u64) << 32 | u64::from(version);
    word.to_le_bytes().repeat(LBA / 8)
}

/// Writes its area over and over, in runs of 1 to 64 LBAs; `versions` holds what was acknowledged.
fn write(volume: &BlockingVolume, first: usize, versions: &[AtomicU32], stop: &AtomicBool) {
    let mut random = 0x9E37_79B9_u32.wrapping_mul(u32::try_from(first).expect("small") + 1);
    let mut version = 0;
    while !stop.load(Ordering::Relaxed) {
        version += 1;
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let run = 1 << (random >> 29 & 7).min(6);
        let at = (random >> 8) as usize % (AREA - run);
        let data: Vec<u8> = (at..at + run)
            .flat_map(|n| contents(first + n, version))
            .collect();
        volume
            .write(((first + at) * LBA) as u64, &data)
            .expect("the write ends well");
        for slot in &versions[at..at + run] {
            slot.store(version, Ordering::Relaxed);
        }
        if version.is_multiple_of(16) {
            volume.flush().expect("the flush ends well");
        }
    }
}

#[test]
fn a_killed_target_comes_back_and_nothing_acknowledged_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("volume.img");
    let bytes = WRITERS * AREA * LBA;
    std::fs::write(&image, vec![0; bytes]).expect("an image");
    let at = own_address();
    let mut daemon = Some(Daemon::start(utf8(&image), 4096, at));
    let controller = connect(at);
    let volume = controller
        .volume_blocking(1)
        .expect("namespace 1")
        .blocking();
    let stop = Arc::new(AtomicBool::new(false));
    let versions: Vec<Vec<AtomicU32>> = (0..WRITERS)
        .map(|_| (0..AREA).map(|_| AtomicU32::new(0)).collect())
        .collect();
    thread::scope(|scope| {
        for (writer, versions) in versions.iter().enumerate() {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || write(volume, writer * AREA, versions, stop));
        }
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(400));
            daemon.take().expect("running").kill();
            daemon = Some(Daemon::start(utf8(&image), 4096, at));
        }
        thread::sleep(Duration::from_millis(400));
        stop.store(true, Ordering::Relaxed);
    });
    volume.flush().expect("flushes");
    let mut written = 0;
    for (writer, versions) in versions.iter().enumerate() {
        for (at, version) in versions.iter().enumerate() {
            let version = version.load(Ordering::Relaxed);
            written += usize::from(version > 0);
            let lba = writer * AREA + at;
            let expected = if version == 0 {
                vec![0; LBA]
            } else {
                contents(lba, version)
            };
            let mut found = vec![0; LBA];
            volume.read((lba * LBA) as u64, &mut found).expect("reads");
            assert!(
                found == expected,
                "LBA {lba} holds what was acknowledged last ({version})"
            );
        }
    }
    assert!(written > AREA, "the workload wrote ({written} LBAs)");
    controller.close();
}

/// The old controller went with the process; nobody waits for its Keep Alive (5 s) and the rest of
/// its time.
#[test]
fn writes_go_on_at_once_when_a_killed_target_is_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("volume.img");
    std::fs::write(&image, vec![0; AREA * LBA]).expect("an image");
    let at = own_address();
    let mut daemon = Some(Daemon::start(utf8(&image), 4096, at));
    let controller = connect(at);
    let volume = controller
        .volume_blocking(1)
        .expect("namespace 1")
        .blocking();
    let stop = Arc::new(AtomicBool::new(false));
    let versions: Vec<AtomicU32> = (0..AREA).map(|_| AtomicU32::new(0)).collect();
    let back_within = Duration::from_secs((BACK_WITHIN_SECONDS * tolerance()).into());
    let mut rounds = Vec::new();
    let written = |versions: &[AtomicU32]| {
        let newest = versions.iter().map(|v| v.load(Ordering::Relaxed)).max();
        newest.unwrap_or(0)
    };
    thread::scope(|scope| {
        let writer = (&volume, &versions, &stop);
        scope.spawn(move || write(writer.0, 0, writer.1, writer.2));
        for round in 0..3 {
            let before = written(&versions);
            while written(&versions) == before {
                thread::yield_now();
            }
            // In the middle of a write, most likely: the writer does nothing else.
            daemon.take().expect("running").kill();
            daemon = Some(Daemon::start(utf8(&image), 4096, at));
            let (before, start) = (written(&versions), Instant::now());
            let back = |versions: &[AtomicU32]| written(versions) >= before + 2;
            while !back(&versions) && start.elapsed() < back_within {
                thread::yield_now();
            }
            rounds.push(start.elapsed());
            // Before a panic: the writer is waited for.
            stop.store(!back(&versions), Ordering::Relaxed);
            assert!(back(&versions), "round {round}: {rounds:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    eprintln!("writes went on after {rounds:?}");
    controller.close();
}

/// With the options that hold when none is given: a target that took seconds to come back is found
/// as soon as one that was back at once.
#[test]
fn writes_go_on_soon_when_a_target_was_away_for_seconds() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("volume.img");
    std::fs::write(&image, vec![0; AREA * LBA]).expect("an image");
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let controller = Controller::connect(options(at, 1)).expect("connects");
    let volume = controller
        .volume_blocking(1)
        .expect("namespace 1")
        .blocking();
    volume.write(0, &contents(0, 1)).expect("writes");
    daemon.kill();
    thread::sleep(Duration::from_secs(4));
    let _daemon = Daemon::start(utf8(&image), 4096, at);
    let start = Instant::now();
    volume.write(0, &contents(0, 2)).expect("writes");
    let took = start.elapsed();
    let back_within = Duration::from_secs((BACK_WITHIN_SECONDS * tolerance()).into());
    assert!(took < back_within, "{took:?}");
    eprintln!("writes went on after {took:?}");
    controller.close();
}

#[test]
fn sigterm_drains_and_exits_0() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("volume.img");
    std::fs::write(&image, vec![0; 1 << 20]).expect("an image");
    let at = own_address();
    let daemon = Daemon::start(utf8(&image), 4096, at);
    let controller = connect(at);
    let volume = controller
        .volume_blocking(1)
        .expect("namespace 1")
        .blocking();
    volume.write(0, &contents(0, 1)).expect("writes");
    let status = daemon.stop();
    assert!(status.success(), "{status}");
    drop(controller);
    assert_eq!(
        std::fs::read(&image).expect("the image")[..LBA],
        contents(0, 1)
    );
}
