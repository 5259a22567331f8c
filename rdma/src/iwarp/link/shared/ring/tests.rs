//! A writer and a reader of one ring, in one process.

use proptest::prelude::*;

use super::super::memory::Memory;
use super::*;

fn ends(memory: &Memory) -> (Writer, Reader) {
    let place = memory.place(false);
    (Writer::new(&place), Reader::new(&place))
}

fn piece(bytes: &mut [u8]) -> Piece {
    Piece::raw(bytes.as_mut_ptr(), bytes.len())
}

fn write(writer: &mut Writer, bytes: &mut [u8]) -> usize {
    let (a, b) = bytes.split_at_mut(bytes.len() / 3);
    // SAFETY: slices that are borrowed during the call.
    let written = unsafe { writer.write(&[piece(a), piece(b)]).unwrap() };
    assert_eq!(writer.publish(), written != 0);
    written
}

fn read(reader: &mut Reader, room: usize) -> Vec<u8> {
    let mut bytes = vec![0; room];
    let (a, b) = bytes.split_at_mut(room / 2);
    // SAFETY: slices that are borrowed during the call.
    let length = unsafe { reader.read(&[piece(a), piece(b)]).unwrap() };
    bytes.truncate(length);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_written_is_read_in_order(around: bool, sizes in prop::collection::vec((0..RING_BYTES * 2, 0..RING_BYTES * 2), 1..40)) {
        let (memory, _) = Memory::create().unwrap();
        let (mut writer, mut reader) = ends(&memory);
        writer.stores = StoreKind::at_first(around);
        let mut byte = 0u8;
        let mut expected = 0u8;
        let mut inside = 0;
        for (into, out_of) in sizes {
            let mut bytes: Vec<u8> = (0..into).map(|_| { byte = byte.wrapping_add(7); byte }).collect();
            let written = write(&mut writer, &mut bytes);
            prop_assert_eq!(written, into.min(RING_BYTES - inside));
            byte = written.checked_sub(1).map_or_else(
                || bytes.first().map_or(byte, |b| b.wrapping_sub(7)), |last| bytes[last]);
            inside += written;
            let got = read(&mut reader, out_of);
            prop_assert_eq!(got.len(), out_of.min(inside));
            inside -= got.len();
            for b in got {
                expected = expected.wrapping_add(7);
                prop_assert_eq!(b, expected);
            }
        }
    }
}

#[test]
fn nothing_is_read_once_the_writer_has_given_up() {
    for before in [0, 3] {
        let (memory, _) = Memory::create().unwrap();
        let (mut writer, mut reader) = ends(&memory);
        assert_eq!(write(&mut writer, &mut [7; 9]), 9);
        assert_eq!(read(&mut reader, before).len(), before);
        writer.abort();
        // SAFETY: no pieces.
        let error = unsafe { reader.read(&[]) }.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert!(reader.sleep().is_err());
    }
}

#[test]
fn what_is_not_published_is_not_read_and_can_be_taken_back() {
    let (memory, _) = Memory::create().unwrap();
    let (mut writer, mut reader) = ends(&memory);
    let mut bytes = [1, 2, 3, 4];
    // SAFETY: a slice that is borrowed during the call.
    assert_eq!(unsafe { writer.write(&[piece(&mut bytes)]) }.unwrap(), 4);
    assert!(read(&mut reader, 8).is_empty());
    writer.take_back(2);
    assert!(writer.publish() && !writer.publish());
    // What the reader may have seen stays.
    writer.take_back(0);
    assert_eq!(writer.written(), 2);
    assert_eq!(read(&mut reader, 8), [1, 2]);
}

