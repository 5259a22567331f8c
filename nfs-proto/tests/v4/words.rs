//! Messages that are written down word by word.

/// A message of XDR, put together by hand.
#[derive(Clone, Default)]
pub(crate) struct Words(pub(crate) Vec<u8>);

impl Words {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn word(mut self, word: u32) -> Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub(crate) fn words(self, words: &[u32]) -> Self {
        words.iter().fold(self, |message, word| message.word(*word))
    }

    pub(crate) fn hyper(mut self, hyper: u64) -> Self {
        self.0.extend(hyper.to_be_bytes());
        self
    }

    pub(crate) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn opaque(self, bytes: &[u8]) -> Self {
        self.word(u32::try_from(bytes.len()).unwrap()).fixed(bytes)
    }
}
