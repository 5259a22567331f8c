//! The engine under load, asleep, and when things are dropped under it.

mod support;

use std::env;
use std::fs;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use capstan_memory::{Pages, Slab};
use capstan_storage::{
    Delay, Delays, DirectIo, Effect, Engine, EngineConfig, Fault, Faulty, FixedBuffers,
    IoErrorKind, Op, OpKind, OpenError, VolumeSpec,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use support::{Driver, Folder, content, spec};

/// 256 operations at once through a ring of 32 entries and 64 slots: the others wait inside.
#[test]
fn many_in_flight_all_end_with_their_own_data() {
    let folder = Folder::new();
    let spec = spec(&folder.file("deep", 16 << 20), 4096, DirectIo::Auto);
    let config = EngineConfig {
        entries: 32,
        in_flight_max: 64,
        ..EngineConfig::default()
    };
    let mut driver = Driver::with(&spec, &config, true);
    let pattern = |lba: u64| -> Vec<u8> { lba.to_le_bytes().repeat(512) };
    // An odd stride visits every LBA once, in no particular order.
    let order: Vec<u64> = (0..256).map(|i| (i * 97) % 256 * 16).collect();
    for &lba in &order {
        let data = driver.data(&pattern(lba), if lba % 3 == 0 { 64 } else { 0 });
        driver.submit(
            lba,
            Op::Write {
                lba,
                lbas: 1,
                fua: false,
            },
            Some(data),
        );
    }
    assert_eq!(driver.engine.in_flight(), 256);
    assert!(driver.wait(256).iter().all(|ended| ended.result.is_ok()));
    for &lba in &order {
        let data = driver.data(&[0; 4096], if lba % 5 == 0 { 64 } else { 0 });
        driver.submit(lba, Op::Read { lba, lbas: 1 }, Some(data));
    }
    let mut ended = driver.wait(256);
    ended.sort_by_key(|completion| completion.token);
    let tokens: Vec<u64> = ended.iter().map(|completion| completion.token).collect();
    assert_eq!(tokens, (0..256).map(|i| i * 16).collect::<Vec<_>>());
    for completion in ended {
        let read = content(completion.data.as_ref().unwrap());
        assert!(
            read == pattern(completion.token),
            "LBA {} has other data",
            completion.token
        );
    }
    assert_eq!(driver.engine.in_flight(), 0);
}

#[test]
fn more_than_may_wait_is_refused_for_now_and_the_rest_goes_on() {
    let folder = Folder::new();
    let spec = spec(&folder.file("crowded", 1 << 20), 4096, DirectIo::Auto);
    let config = EngineConfig {
        entries: 2,
        in_flight_max: 4,
        waiting_max: 6,
        ..EngineConfig::default()
    };
    let mut driver = Driver::with(&spec, &config, true);
    for token in 0..12 {
        let data = driver.data(&[0; 4096], 0);
        driver.submit(
            token,
            Op::Read {
                lba: token,
                lbas: 1,
            },
            Some(data),
        );
    }
    let ended = driver.wait(12);
    let refused: Vec<_> = ended
        .iter()
        .filter(|c| c.result.is_err())
        .map(|c| c.token)
        .collect();
    assert_eq!(refused, [10, 11]);
    let error = ended.iter().find_map(|c| c.result.as_ref().err()).unwrap();
    assert_eq!(error.kind, IoErrorKind::Retry, "{error}");
    assert!(ended.iter().all(|completion| completion.data.is_some()));
    assert_eq!(driver.read(10, 1), [0; 4096]);
}

/// Every operation is waited for with the descriptor alone; the driver fails on a lost wake-up.
#[test]
fn an_armed_engine_wakes_for_every_kind_of_operation() {
    let folder = Folder::new();
    for direct in [DirectIo::Auto, DirectIo::Off] {
        let path = folder.file(&format!("{direct:?}"), 4 << 20);
        let mut driver = Driver::new(&spec(&path, 4096, direct));
        for round in 0..40u64 {
            let lba = round * 7;
            driver.try_write(lba, &[1; 4096], round % 2 == 0).unwrap();
            driver.try_read(lba, 1, 0).unwrap();
            driver.try_read(lba, 1, 64).unwrap();
            let zeroes = Op::WriteZeroes {
                lba,
                lbas: 3,
                deallocate: true,
                fua: true,
            };
            for op in [Op::Flush, zeroes, Op::Discard { lba, lbas: 2 }] {
                driver.result(op, None).unwrap();
            }
        }
    }
}

#[test]
fn an_idle_engine_is_silent_and_wakes_no_one_before_it_is_armed() {
    let folder = Folder::new();
    let mut driver = Driver::new(&spec(&folder.file("idle", 1 << 20), 4096, DirectIo::Auto));
    let readable = |driver: &Driver, limit_ms: u16| {
        #[expect(unsafe_code, reason = "the descriptor is borrowed as a number")]
        // SAFETY: the engine, and with it the descriptor, lives longer than this borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(driver.engine.fd()) };
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(limit_ms)).unwrap() == 1
    };
    assert!(!driver.engine.arm());
    assert!(!readable(&driver, 30), "nothing is in flight");
    // Not armed: what ends is found by polling, without a signal per completion.
    driver.engine.poll(&mut Vec::new());
    let data = driver.data(&[3; 4096], 0);
    driver.submit(
        1,
        Op::Write {
            lba: 0,
            lbas: 1,
            fua: true,
        },
        Some(data),
    );
    driver.engine.submit_batch().unwrap();
    assert!(!readable(&driver, 100));
    // Armed after it has ended: either arming says so, or the descriptor does.
    assert!(driver.engine.arm() || readable(&driver, 10_000));
    assert_eq!(driver.wait(1).len(), 1);
    assert!(!driver.engine.arm());
    assert!(!readable(&driver, 30), "the signal is used up");
    // A wait that found nothing loses nothing that comes after it.
    for round in 0..3 {
        assert!(!driver.engine.arm());
        driver.engine.stayed_silent();
        driver.engine.poll(&mut Vec::new());
        let data = driver.data(&[4; 4096], 0);
        let (lba, lbas) = (round, 1);
        let fua = true;
        driver.submit(round, Op::Write { lba, lbas, fua }, Some(data));
        assert!(driver.engine.arm() || readable(&driver, 10_000));
        assert_eq!(driver.wait(1).len(), 1);
    }
    assert!(!driver.engine.arm());
    assert!(!readable(&driver, 30), "the signals are used up");
}

