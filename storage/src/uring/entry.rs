//! Submission queue entries: what a [`Command`] looks like to the kernel.

use io_uring::types::{Fd, Fixed, FsyncFlags};
use io_uring::{opcode, squeue};

use super::command::Command;
use super::open_file::OpenFile;

/// `BLOCK_URING_CMD_DISCARD`, `_IO(0x12, 0)` of `linux/blkdev.h`, Linux 6.12.
const BLOCK_URING_CMD_DISCARD: u32 = 0x1200;

/// Builds an entry on the fixed file when there is one, on the descriptor otherwise.
macro_rules! on_file {
    ($file:expr, |$fd:ident| $entry:expr) => {
        match $file.fixed {
            Some(place) => {
                let $fd = Fixed(place);
                $entry.build()
            }
            None => {
                let $fd = Fd($file.store.raw_fd());
                $entry.build()
            }
        }
    };
}

/// The submission queue entry of a command on `file`; memory that is registered with the ring has
/// the index `place` there.
pub(crate) fn entry(command: &Command, file: &OpenFile, place: Option<u16>) -> squeue::Entry {
    match *command {
        Command::Read {
            memory,
            len_bytes,
            offset_bytes,
        } => {
            let len = len_bytes;
            match place {
                Some(index) => on_file!(file, |fd| {
                    opcode::ReadFixed::new(fd, memory, len, index).offset(offset_bytes)
                }),
                None => {
                    on_file!(file, |fd| opcode::Read::new(fd, memory, len)
                        .offset(offset_bytes))
                }
            }
        }
        Command::Write {
            memory,
            len_bytes,
            offset_bytes,
            dsync,
        } => {
            let len = len_bytes;
            // pwritev2(2): RWF_DSYNC makes this one write as durable as O_DSYNC does.
            let flags = if dsync { libc::RWF_DSYNC } else { 0 };
            match place {
                Some(index) => on_file!(file, |fd| {
                    let write = opcode::WriteFixed::new(fd, memory, len, index);
                    write.offset(offset_bytes).rw_flags(flags)
                }),
                None => on_file!(file, |fd| {
                    let write = opcode::Write::new(fd, memory, len);
                    write.offset(offset_bytes).rw_flags(flags)
                }),
            }
        }
        Command::Fdatasync {
            offset_bytes,
            len_bytes,
        } => {
            let sync = |fd| opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC);
            let sync = sync(file.sync_fd());
            sync.offset(offset_bytes).len(len_bytes).build()
        }
        Command::Fallocate {
            mode,
            offset_bytes,
            len_bytes,
        } => on_file!(file, |fd| {
            let fallocate = opcode::Fallocate::new(fd, len_bytes);
            fallocate.offset(offset_bytes).mode(mode)
        }),
        Command::BlockDiscard {
            offset_bytes,
            len_bytes,
        } => {
            // The length sits in the entry's addr3, which is where the 16 command bytes are.
            let mut cmd = [0; 16];
            cmd[..8].copy_from_slice(&len_bytes.to_ne_bytes());
            on_file!(file, |fd| {
                let discard = opcode::UringCmd16::new(fd, BLOCK_URING_CMD_DISCARD);
                discard.cmd(cmd).addr(Some(offset_bytes))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::{env, process};

    use capstan_memory::{Pages, Slab};
    use io_uring::opcode;

    use super::entry;
    use crate::file::FileStore;
    use crate::spec::DirectIo;
    use crate::uring::command::Command;
    use crate::uring::fixed::{FixedBuffers, FixedTable};
    use crate::uring::open_file::{OpenFile, Refused};
    use crate::uring::setup::{self, Mode};
    use crate::uring::syncs::Syncs;

    /// `IOSQE_FIXED_FILE` (`io_uring_enter(2)`).
    const FIXED_FILE: u8 = 1;

    #[test]
    fn fixed_files_and_registered_memory_are_named_by_their_places() {
        let path = env::temp_dir().join(format!("capstan-entry-{}", process::id()));
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let name = Arc::from("file");
        let store = FileStore::open(&path, &name, Some(512), false, DirectIo::Off).unwrap();
        fs::remove_file(&path).unwrap();
        let store = Arc::new(store);
        let file = |fixed| OpenFile {
            store: Arc::clone(&store),
            fixed,
            to_sync: store.open_to_sync(),
            syncs: Syncs::default(),
            refused: Refused::default(),
            retired: Rc::default(),
        };
        let sync = Command::Fdatasync {
            offset_bytes: 0,
            len_bytes: 0,
        };

        let (ring, _) = setup::ring(8, 8, Mode::Plain).unwrap();
        let mut table = FixedTable::new(&ring);
        let [known, other] = [1, 1].map(|n| Slab::new(n << 16, Pages::Ordinary).unwrap());
        assert_eq!(table.register(&known), FixedBuffers::Registered);
        let read = |slab: &Slab| Command::Read {
            memory: slab.base().as_ptr(),
            len_bytes: 4096,
            offset_bytes: 0,
        };
        let write = |slab: &Slab| Command::Write {
            memory: slab.base().as_ptr(),
            len_bytes: 4096,
            offset_bytes: 0,
            dsync: true,
        };
        let expected = [
            (read(&known), opcode::ReadFixed::CODE),
            (read(&other), opcode::Read::CODE),
            (write(&known), opcode::WriteFixed::CODE),
            (write(&other), opcode::Write::CODE),
        ];
        for (command, code) in expected {
            for (fixed, flags) in [(Some(3), FIXED_FILE), (None, 0)] {
                let memory = command.memory();
                let place = memory.and_then(|(at, len)| table.place(&ring, at, len));
                let entry = entry(&command, &file(fixed), place);
                let text = format!("{entry:?}");
                assert_eq!(entry.get_opcode(), u32::from(code), "{command:?}");
                assert!(text.contains(&format!("flags: {flags},")), "{text}");
            }
        }
        // Through a description of its own, never the one that has the lock.
        let file = file(Some(3));
        let entry = entry(&sync, &file, None);
        assert_eq!(entry.get_opcode(), u32::from(opcode::Fsync::CODE));
        assert!(format!("{entry:?}").contains("flags: 0,"));
        assert_ne!(file.sync_fd(), store.raw_fd());
        table.clear(&ring);
    }
}
