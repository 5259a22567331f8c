//! The input of a target that is a run of operations.

/// The input, taken from the front; zero once it is used up.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, `max_bytes` or what there is.
    pub(crate) fn piece(&mut self, max_bytes: usize) -> &'a [u8] {
        let (piece, rest) = self.0.split_at(max_bytes.min(self.0.len()));
        self.0 = rest;
        piece
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let piece = self.piece(N);
        out[..piece.len()].copy_from_slice(piece);
        out
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let [byte] = self.bytes();
        byte
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    /// Spoils up to three bytes of `data`.
    pub(crate) fn spoil(&mut self, data: &mut [u8]) {
        for _ in 0..self.byte() & 0b11 {
            let (at, value) = (usize::from(self.word()), self.byte());
            if let Some(byte) = data.get_mut(at) {
                *byte = value;
            }
        }
    }
}