#[test]
fn operations_outlive_their_volume() {
    let folder = Folder::new();
    let path = folder.file("dropped", 8 << 20);
    let mut driver = Driver::new(&spec(&path, 4096, DirectIo::Auto));
    for lba in 0..100 {
        let data = driver.data(&[9; 8192], 0);
        driver.submit(
            lba,
            Op::Write {
                lba: lba * 2,
                lbas: 2,
                fua: false,
            },
            Some(data),
        );
    }
    driver.volume = VolumeSpec::Null {
        bytes: 4096,
        lba_bytes: 4096,
    }
    .open(&driver.engine)
    .unwrap();
    // The file is open and locked while the kernel may write it.
    let again = spec(&path, 4096, DirectIo::Auto);
    assert!(matches!(again.prepare(), Err(OpenError::Locked { .. })));
    assert!(driver.wait(100).iter().all(|ended| ended.result.is_ok()));
    // The ring lets go of it in its next turn.
    driver.engine.submit_batch().unwrap();
    driver.volume = again.open(&driver.engine).unwrap();
    assert_eq!(driver.read(198, 2), [9; 8192]);
}

#[test]
fn dropping_the_engine_drains_and_gives_every_buffer_back() {
    let folder = Folder::new();
    let path = folder.file("drained", 8 << 20);
    let config = EngineConfig {
        entries: 8,
        in_flight_max: 16,
        ..EngineConfig::default()
    };
    for round in 0..20 {
        let mut driver = Driver::with(&spec(&path, 4096, DirectIo::Auto), &config, true);
        for lba in 0..64 {
            let data = driver.data(&[round; 4096], if lba % 4 == 0 { 64 } else { 0 });
            driver.submit(
                lba,
                Op::Write {
                    lba,
                    lbas: 1,
                    fua: lba % 8 == 0,
                },
                Some(data),
            );
            if lba % 16 == 0 {
                driver.submit(1000 + lba, Op::Flush, None);
            }
        }
        // Some in the kernel, some queued, some waiting.
        driver.engine.submit_batch().unwrap();
        let pool = driver.pool.clone();
        drop(driver);
        assert_eq!(pool.free_bytes(), 16 << 20);
    }
}

