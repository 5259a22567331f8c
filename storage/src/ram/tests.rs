//! RAM volumes: ranges, sharing, zeroing, and bytes in place.

use std::ptr;
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;

use super::{InMemory, RamStore, RamVolume, Streamed};
use crate::IoErrorKind;
use crate::io::{Op, Submitted};
use crate::testing::{data, pool, read, run, write};
use crate::volume::{ReadAtOnce, Volume};

fn volume(lba_bytes: u32, lbas: u64) -> RamVolume {
    let bytes = usize::try_from(lbas).unwrap() * lba_bytes as usize;
    let store = Arc::new(RamStore::new(bytes, true).unwrap());
    RamVolume::new(store, lba_bytes, lbas, Arc::from("ram")).unwrap()
}

#[test]
fn last_lba_is_reachable_and_the_next_is_not() {
    let pool = pool(1 << 20);
    let mut volume = volume(512, 9);
    write(&mut volume, &pool, 8, &[5; 512], false);
    assert_eq!(
        read(&mut volume, &pool, 7, 2),
        [[0; 512], [5; 512]].concat()
    );
    let done = run(&mut volume, Op::Discard { lba: 8, lbas: 2 }, None);
    assert_eq!(done.result.unwrap_err().kind, IoErrorKind::OutOfRange);
}

#[test]
fn large_zeroing_is_done_in_steps_and_other_work_goes_on() {
    let pool = pool(1 << 20);
    let lbas = (64 << 20) / 4096 + 1;
    let mut volume = volume(4096, lbas);
    write(&mut volume, &pool, lbas - 1, &[1; 4096], false);
    write(&mut volume, &pool, 0, &[2; 4096], false);
    let op = Op::Discard { lba: 0, lbas };
    let io = crate::io::Io {
        token: 1,
        op,
        data: None,
    };
    assert!(matches!(volume.submit(io, 0), Submitted::Pending));
    let mut out = Vec::new();
    volume.poll(0, &mut out);
    assert!(out.is_empty(), "one step does not zero 64 MiB");
    assert_eq!(read(&mut volume, &pool, lbas - 1, 1), [1; 4096]);
    let mut steps = 1;
    while volume.next_deadline_us().is_some() {
        volume.poll(0, &mut out);
        steps += 1;
    }
    assert_eq!((steps, out.len(), out[0].token), (9, 1, 1));
    assert_eq!(read(&mut volume, &pool, lbas - 1, 1), [0; 4096]);
    assert_eq!(read(&mut volume, &pool, 0, 1), [0; 4096]);
}

#[test]
fn a_write_at_once_is_a_write_where_that_would_succeed() {
    let pool = pool(1 << 20);
    let volume = volume(512, 64);
    let mut buffer = pool.take(4096).unwrap();
    buffer.copy_from(512, &[7; 1024]);
    let from = |offset| buffer.raw().skip(offset);
    assert!(volume.write_at_once(62, 2, from(512)));
    assert!(volume.write_at_once(64, 0, from(4096)));
    let refused = [(63, 2, 0), (u64::MAX, 1, 0), (0, 2, 4096 - 512), (0, 9, 0)];
    for (lba, lbas, offset_bytes) in refused {
        let written = volume.write_at_once(lba, lbas, from(offset_bytes));
        assert!(!written, "{lba}+{lbas} from {offset_bytes}");
    }
    let mut volume = volume;
    assert_eq!(
        read(&mut volume, &pool, 0, 64),
        [vec![0; 62 * 512], vec![7; 1024]].concat()
    );
}

