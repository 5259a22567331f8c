//! Lists of buffers of the host. Few commands have one at the same time, and so the commands of a
//! thread share the memory of those.

use std::cell::RefCell;

use crate::data::KeyedBuffer;
use crate::limits::SGL_DESCRIPTORS_MAX;

thread_local! {
    /// Memory of this thread that no list has: as much as was once in use at the same time.
    static SPARE: RefCell<Vec<Vec<KeyedBuffer>>> = const { RefCell::new(Vec::new()) };
}

/// Buffers of the host, in order: those of one command, of which there are at most
/// [`SGL_DESCRIPTORS_MAX`]. To be dropped by the thread that made it, as another one would keep its
/// memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyedList(Vec<KeyedBuffer>);

impl KeyedList {
    /// The buffers.
    pub(crate) fn buffers(&self) -> &[KeyedBuffer] {
        &self.0
    }
}

impl FromIterator<KeyedBuffer> for KeyedList {
    fn from_iter<I: IntoIterator<Item = KeyedBuffer>>(buffers: I) -> Self {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let mut list = spare.unwrap_or_else(|| Vec::with_capacity(SGL_DESCRIPTORS_MAX as usize));
        list.extend(buffers);
        Self(list)
    }
}

impl Clone for KeyedList {
    fn clone(&self) -> Self {
        self.0.iter().copied().collect()
    }
}

impl Drop for KeyedList {
    fn drop(&mut self) {
        let mut list = std::mem::take(&mut self.0);
        list.clear();
        // Fails where the thread ends: then the memory is freed.
        let _ = SPARE.try_with(|spare| spare.borrow_mut().push(list));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(count: u32) -> KeyedList {
        let buffer = |rkey| KeyedBuffer {
            address: 0x1000,
            rkey,
            len_bytes: 512,
        };
        (0..count).map(buffer).collect()
    }

    #[test]
    fn lists_take_the_memory_of_those_before_them() {
        let lists = [list(2), list(SGL_DESCRIPTORS_MAX)];
        let places = lists.each_ref().map(|list| list.buffers().as_ptr());
        drop(lists);
        // An allocator would give it what was freed last.
        let others: [_; 2] = [2, 16].map(Vec::<KeyedBuffer>::with_capacity);
        let lists = [list(SGL_DESCRIPTORS_MAX), list(1)];
        for list in &lists {
            assert!(places.contains(&list.buffers().as_ptr()));
        }
        assert_eq!(lists[0].buffers().len(), SGL_DESCRIPTORS_MAX as usize);
        assert_eq!(lists[1].buffers().len(), 1);
        assert_eq!(lists[1], lists[1].clone());
        drop(others);
    }
}