#[test]
fn places_for_files_are_used_again_and_their_lack_is_no_error() {
    let folder = Folder::new();
    let paths: Vec<_> = (0..4).map(|i| folder.file(&i.to_string(), 8192)).collect();
    let config = EngineConfig {
        files_max: 2,
        ..EngineConfig::default()
    };
    let mut driver = Driver::with(&spec(&paths[0], 4096, DirectIo::Auto), &config, true);
    // This test's own: others may run in this process.
    let files = || {
        let descriptors = fs::read_dir("/proc/self/fd").unwrap();
        let names = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        names.filter(|name| name.starts_with(folder.path())).count()
    };
    let before = files();
    for round in 0..50u8 {
        let volumes: Vec<_> = paths[1..]
            .iter()
            .map(|path| {
                spec(path, 4096, DirectIo::Auto)
                    .open(&driver.engine)
                    .unwrap()
            })
            .collect();
        for (volume, at) in volumes.into_iter().zip(0u8..) {
            driver.volume = volume;
            driver.write(0, &[round ^ at; 4096]);
            assert_eq!(driver.read(0, 1), [round ^ at; 4096]);
        }
        driver.volume = VolumeSpec::Null {
            bytes: 4096,
            lba_bytes: 4096,
        }
        .open(&driver.engine)
        .unwrap();
    }
    assert!(files() <= before, "descriptors leak");
}

#[test]
fn reactors_share_one_store() {
    let folder = Folder::new();
    let store = spec(&folder.file("shared", 4 << 20), 4096, DirectIo::Auto)
        .prepare()
        .unwrap();
    let ram = VolumeSpec::Ram {
        bytes: 4 << 20,
        lba_bytes: 4096,
    }
    .prepare()
    .unwrap();
    for store in [store, ram] {
        thread::scope(|scope| {
            for core in 0..3u8 {
                let store = store.clone();
                scope.spawn(move || {
                    let null = VolumeSpec::Null {
                        bytes: 4096,
                        lba_bytes: 4096,
                    };
                    let mut driver = Driver::new(&null);
                    driver.volume = store.open(&driver.engine).unwrap();
                    for lba in (u64::from(core)..1024).step_by(3) {
                        driver.write(lba, &[core + 1; 4096]);
                    }
                });
            }
        });
        let mut driver = Driver::new(&VolumeSpec::Null {
            bytes: 4096,
            lba_bytes: 4096,
        });
        driver.volume = store.open(&driver.engine).unwrap();
        for lba in 0..1024 {
            let core = u8::try_from(lba % 3).unwrap();
            assert_eq!(
                driver.read(lba, 1),
                [core + 1; 4096],
                "{} LBA {lba}",
                store.name()
            );
        }
    }
}

