//! What a key allows to which queue pair, and when keys become invalid.

use super::*;
use capstan_memory::Pages;

const ASKER: Asker = Asker { pd: 1, qp: 7 };

fn table() -> (StagTable, Arc<Slab>, u32) {
    let slab = Slab::new(1 << 16, Pages::Ordinary).unwrap();
    let mut table = StagTable::new();
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    let stag = table.register(&slab, 4096, 8192, all, 1).unwrap();
    (table, slab, stag)
}

#[test]
fn bounds_access_and_domain_are_checked() {
    let (mut table, slab, stag) = table();
    let at = slab.addr() + 4096;
    let ask = |pd, addr, len, need| {
        let asker = Asker { pd, ..ASKER };
        let span = table.remote(asker, stag, addr, len, need);
        span.map(|s| s.base().addr() as u64)
    };
    let write = Access::REMOTE_WRITE;
    assert_eq!(ask(1, at, 8192, write), Ok(at));
    assert_eq!(ask(1, at + 8192, 0, write), Ok(at + 8192));
    assert_eq!(ask(1, at + 1, 8192, write), Err(StagError::Bounds));
    assert_eq!(ask(1, at - 1, 1, write), Err(StagError::Bounds));
    assert_eq!(ask(1, u64::MAX, 2, write), Err(StagError::Wrap));
    assert_eq!(ask(2, at, 1, write), Err(StagError::NotAssociated));
    assert_eq!(ask(1, at, 1, Access::REMOTE_READ), Err(StagError::Access));
    assert!(table.deregister(stag).is_some());
    let gone = table.remote(ASKER, stag, at, 1, write);
    assert_eq!(gone.err(), Some(StagError::Invalid));
    assert!(table.deregister(stag).is_none());
}

#[test]
fn windows_are_bound_with_their_current_key_and_to_one_queue_pair() {
    let (mut table, slab, region) = table();
    let at = slab.addr() + 4096;
    let write = Access::REMOTE_WRITE;
    let window = table.allocate_window(1).unwrap();
    let old = table.next_rkey(window);
    let key = table.next_rkey(window);
    let bind =
        |table: &mut StagTable, key| table.bind(ASKER, key, LKey(region), at + 100, 50, write);
    assert_eq!(bind(&mut table, old), Err(StagError::Invalid));
    assert_eq!(bind(&mut table, key), Ok(()));
    assert_eq!(bind(&mut table, key), Err(StagError::Invalid));
    assert!(table.remote(ASKER, key.0, at + 100, 50, write).is_ok());
    let below = table.remote(ASKER, key.0, at + 99, 2, write).err();
    assert_eq!(below, Some(StagError::Bounds));
    let other = Asker { qp: 8, ..ASKER };
    let foreign = table.remote(other, key.0, at + 100, 1, write).err();
    assert_eq!(foreign, Some(StagError::NotAssociated));
    let foreign = table.invalidate(other, key.0, true);
    assert_eq!(foreign, Err(StagError::NotAssociated));
    assert_eq!(
        table.invalidate(ASKER, region, true),
        Err(StagError::Access)
    );
    assert_eq!(table.invalidate(ASKER, key.0, true), Ok(()));
    assert_eq!(
        table.invalidate(ASKER, key.0, true),
        Err(StagError::Invalid)
    );
    let again = table.next_rkey(window);
    assert_ne!(again, key);
    assert_eq!(bind(&mut table, again), Ok(()));
    table.deregister(region);
    let dead = table.remote(ASKER, again.0, at + 100, 1, write).err();
    assert_eq!(dead, Some(StagError::Invalid));
}

#[test]
fn a_window_grants_no_more_than_its_region() {
    let slab = Slab::new(4096, Pages::Ordinary).unwrap();
    let mut table = StagTable::new();
    let region = table.register(&slab, 0, 4096, Access::MW_BIND, 1).unwrap();
    let window = table.allocate_window(1).unwrap();
    let key = table.next_rkey(window);
    let bind = |table: &mut StagTable, access| {
        table.bind(ASKER, key, LKey(region), slab.addr(), 1, access)
    };
    assert_eq!(
        bind(&mut table, Access::REMOTE_WRITE),
        Err(StagError::Access)
    );
    assert_eq!(bind(&mut table, Access::REMOTE_READ), Ok(()));
}

#[test]
fn a_read_sink_opens_nothing() {
    let mut table = StagTable::new();
    let sink = table.allocate_read_sink().unwrap();
    let stag = table.read_sink_stag(sink);
    assert_ne!(stag, table.read_sink_stag(sink));
    let write = table.remote(ASKER, stag, 0, 1, Access::REMOTE_WRITE).err();
    assert_eq!(write, Some(StagError::Invalid));
}

#[test]
fn zeroes_are_known_and_cannot_be_written() {
    let slab = Slab::new(8192, Pages::Ordinary).unwrap();
    let mut table = StagTable::new();
    let stag = table.register_zeroes(&slab, 1).unwrap();
    let sge = Sge {
        addr: slab.addr() + 100,
        len_bytes: 4096,
        lkey: LKey(stag),
    };
    assert!(table.local(1, &sge, Access::empty()).unwrap().zeroes());
    assert!(table.local(1, &sge, Access::LOCAL_WRITE).is_err());
    // The index is used for something else afterwards.
    table.deregister(stag).unwrap();
    for _ in 0..=RESTING {
        let all = Access::LOCAL_WRITE;
        let stag = table.register(&slab, 0, 8192, all, 1).unwrap();
        let sge = Sge {
            lkey: LKey(stag),
            ..sge
        };
        assert!(!table.local(1, &sge, Access::empty()).unwrap().zeroes());
        table.deregister(stag).unwrap();
    }
}

#[test]
fn stag_zero_is_never_valid() {
    let mut table = StagTable::new();
    let window = table.allocate_window(1).unwrap();
    // An unbound entry at the index that 0 names.
    table.keys.give_zero_to(window);
    let zero = table.remote(ASKER, 0, 0, 0, Access::empty()).err();
    assert_eq!(zero, Some(StagError::Invalid));
    assert!(table.deregister(0).is_none());
    assert!(table.invalidate(ASKER, 0, true).is_err());
}

#[test]
fn indices_are_used_again_after_a_rest() {
    let mut table = StagTable::new();
    for _ in 0..10 * RESTING {
        let window = table.allocate_window(1).unwrap();
        table.release(window);
    }
    assert!(
        table.entries.len() <= RESTING + 1,
        "{}",
        table.entries.len()
    );
}
