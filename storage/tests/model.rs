//! Files and devices against a model: a vector of bytes.

mod support;

use std::path::Path;

use capstan_storage::{Completion, DirectIo, EngineConfig, Op, VolumeSpec};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::{Driver, Folder, LoopDevice, content, spec};

const BYTES: u64 = 1 << 20;

/// One operation of a test, in units that any LBA size can scale.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read {
        at: u16,
        lbas: u16,
        offset: usize,
    },
    Write {
        at: u16,
        lbas: u16,
        offset: usize,
        value: u8,
        fua: bool,
    },
    Zero {
        at: u16,
        lbas: u16,
        deallocate: bool,
        fua: bool,
    },
    Discard {
        at: u16,
        lbas: u16,
    },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // 64 is where in-capsule data starts; the others are aligned to nothing, to half a sector, to a
    // sector and to a page.
    let offset = || prop::sample::select(vec![0usize, 3, 64, 256, 512, 4096]);
    let range = || (any::<u16>(), 0u16..64);
    let step = prop_oneof![
        3 => (range(), offset()).prop_map(|((at, lbas), offset)| Step::Read { at, lbas, offset }),
        4 => (range(), offset(), any::<u8>(), any::<bool>()).prop_map(
            |((at, lbas), offset, value, fua)| Step::Write { at, lbas, offset, value, fua }
        ),
        1 => (range(), any::<bool>(), any::<bool>())
            .prop_map(|((at, lbas), deallocate, fua)| Step::Zero { at, lbas, deallocate, fua }),
        1 => range().prop_map(|(at, lbas)| Step::Discard { at, lbas }),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..48)
}

/// Runs steps, many in flight at once where they do not overlap, and checks every byte read.
struct Model<'a> {
    driver: &'a mut Driver,
    bytes: Vec<u8>,
    /// What is in flight: range of bytes, whether it changes them.
    flying: Vec<(Op, std::ops::Range<usize>)>,
}

impl Model<'_> {
    fn step(&mut self, step: Step) {
        let lba_bytes = self.driver.lba_bytes() as usize;
        let total = self.bytes.len() / lba_bytes;
        let place = |at: u16, lbas: u16| {
            let lba = usize::from(at) % total;
            let lbas = usize::from(lbas).min(total - lba);
            (lba as u64, u32::from(u16::try_from(lbas).unwrap()))
        };
        let op = match step {
            Step::Read { at, lbas, .. } => {
                let (lba, lbas) = place(at, lbas);
                Op::Read { lba, lbas }
            }
            Step::Write { at, lbas, fua, .. } => {
                let (lba, lbas) = place(at, lbas);
                Op::Write { lba, lbas, fua }
            }
            Step::Zero {
                at,
                lbas,
                deallocate,
                fua,
            } => {
                let (lba, lbas) = place(at, lbas);
                Op::WriteZeroes {
                    lba,
                    lbas,
                    deallocate,
                    fua,
                }
            }
            Step::Discard { at, lbas } => {
                let (lba, lbas) = place(at, lbas);
                Op::Discard {
                    lba,
                    lbas: u64::from(lbas),
                }
            }
            Step::Flush => Op::Flush,
        };
        let (lba, lbas) = op.range();
        let start = usize::try_from(lba).unwrap() * lba_bytes;
        let range = start..start + usize::try_from(lbas).unwrap() * lba_bytes;
        let meets = |(_, other): &(Op, std::ops::Range<usize>)| {
            other.start < range.end && range.start < other.end
        };
        if self.flying.iter().any(meets) {
            self.settle();
        }
        let data = match step {
            Step::Read { offset, .. } => Some(self.driver.data(&vec![0xee; range.len()], offset)),
            Step::Write { offset, value, .. } => {
                let bytes: Vec<u8> = (0..range.len())
                    .map(|i| value ^ u8::try_from(i / 512 % 251).unwrap())
                    .collect();
                self.bytes[range.clone()].copy_from_slice(&bytes);
                Some(self.driver.data(&bytes, offset))
            }
            Step::Zero { .. } => {
                self.bytes[range.clone()].fill(0);
                None
            }
            Step::Discard { .. } | Step::Flush => None,
        };
        let token = self.flying.len() as u64;
        self.flying.push((op, range));
        self.driver.submit(token, op, data);
    }

    /// Waits for everything in flight.
    fn settle(&mut self) {
        let flying = std::mem::take(&mut self.flying);
        let mut ended = self.driver.wait(flying.len());
        ended.sort_by_key(|completion| completion.token);
        let tokens: Vec<_> = ended.iter().map(|completion| completion.token).collect();
        assert_eq!(tokens, (0..flying.len() as u64).collect::<Vec<_>>());
        for (completion, (op, range)) in ended.into_iter().zip(flying) {
            self.check(&completion, op, range);
        }
    }

    fn check(&mut self, completion: &Completion, op: Op, range: std::ops::Range<usize>) {
        assert_eq!(completion.result, Ok(()), "{op:?}");
        match op {
            Op::Read { .. } => {
                let read = content(completion.data.as_ref().unwrap());
                assert!(read == self.bytes[range], "{op:?} read something else");
            }
            // Old data or zeroes, LBA by LBA.
            Op::Discard { lba, lbas } => {
                let lba_bytes = self.driver.lba_bytes() as usize;
                for (lba, start) in (lba..lba + lbas).zip(range.step_by(lba_bytes)) {
                    let now = self.driver.read(lba, 1);
                    let old = &mut self.bytes[start..start + lba_bytes];
                    assert!(
                        now == old || now.iter().all(|&b| b == 0),
                        "{op:?} left garbage"
                    );
                    old.copy_from_slice(&now);
                }
            }
            Op::Write { .. } | Op::WriteZeroes { .. } | Op::Flush => {}
        }
    }
}

