//! What becomes of state when the export of its files is taken out.

use super::State;
use super::opens::FileKey;

impl FileKey {
    /// The number of the file's export.
    fn export(&self) -> u64 {
        let number = self.bytes().first_chunk().copied().unwrap_or_default();
        u64::from_be_bytes(number)
    }
}

impl State {
    /// Ends all opens and locks of files of exports that are not there any more. Clients are told
    /// that the files are stale and the stateids bad; those that had been promised something lose
    /// nothing else, and keep their sessions. A LOCK or LOCKU that is under way finds nothing to
    /// commit.
    pub fn give_up_exports(&mut self, is_gone: impl Fn(u64) -> bool) {
        let files = self.files.iter().filter(|(key, _)| is_gone(key.export()));
        let opens = files.flat_map(|(_, file)| file.opens.values().copied());
        let opens: Vec<u64> = opens.collect();
        for open in opens {
            self.remove_open(open);
        }
    }
}
