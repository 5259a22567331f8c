//! Buffers that data is pushed from.

use capstan_memory::Buffer;

use crate::queue::Tag;

/// The buffers that the device may read, by the command whose data they have: one at most of each.
#[derive(Default)]
pub(super) struct Sources {
    slots: Vec<Option<HeldSource>>,
}

struct HeldSource {
    buffer: Buffer,
    /// A signaled work request is behind it: with its completion the device has read the buffer.
    is_followed: bool,
}

impl Sources {
    /// The device may read `buffer` from now on.
    #[inline]
    pub(super) fn put(&mut self, Tag(slot): Tag, buffer: Buffer) {
        let slot = usize::from(slot);
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(HeldSource {
                buffer,
                is_followed: false,
            });
        }
    }

    /// A signaled work request was posted behind that of the command, if there is one.
    #[inline]
    pub(super) fn followed(&mut self, Tag(slot): Tag) {
        if let Some(Some(source)) = self.slots.get_mut(usize::from(slot)) {
            source.is_followed = true;
        }
    }

    /// That work request has completed.
    #[inline]
    pub(super) fn take(&mut self, Tag(slot): Tag) -> Option<Buffer> {
        let source = self.slots.get_mut(usize::from(slot))?.take()?;
        Some(source.buffer)
    }

    /// All work requests have completed: takes out the buffers with a signaled work request behind
    /// them, of the slots that are wanted.
    pub(super) fn take_followed(
        &mut self,
        is_wanted: impl Fn(u16) -> bool,
    ) -> impl Iterator<Item = (Tag, Buffer)> {
        let slots = (0..=u16::MAX).zip(&mut self.slots);
        slots.filter_map(move |(slot, place)| {
            let source = place.take_if(|source| source.is_followed && is_wanted(slot))?;
            Some((Tag(slot), source.buffer))
        })
    }
}

#[cfg(test)]
mod tests {
    use capstan_memory::{Pages, Pool};

    use super::*;

    #[test]
    fn what_nothing_was_posted_behind_stays() {
        let pool = Pool::new(1 << 20, Pages::Ordinary).expect("memory");
        let mut sources = Sources::default();
        for slot in [3, 0, 7] {
            sources.put(Tag(slot), pool.take(4096).expect("memory"));
        }
        sources.followed(Tag(0));
        sources.followed(Tag(7));
        sources.followed(Tag(9));
        assert!(sources.take(Tag(7)).is_some() && sources.take(Tag(7)).is_none());
        assert_eq!(sources.take_followed(|slot| slot > 0).count(), 0);
        let taken: Vec<_> = sources
            .take_followed(|_| true)
            .map(|(tag, _)| tag)
            .collect();
        assert_eq!(taken, [Tag(0)]);
        assert!(sources.take(Tag(3)).is_some() && sources.take(Tag(0)).is_none());
    }
}