/// Property: whatever is done, reads return what the model holds, now and after opening again.
fn behaves_like_a_vector(path: &Path, lba_bytes: u32, direct: DirectIo, cases: u32) {
    let spec = spec(path, lba_bytes, direct);
    // A small ring and few slots, so that queues inside the engine fill up and drain.
    let config = EngineConfig {
        entries: 4,
        in_flight_max: 12,
        bounce_bytes: 64 << 10,
        ..EngineConfig::default()
    };
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let result = runner.run(&(steps(), any::<bool>()), |(steps, registered)| {
        let mut driver = Driver::with(&spec, &config, registered);
        let lbas = driver.volume.geometry().lbas;
        assert_eq!(lbas * u64::from(lba_bytes), BYTES);
        let half = u32::try_from(lbas / 2).unwrap();
        let bytes = [driver.read(0, half), driver.read(lbas / 2, half)].concat();
        let mut model = Model {
            driver: &mut driver,
            bytes,
            flying: Vec::new(),
        };
        for step in steps {
            model.step(step);
        }
        model.settle();
        let bytes = model.bytes;
        assert_eq!(
            (driver.engine.in_flight(), driver.pool.free_bytes()),
            (0, 16 << 20)
        );
        drop(driver);
        let mut driver = Driver::with(&spec, &config, false);
        assert!(driver.read(0, half) == bytes[..bytes.len() / 2]);
        assert!(driver.read(lbas / 2, half) == bytes[bytes.len() / 2..]);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn file_with_direct_io() {
    let folder = Folder::new();
    let path = folder.file("direct", BYTES);
    behaves_like_a_vector(&path, 4096, DirectIo::Auto, 40);
}

#[test]
fn file_with_direct_io_and_small_lbas() {
    let folder = Folder::new();
    let path = folder.file("direct-512", BYTES);
    behaves_like_a_vector(&path, 512, DirectIo::Auto, 40);
}

#[test]
fn file_through_the_page_cache() {
    let folder = Folder::new();
    let path = folder.file("cached", BYTES);
    behaves_like_a_vector(&path, 4096, DirectIo::Off, 40);
    behaves_like_a_vector(&path, 512, DirectIo::Off, 40);
}

#[test]
fn root_loop_device_with_512_byte_sectors() {
    let folder = Folder::new();
    let device = LoopDevice::new(&folder.file("loop-512", BYTES), 512);
    behaves_like_a_vector(device.path(), 512, DirectIo::On, 24);
    behaves_like_a_vector(device.path(), 4096, DirectIo::On, 24);
}

#[test]
fn root_loop_device_with_4096_byte_sectors() {
    let folder = Folder::new();
    let device = LoopDevice::new(&folder.file("loop-4096", BYTES), 4096);
    behaves_like_a_vector(device.path(), 4096, DirectIo::On, 24);
    behaves_like_a_vector(device.path(), 4096, DirectIo::Off, 12);
}

#[test]
fn ram_and_the_engine_agree_on_the_contract() {
    // The same driver on a volume that ends everything at once.
    let spec = VolumeSpec::Ram {
        bytes: BYTES,
        lba_bytes: 512,
    };
    let mut driver = Driver::new(&spec);
    let mut model = Model {
        bytes: vec![0; 1 << 20],
        driver: &mut driver,
        flying: Vec::new(),
    };
    model.step(Step::Write {
        at: 5,
        lbas: 60,
        offset: 64,
        value: 7,
        fua: true,
    });
    model.step(Step::Zero {
        at: 7,
        lbas: 3,
        deallocate: true,
        fua: false,
    });
    model.step(Step::Read {
        at: 0,
        lbas: 63,
        offset: 3,
    });
    model.settle();
}
