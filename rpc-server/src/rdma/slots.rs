//! A list whose elements keep their numbers.

/// At most so many elements, each with a number that is used again when it is gone.
#[derive(Debug)]
pub(super) struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<u16>,
    max: usize,
}

impl<T> Slots<T> {
    /// Room for `max` elements; no memory.
    pub(super) const fn new(max: usize) -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            max,
        }
    }

    /// Adds an element; it comes back where there is no room.
    pub(super) fn put(&mut self, element: T) -> Result<u16, T> {
        if let Some(slot) = self.free.pop() {
            if let Some(place) = self.all.get_mut(usize::from(slot)) {
                *place = Some(element);
            }
            return Ok(slot);
        }
        match u16::try_from(self.all.len()) {
            Ok(slot) if self.all.len() < self.max => {
                self.all.push(Some(element));
                Ok(slot)
            }
            _ => Err(element),
        }
    }

    pub(super) fn get_mut(&mut self, slot: u16) -> Option<&mut T> {
        self.all.get_mut(usize::from(slot))?.as_mut()
    }

    pub(super) fn take(&mut self, slot: u16) -> Option<T> {
        let taken = self.all.get_mut(usize::from(slot))?.take();
        if taken.is_some() {
            self.free.push(slot);
        }
        taken
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len().saturating_sub(self.free.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter().flatten()
    }

    /// All of them, with their numbers.
    pub(super) fn into_iter(self) -> impl Iterator<Item = (u16, T)> {
        let numbered = (0..=u16::MAX).zip(self.all);
        numbered.filter_map(|(slot, element)| Some((slot, element?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_used_again() {
        let mut slots = Slots::new(2);
        assert_eq!((slots.put('a'), slots.put('b')), (Ok(0), Ok(1)));
        assert_eq!(slots.put('c'), Err('c'));
        assert_eq!((slots.take(0), slots.take(0)), (Some('a'), None));
        assert_eq!((slots.len(), slots.put('d')), (1, Ok(0)));
        assert_eq!(slots.get_mut(1), Some(&mut 'b'));
        assert_eq!(slots.take(9), None);
        assert_eq!(slots.into_iter().collect::<Vec<_>>(), [(0, 'd'), (1, 'b')]);
    }
}