fn in_memory(volume: &RamVolume) -> InMemory<'_> {
    match volume.read_at_once(0, 1) {
        ReadAtOnce::InMemory(memory) => memory,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_in_place_are_those_of_a_read() {
    let pool = pool(1 << 20);
    for lba_bytes in [512, 4096] {
        let mut volume = volume(lba_bytes, 64);
        let bytes: Vec<u8> = (0..64 * lba_bytes)
            .map(|n| n.to_le_bytes()[n as usize % 2])
            .collect();
        write(&mut volume, &pool, 0, &bytes, false);
        for (lba, lbas) in [(0, 64), (3, 17), (63, 1), (64, 0)] {
            let mut seen = Vec::new();
            assert!(in_memory(&volume).each(lba, lbas, &mut |now| seen.extend_from_slice(now)));
            let start = usize::try_from(lba).unwrap() * lba_bytes as usize;
            assert_eq!(seen, bytes[start..start + (lbas * lba_bytes) as usize]);
        }
        for (lba, lbas) in [(0, 65), (64, 1), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
            let never = &mut |_: &[u8]| panic!("outside the volume");
            assert!(!in_memory(&volume).each(lba, lbas, never), "{lba}+{lbas}");
            assert!(
                in_memory(&volume).place_of(lba, lbas).is_none(),
                "{lba}+{lbas}"
            );
        }
    }
}

#[test]
fn the_place_of_a_range_is_told_where_one_thread_has_the_volume() {
    let (lba_bytes, lbas) = (512, 64);
    for alone in [true, false] {
        let store = Arc::new(RamStore::new(64 * 512, alone).unwrap());
        let volume = RamVolume::new(Arc::clone(&store), lba_bytes, lbas, Arc::from("ram")).unwrap();
        let place = in_memory(&volume).place_of(3, 17);
        assert_eq!(place.is_some(), alone);
        if let Some((slab, range)) = place {
            assert_eq!(range, 3 * 512..20 * 512);
            assert_eq!(slab.id(), store.slab.id());
        }
    }
}

#[test]
fn a_store_for_one_volume_has_one_at_a_time() {
    let pool = pool(1 << 20);
    let store = Arc::new(RamStore::new(4096, true).unwrap());
    let open = || RamVolume::new(Arc::clone(&store), 4096, 1, Arc::from("ram"));
    let mut first = open().unwrap();
    assert!(open().is_none());
    write(&mut first, &pool, 0, &[7; 4096], false);
    drop(first);
    thread::scope(|scope| {
        let seen = scope.spawn(|| read(&mut open().unwrap(), &super::tests::pool(1 << 20), 0, 1));
        assert_eq!(seen.join().unwrap(), [7; 4096]);
    });
}

/// Two writers and two readers on the same 64 KiB: a 4096-byte LBA is always of one writer.
#[test]
fn an_lba_is_never_seen_half_written() {
    let store = Arc::new(RamStore::new(16 * 4096, false).unwrap());
    let store = &store;
    let open = move || RamVolume::new(Arc::clone(store), 4096, 16, Arc::from("ram")).unwrap();
    thread::scope(|scope| {
        for value in [1u8, 2] {
            scope.spawn(move || {
                let mut volume = open();
                let pool = pool(1 << 20);
                for _ in 0..2000 {
                    write(&mut volume, &pool, 0, &[value; 16 * 4096], false);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(move || {
                let mut volume = open();
                let pool = pool(1 << 20);
                let whole = |lba: &[u8]| lba.iter().all(|&b| b == lba[0] && b <= 2);
                for _ in 0..500 {
                    for lba in read(&mut volume, &pool, 0, 16).chunks(4096) {
                        assert!(whole(lba), "torn LBA");
                    }
                    let check = &mut |lba: &[u8]| assert!(whole(lba), "torn LBA in place");
                    assert!(in_memory(&volume).each(0, 16, check));
                }
            });
        }
        scope.spawn(move || {
            let mut volume = open();
            for _ in 0..200 {
                let op = Op::Discard { lba: 0, lbas: 16 };
                assert_eq!(run(&mut volume, op, None).result, Ok(()));
            }
        });
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn behaves_like_a_vector(
        lba_bytes in prop::sample::select(vec![512u32, 4096]),
        ops in prop::collection::vec((0u8..3, 0u64..40, 0u32..24, any::<u8>()), 1..60),
    ) {
        let pool = pool(1 << 20);
        let mut volume = volume(lba_bytes, 48);
        let mut model = vec![0u8; 48 * lba_bytes as usize];
        for (kind, lba, lbas, value) in ops {
            let lbas = lbas.min(u32::try_from(48 - lba).unwrap());
            let start = usize::try_from(lba).unwrap() * lba_bytes as usize;
            let range = start..start + (lbas * lba_bytes) as usize;
            match kind {
                0 => {
                    model[range.clone()].fill(value);
                    write(&mut volume, &pool, lba, &model[range], true);
                }
                1 => {
                    model[range].fill(0);
                    let op = Op::WriteZeroes { lba, lbas, deallocate: true, fua: false };
                    prop_assert_eq!(run(&mut volume, op, None).result, Ok(()));
                }
                _ => prop_assert_eq!(read(&mut volume, &pool, lba, lbas), &model[range]),
            }
        }
        prop_assert_eq!(read(&mut volume, &pool, 0, 48), model);
    }
}

#[test]
fn a_fence_stands_for_many_pages_and_comes_before_one_of_them_is_touched() {
    let streamed = Streamed::new();
    let unfenced = || streamed.count.get();
    for page in 10..20 {
        streamed.note(page);
    }
    streamed.settle(9);
    streamed.settle(20);
    assert_eq!(unfenced(), 10);
    streamed.settle(19);
    assert_eq!(unfenced(), 0);
    // Another page that shares its bit is taken for it.
    streamed.note(7);
    streamed.settle(7 + Streamed::BITS);
    assert_eq!(unfenced(), 0);
    streamed.settle(7);
    for page in 0..Streamed::PAGES {
        assert_eq!(unfenced(), page);
        streamed.note(page);
    }
    assert_eq!(unfenced(), 0);
    assert!(streamed.pages.iter().all(|word| word.get() == 0));
}

/// What to do with a volume of a few pages of eight blocks.
#[derive(Clone, Copy, Debug)]
enum Touch {
    WriteAtOnce(u64, u32),
    Write(u64, u32),
    Zero(u64, u32),
    Read(u64, u32),
    ReadInPlace(u64, u32),
    PlaceOf(u64, u32),
}

fn touch() -> impl Strategy<Value = Touch> {
    // Whole pages more often than not: they are what non-temporal stores write.
    let pages = (0..4_u64, 1..=2_u32).prop_map(|(page, pages)| (8 * page, 8 * pages));
    let blocks = (0..40_u64, 1..=24_u32);
    let range = prop_oneof![3 => pages, 1 => blocks].boxed();
    let at = |what: fn(u64, u32) -> Touch| range.clone().prop_map(move |(lba, n)| what(lba, n));
    prop_oneof![
        4 => at(Touch::WriteAtOnce),
        1 => at(Touch::Write),
        1 => at(Touch::Zero),
        1 => at(Touch::Read),
        1 => at(Touch::ReadInPlace),
        1 => at(Touch::PlaceOf),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Whatever looks at a page finds what was written last.
    #[test]
    fn a_page_that_is_not_fenced_yet_is_there_for_what_looks_next(touches in prop::collection::vec(touch(), 1..60)) {
        const LBAS: u32 = 64;
        let pool = pool(1 << 20);
        let mut volume = volume(512, LBAS.into());
        let mut model = vec![0; 512 * LBAS as usize];
        for (touch, fill) in touches.into_iter().zip(1..) {
            let range = |lba: u64, lbas: u32| {
                let start = 512 * usize::try_from(lba).unwrap();
                start..start + 512 * lbas as usize
            };
            let content = |lbas: u32| vec![fill; 512 * lbas as usize];
            match touch {
                Touch::WriteAtOnce(lba, lbas) => {
                    let buffer = data(&pool, &content(lbas)).buffer;
                    prop_assert!(volume.write_at_once(lba, lbas, buffer.raw()));
                    model[range(lba, lbas)].fill(fill);
                }
                Touch::Write(lba, lbas) => {
                    write(&mut volume, &pool, lba, &content(lbas), false);
                    model[range(lba, lbas)].fill(fill);
                }
                Touch::Zero(lba, lbas) => {
                    let op = Op::Discard { lba, lbas: lbas.into() };
                    prop_assert_eq!(run(&mut volume, op, None).result, Ok(()));
                    model[range(lba, lbas)].fill(0);
                }
                Touch::Read(lba, lbas) => {
                    prop_assert!(read(&mut volume, &pool, lba, lbas) == model[range(lba, lbas)]);
                }
                Touch::ReadInPlace(lba, lbas) => {
                    let mut seen = Vec::new();
                    in_memory(&volume).each(lba, lbas, &mut |now| seen.extend_from_slice(now));
                    prop_assert!(seen == model[range(lba, lbas)]);
                }
                Touch::PlaceOf(lba, lbas) => {
                    let (slab, at) = in_memory(&volume).place_of(lba, lbas).unwrap();
                    let mut seen = vec![0; at.len()];
                    let from = slab.base().as_ptr().wrapping_add(at.start);
                    // SAFETY: inside the slab, which nothing writes now.
                    unsafe { ptr::copy_nonoverlapping(from, seen.as_mut_ptr(), at.len()) };
                    prop_assert!(seen == model[range(lba, lbas)]);
                }
            }
        }
        prop_assert!(read(&mut volume, &pool, 0, 64) == model);
    }
}