#[test]
fn what_is_lent_stays_until_it_is_given_back() {
    let (memory, _) = Memory::create().unwrap();
    let (mut writer, mut reader) = ends(&memory);
    let mut bytes: Vec<u8> = (0..=250).cycle().take(RING_BYTES).collect();
    write(&mut writer, &mut bytes);
    let (mut before, mut after) = ([0; 10], [0; 20]);
    let mut around = |reader: &mut Reader, lent| {
        // SAFETY: slices that are borrowed during the call.
        let read = unsafe { reader.read_around(&[piece(&mut before)], lent, piece(&mut after)) };
        let (base, length) = read.unwrap()?;
        // SAFETY: so many bytes of the ring, which nothing writes now.
        let lent = unsafe { std::slice::from_raw_parts(base.as_ptr(), lent) };
        Some((before, lent.to_vec(), after, length))
    };
    let (before, lent, after, length) = around(&mut reader, 100).unwrap();
    assert_eq!(
        (before.as_slice(), lent.as_slice(), after.as_slice(), length),
        (&bytes[..10], &bytes[10..110], &bytes[110..130], 130)
    );
    assert_eq!(read(&mut reader, 20), bytes[130..150]);
    assert_eq!(writer.room(1).unwrap(), 0, "the lent bytes can be written");
    reader.give_back();
    assert_eq!(writer.room(1).unwrap(), 150);
    // More than there is.
    assert!(around(&mut reader, RING_BYTES).is_none());
    let rest = RING_BYTES - 150 - 1000;
    assert_eq!(read(&mut reader, rest).len(), rest);
    write(&mut writer, &mut bytes[..5000]);
    // The end of the ring is between them.
    assert!(around(&mut reader, 991).is_none());
    let (_, lent, after, length) = around(&mut reader, 990).unwrap();
    assert_eq!((lent.last(), after[0], length), (bytes.last(), 0, 1020));
    // Nothing behind them.
    read(&mut reader, 4980 - 1010);
    assert_eq!(around(&mut reader, 1000).unwrap().3, 1010);
    assert!(around(&mut reader, 1).is_none());
}

#[test]
fn positions_that_cannot_be_are_refused() {
    let (memory, _) = Memory::create().unwrap();
    let (mut writer, mut reader) = ends(&memory);
    let one_too_many = RING_BYTES as u64 + 1;
    for written in [one_too_many, u64::MAX] {
        let position = &reader.end.lines().written.0.position;
        position.store(written, Ordering::Relaxed);
        let mut byte = [0];
        // SAFETY: a slice that is borrowed during the call.
        let error = unsafe { reader.read(&[piece(&mut byte)]) }.unwrap_err();
        assert!(error.to_string().contains("impossible"), "{error}");
    }
    write(&mut writer, &mut vec![0; RING_BYTES]);
    for read in [one_too_many, u64::MAX] {
        writer.end.lines().read.0.store(read, Ordering::Relaxed);
        assert!(writer.room(1).is_err(), "{read}");
    }
}

#[test]
fn a_sleeping_reader_is_told_once_and_does_not_sleep_over_bytes() {
    let (memory, _) = Memory::create().unwrap();
    let (mut writer, mut reader) = ends(&memory);
    assert!(!writer.reader_sleeps());
    assert!(reader.sleep().unwrap());
    write(&mut writer, &mut [1, 2, 3]);
    assert!(writer.reader_sleeps());
    assert!(!writer.reader_sleeps());
    assert!(!reader.sleep().unwrap());
    reader.wake();
    assert!(!writer.reader_sleeps());
    assert_eq!(read(&mut reader, 8), [1, 2, 3]);
}

#[test]
fn a_writer_sleeps_before_a_full_ring_only() {
    let (memory, _) = Memory::create().unwrap();
    let (mut writer, mut reader) = ends(&memory);
    assert!(!writer.sleep().unwrap());
    writer.wake();
    assert_eq!(write(&mut writer, &mut vec![9; RING_BYTES + 1]), RING_BYTES);
    assert!(writer.sleep().unwrap());
    assert_eq!(read(&mut reader, RING_BYTES).len(), RING_BYTES);
    assert!(reader.writer_sleeps());
    assert!(!reader.writer_sleeps());
    assert_eq!(writer.room(1).unwrap(), RING_BYTES);
}
