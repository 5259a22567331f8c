//! Which namespaces have acknowledged writes that no Flush has covered yet.

/// By namespace. Grows with the first write to each, and never with an I/O.
#[derive(Debug, Default)]
pub(super) struct Unflushed(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    nsid: u32,
    dirty: Option<Dirty>,
    /// Since when, in microseconds, there had been such writes when they were lost.
    lost_since_us: Option<u64>,
    ever_lost: bool,
    /// There were such writes when a controller could not save them at its shutdown.
    not_saved: bool,
}

#[derive(Clone, Copy, Debug)]
struct Dirty {
    /// What is submitted from this number on comes behind the last acknowledged write.
    next_sequence: u64,
    since_us: u64,
}

impl Unflushed {
    fn entry(&mut self, nsid: u32) -> Option<&mut Entry> {
        self.0.iter_mut().find(|entry| entry.nsid == nsid)
    }

    /// A write was acknowledged; what is submitted next has the number `next_sequence`.
    pub(super) fn acknowledged(&mut self, nsid: u32, next_sequence: u64, now_us: u64) {
        let fresh = Dirty {
            next_sequence,
            since_us: now_us,
        };
        match self.entry(nsid) {
            Some(entry) => entry.dirty.get_or_insert(fresh).next_sequence = next_sequence,
            None => self.0.push(Entry {
                nsid,
                dirty: Some(fresh),
                lost_since_us: None,
                ever_lost: false,
                not_saved: false,
            }),
        }
    }

    /// Whether there are acknowledged writes that no Flush has covered.
    pub(super) fn is_dirty(&self, nsid: u32) -> bool {
        self.0
            .iter()
            .any(|entry| entry.nsid == nsid && entry.dirty.is_some())
    }

    /// A controller could not save everything: what no Flush had covered may be lost.
    pub(super) fn not_saved(&mut self) {
        for entry in &mut self.0 {
            entry.not_saved |= entry.dirty.is_some();
        }
    }

    /// Whether such writes are among what may be lost.
    pub(super) fn is_not_saved(&self, nsid: u32) -> bool {
        self.0
            .iter()
            .any(|entry| entry.nsid == nsid && entry.not_saved)
    }

    /// Namespaces that were written to.
    pub(super) fn nsids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|entry| entry.nsid)
    }

    /// A Flush with the number `sequence` has succeeded: it covers what had been acknowledged when
    /// it was submitted.
    pub(super) fn flushed(&mut self, nsid: u32, sequence: u64) {
        if let Some(entry) = self.entry(nsid) {
            entry.dirty.take_if(|dirty| dirty.next_sequence <= sequence);
        }
    }

    /// Volatile caches are gone: the namespaces whose writes may be lost with them.
    pub(super) fn lose(&mut self) -> Vec<u32> {
        let mut nsids = Vec::new();
        for entry in &mut self.0 {
            if let Some(dirty) = entry.dirty.take() {
                entry.lost_since_us.get_or_insert(dirty.since_us);
                entry.ever_lost = true;
                nsids.push(entry.nsid);
            }
        }
        nsids
    }

    /// Whether a namespace has lost writes, and nobody who flushes was told.
    pub(super) fn has_lost(&self) -> bool {
        self.0.iter().any(|entry| entry.lost_since_us.is_some())
    }

    /// Whether the namespace has lost writes, told or not: they stay lost.
    pub(super) fn has_ever_lost(&self, nsid: u32) -> bool {
        self.0
            .iter()
            .any(|entry| entry.nsid == nsid && entry.ever_lost)
    }

    /// Since when there were writes that may be lost; told once.
    pub(super) fn take_lost(&mut self, nsid: u32) -> Option<u64> {
        self.entry(nsid)?.lost_since_us.take()
    }
}

#[cfg(test)]
mod tests {
    use super::Unflushed;

    #[test]
    fn only_what_was_acknowledged_before_a_flush_is_covered_by_it() {
        let mut unflushed = Unflushed::default();
        unflushed.acknowledged(1, 5, 100);
        // Submitted before the write was acknowledged.
        unflushed.flushed(1, 4);
        assert_eq!(unflushed.lose(), [1]);
        assert_eq!(unflushed.take_lost(1), Some(100));

        unflushed.acknowledged(1, 7, 200);
        unflushed.acknowledged(2, 8, 300);
        unflushed.flushed(1, 9);
        assert_eq!(unflushed.lose(), [2]);
        assert!(unflushed.has_lost());
        assert_eq!(unflushed.take_lost(1), None);
        assert_eq!(
            (unflushed.take_lost(2), unflushed.take_lost(2)),
            (Some(300), None)
        );
        assert!(!unflushed.has_lost());
    }

    #[test]
    fn the_oldest_write_says_since_when() {
        let mut unflushed = Unflushed::default();
        unflushed.acknowledged(1, 1, 10);
        unflushed.acknowledged(1, 2, 20);
        unflushed.lose();
        unflushed.acknowledged(1, 3, 30);
        unflushed.lose();
        assert_eq!(unflushed.take_lost(1), Some(10));
    }
}
