//! Records as they come in.

use std::collections::VecDeque;

use capstan_rpcrdma::record::{Event, RecordError, RecordReader};

use crate::calls::Spare;
use crate::limits::RECORD_TRUSTED_BYTES;

/// What has come of one connection and was not carried out yet.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    reader: RecordReader,
    /// The record that is being received.
    record: Vec<u8>,
    /// Since when, or since when more of it is read again.
    begun_us: Option<u64>,
    /// Whole records with the times at which they came, and the memory they have.
    waiting: VecDeque<(Vec<u8>, u64)>,
    waiting_bytes: usize,
    /// What came behind the last record that could be taken.
    left: Vec<u8>,
}

impl Incoming {
    /// Takes what has come, of which at most `calls_max` records are completed. What is left then
    /// waits for [`Incoming::resume`].
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        calls_max: usize,
        now_us: u64,
        spare: &mut Spare,
    ) -> Result<(), RecordError> {
        let mut calls_left = calls_max;
        while calls_left > 0 {
            if !bytes.is_empty() {
                self.begun_us.get_or_insert(now_us);
            }
            match self.reader.next(&mut bytes)? {
                Some(Event::Data(data)) => self.append(data, spare),
                Some(Event::End) => {
                    let record = std::mem::take(&mut self.record);
                    self.waiting_bytes = self.waiting_bytes.saturating_add(record.capacity());
                    self.waiting.push_back((record, now_us));
                    self.begun_us = None;
                    calls_left = calls_left.saturating_sub(1);
                }
                None => break,
            }
        }
        self.left.extend_from_slice(bytes);
        Ok(())
    }

    /// Goes on with what was left, as [`Incoming::take`].
    pub(super) fn resume(
        &mut self,
        calls_max: usize,
        now_us: u64,
        spare: &mut Spare,
    ) -> Result<(), RecordError> {
        if self.left.is_empty() || calls_max == 0 {
            return Ok(());
        }
        let left = std::mem::take(&mut self.left);
        let taken = self.take(&left, calls_max, now_us, spare);
        spare.put(left);
        taken
    }

    fn append(&mut self, data: &[u8], spare: &mut Spare) {
        let so_far = self.record.len();
        let announced = usize::try_from(self.reader.record_bytes()).unwrap_or(so_far);
        if self.record.capacity() == 0 {
            self.record = spare.take(announced);
        }
        if so_far >= RECORD_TRUSTED_BYTES {
            self.record.reserve_exact(announced.saturating_sub(so_far));
        }
        self.record.extend_from_slice(data);
    }

    /// The oldest whole record, and when it came.
    pub(super) fn pop(&mut self) -> Option<(Vec<u8>, u64)> {
        let (record, came_us) = self.waiting.pop_front()?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(record.capacity());
        Some((record, came_us))
    }

    /// When the oldest whole record came.
    pub(super) fn oldest_us(&self) -> Option<u64> {
        self.waiting.front().map(|(_, came_us)| *came_us)
    }

    /// Whole records that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether something was read that is not in a record yet.
    pub(super) fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Memory of all that has come, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.waiting_bytes
            .saturating_add(self.record.capacity())
            .saturating_add(self.left.capacity())
    }

    /// Since when a record is being received.
    pub(super) fn begun_us(&self) -> Option<u64> {
        self.begun_us
    }

    /// More is read again: the client had no say in the time until now.
    pub(super) fn goes_on(&mut self, now_us: u64) {
        if let Some(begun_us) = &mut self.begun_us {
            *begun_us = now_us;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(incoming: &mut Incoming) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| Some(incoming.pop()?.0)).collect()
    }

    fn stream(records: &[&[u8]]) -> Vec<u8> {
        let marked = records.iter().map(|record| {
            let mark = capstan_rpcrdma::record::record_mark(record.len()).unwrap();
            [&mark, *record].concat()
        });
        marked.collect::<Vec<_>>().concat()
    }

    #[test]
    fn records_beyond_the_bound_wait_as_bytes() {
        let spare = &mut Spare::default();
        let bytes = stream(&[b"one", b"two", b"three", b"four"]);
        for cut in 0..=bytes.len() {
            let mut incoming = Incoming::default();
            let (first, second) = bytes.split_at(cut);
            incoming.take(first, 2, 1, spare).unwrap();
            let room = 2 - incoming.waiting();
            incoming.resume(room, 1, spare).unwrap();
            incoming.take(second, room, 1, spare).unwrap();
            assert_eq!(incoming.waiting(), 2, "cut at {cut}");
            assert_eq!(records(&mut incoming), [b"one", b"two"]);
            assert!(incoming.has_left());
            incoming.resume(9, 2, spare).unwrap();
            assert_eq!(records(&mut incoming), [&b"three"[..], b"four"]);
            assert!(!incoming.has_left());
            assert_eq!((incoming.begun_us(), incoming.waiting_bytes), (None, 0));
        }
    }

    #[test]
    fn the_time_of_a_record_begins_with_its_first_byte() {
        let spare = &mut Spare::default();
        let mut incoming = Incoming::default();
        let bytes = stream(&[b"one", b"two"]);
        incoming.take(&bytes[..8], 9, 5, spare).unwrap();
        assert_eq!(incoming.begun_us(), Some(5));
        incoming.take(&bytes[8..9], 9, 6, spare).unwrap();
        assert_eq!(incoming.begun_us(), Some(5));
        incoming.goes_on(8);
        assert_eq!(incoming.begun_us(), Some(8));
        incoming.take(&bytes[9..], 9, 9, spare).unwrap();
        assert_eq!((incoming.begun_us(), incoming.waiting()), (None, 2));
    }

    #[test]
    fn without_a_record_there_is_no_memory() {
        let spare = &mut Spare::default();
        for _ in 0..9 {
            spare.put(Vec::with_capacity(1 << 20));
        }
        let mut incoming = Incoming::default();
        incoming.take(&stream(&[b"one"]), 9, 0, spare).unwrap();
        assert!(incoming.held_bytes() < 1024, "a short record has little");
        incoming.pop();
        assert_eq!(incoming.held_bytes(), 0);
    }

    #[test]
    fn memory_comes_with_the_bytes_and_not_with_the_mark() {
        let spare = &mut Spare::default();
        let mut incoming = Incoming::default();
        incoming.take(&[0x80, 0x10, 0, 0, 1], 9, 0, spare).unwrap();
        assert!(incoming.held_bytes() < 1024);
        let some = vec![0; RECORD_TRUSTED_BYTES];
        incoming.take(&some, 9, 0, spare).unwrap();
        assert!(incoming.held_bytes() < 4 * RECORD_TRUSTED_BYTES);
        incoming.take(&[0], 9, 0, spare).unwrap();
        let held = incoming.held_bytes();
        assert!((1 << 20..=(1 << 20) + 64).contains(&held), "{held}");
    }
}