/// Runs itself once more with 4 MiB of lockable memory and without the capability to exceed it.
/// Every test that runs now and is the same user's shares it: all they lock is their rings.
#[test]
fn little_lockable_memory_is_said_and_gone_on_without() {
    const CHILD: &str = "CAPSTAN_STORAGE_MEMLOCK_CHILD";
    const NAME: &str = "little_lockable_memory_is_said_and_gone_on_without";
    if env::var_os(CHILD).is_none() {
        let exe = env::current_exe().unwrap();
        let mut command = Command::new("prlimit");
        if nix::unistd::geteuid().is_root() {
            command = Command::new("setpriv");
            command.args([
                "--bounding-set=-ipc_lock",
                "--inh-caps=-ipc_lock",
                "prlimit",
            ]);
        }
        command
            .arg("--memlock=4194304:4194304")
            .arg(exe)
            .args([NAME, "--exact", "--nocapture"]);
        let output = command.env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}{error}"
        );
        return;
    }
    assert_eq!(getrlimit(Resource::RLIMIT_MEMLOCK).unwrap().0, 4 << 20);
    let engine = Engine::new(&EngineConfig::default()).unwrap();
    let slab: Arc<Slab> = Slab::new((2 << 20) + 4096, Pages::Ordinary).unwrap();
    let FixedBuffers::NotRegistered { reason } = engine.register_slab(&slab) else {
        panic!("more than half of 4 MiB was pinned, and rings find nothing left");
    };
    assert!(reason.contains("RLIMIT_MEMLOCK is 4096 KiB"), "{reason}");
    // What is left is for rings.
    let rings = [(); 8].map(|()| Engine::new(&EngineConfig::default()).unwrap());
    drop(rings);
    assert!(
        reason.contains("ulimit -l") && reason.contains("LimitMEMLOCK"),
        "{reason}"
    );
    let folder = Folder::new();
    let mut driver = Driver::new(&spec(
        &folder.file("memlock", 1 << 20),
        4096,
        DirectIo::Auto,
    ));
    for offset in [0, 64] {
        let data = driver.data(&[5; 8192], offset);
        driver
            .result(
                Op::Write {
                    lba: 3,
                    lbas: 2,
                    fua: true,
                },
                Some(data),
            )
            .unwrap();
        assert_eq!(driver.try_read(3, 2, offset).unwrap(), [5; 8192]);
    }
}

/// Decorators hold operations before the engine has them; their ends come out of the engine.
#[test]
fn decorators_stand_in_front_of_the_engine() {
    let folder = Folder::new();
    let mut driver = Driver::new(&spec(
        &folder.file("decorated", 1 << 20),
        4096,
        DirectIo::Auto,
    ));
    driver.write(5, &[5; 4096]);
    let null = VolumeSpec::Null {
        bytes: 4096,
        lba_bytes: 4096,
    }
    .open(&driver.engine)
    .unwrap();
    let file = std::mem::replace(&mut driver.volume, null);
    let bad = Fault::nth(OpKind::Read, 1, Effect::Fail(IoErrorKind::Medium));
    let faulty = Faulty::new(file, vec![bad]);
    driver.volume = Box::new(Delay::new(Box::new(faulty), Delays::all(100)));
    for token in 0..3 {
        let data = driver.data(&[0; 4096], 0);
        driver.submit(token, Op::Read { lba: 5, lbas: 1 }, Some(data));
    }
    // Operations are a millisecond apart: the reads are the second to the fourth.
    assert_eq!(
        (driver.engine.in_flight(), driver.volume.next_deadline_us()),
        (0, Some(2100))
    );
    let mut out = Vec::new();
    driver.volume.poll(2099, &mut out);
    assert!(out.is_empty());
    driver.volume.poll(4100, &mut out);
    assert_eq!(
        (out.len(), out[0].token, driver.engine.in_flight()),
        (1, 1, 2)
    );
    assert_eq!(
        out[0].result.as_ref().unwrap_err().kind,
        IoErrorKind::Medium
    );
    for completion in driver.wait(2) {
        assert_eq!(content(completion.data.as_ref().unwrap()), [5; 4096]);
    }
}
