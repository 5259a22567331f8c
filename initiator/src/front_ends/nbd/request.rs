//! Requests of the transmission phase, checked against the export.

use zerocopy::FromBytes;

use super::wire::{
    CommandFlags, CommandType, NbdError, PAYLOAD_BYTES_MAX, REQUEST_MAGIC, RequestHeader,
};
use crate::front_ends::block::{Fault, Geometry};

/// Most data of one I/O of the driver, in bytes: larger requests become several. One lease of
/// registered memory holds it, and one is all a slow client keeps busy.
pub(crate) const CHUNK_BYTES: u32 = 1 << 20;
/// Bytes of a request without its data.
pub(crate) const HEADER_BYTES: usize = size_of::<RequestHeader>();

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Read.
    Read,
    /// Write the data that follows.
    Write {
        /// Reply when it is on stable storage.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// The data is not needed any more.
    Trim {
        /// Reply when that is on stable storage.
        fua: bool,
    },
    /// Set to zero.
    WriteZeroes {
        /// Reply when they are on stable storage.
        fua: bool,
        /// The zeroes may become a hole.
        may_deallocate: bool,
    },
    /// Tell where zeroes are.
    BlockStatus {
        /// One extent is wanted.
        one: bool,
    },
    /// The client leaves.
    Disconnect,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Comes back in the reply.
    pub(crate) cookie: u64,
    /// What it wants; `None` is a command this server does not have.
    pub(crate) command: Option<Command>,
    /// First LBA and count, if it has a range.
    pub(crate) lbas: (u64, u32),
    /// Offset in bytes, as it came.
    pub(crate) offset_bytes: u64,
    /// Length in bytes, as it came.
    pub(crate) len_bytes: u32,
    /// It is answered with this error, after the data that follows has been taken.
    pub(crate) refused: Option<NbdError>,
}

impl Request {
    /// Bytes of data behind the request.
    #[must_use]
    pub(crate) fn payload_bytes(&self) -> u32 {
        match self.command {
            Some(Command::Write { .. }) => self.len_bytes,
            _ => 0,
        }
    }

    /// I/Os of at most [`CHUNK_BYTES`] that move its data.
    #[must_use]
    pub(crate) fn chunks(&self) -> u32 {
        self.len_bytes.div_ceil(CHUNK_BYTES)
    }

    /// Offset in the request, and length, of one of them; in bytes.
    #[must_use]
    pub(crate) fn chunk(&self, index: u32) -> (u32, u32) {
        let start = index.saturating_mul(CHUNK_BYTES).min(self.len_bytes);
        (start, (self.len_bytes - start).min(CHUNK_BYTES))
    }

    /// Parses the header at the start of `bytes`; `None` when it does not begin with the magic, and
    /// then nothing behind it can be understood either.
    #[must_use]
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES], geometry: &Geometry) -> Option<Self> {
        let header = RequestHeader::read_from_bytes(bytes).ok()?;
        if header.magic.get() != REQUEST_MAGIC {
            return None;
        }
        let flags = CommandFlags::from_bits(header.flags.get());
        let fua = flags.is_some_and(|flags| flags.contains(CommandFlags::FUA));
        let no_hole = flags.is_some_and(|flags| flags.contains(CommandFlags::NO_HOLE));
        let command = match CommandType(header.command.get()) {
            CommandType::READ => Some(Command::Read),
            CommandType::WRITE => Some(Command::Write { fua }),
            CommandType::DISC => Some(Command::Disconnect),
            CommandType::FLUSH => Some(Command::Flush),
            CommandType::TRIM => Some(Command::Trim { fua }),
            CommandType::WRITE_ZEROES => Some(Command::WriteZeroes {
                fua,
                may_deallocate: !no_hole,
            }),
            CommandType::BLOCK_STATUS => Some(Command::BlockStatus {
                one: flags.is_some_and(|flags| flags.contains(CommandFlags::REQ_ONE)),
            }),
            _ => None,
        };
        let mut request = Self {
            cookie: header.cookie.get(),
            command,
            lbas: (0, 0),
            offset_bytes: header.offset_bytes.get(),
            len_bytes: header.len_bytes.get(),
            refused: None,
        };
        match request.check(flags, geometry) {
            Ok(lbas) => request.lbas = lbas,
            Err(error) => request.refused = Some(error),
        }
        Some(request)
    }

    fn check(
        &self,
        flags: Option<CommandFlags>,
        geometry: &Geometry,
    ) -> Result<(u64, u32), NbdError> {
        let command = self.command.ok_or(NbdError::Einval)?;
        let flags = flags.ok_or(NbdError::Einval)?;
        let (allowed, writes) = match command {
            Command::Read => (CommandFlags::DF, false),
            Command::Write { .. } | Command::Trim { .. } => (CommandFlags::empty(), true),
            Command::WriteZeroes { .. } => (CommandFlags::NO_HOLE, true),
            Command::BlockStatus { .. } => (CommandFlags::REQ_ONE, false),
            Command::Flush | Command::Disconnect => return Ok((0, 0)),
        };
        // FUA is valid on every command ("a client MAY set this flag on all commands").
        if !(allowed | CommandFlags::FUA).contains(flags) {
            return Err(NbdError::Einval);
        }
        if writes && geometry.read_only {
            return Err(NbdError::Eperm);
        }
        let lbas = geometry
            .lbas(self.offset_bytes, self.len_bytes.into())
            .map_err(|fault| match fault {
                Fault::OutOfRange if writes => NbdError::Enospc,
                _ => NbdError::Einval,
            })?;
        let supported = match command {
            Command::Trim { .. } => geometry.discard,
            Command::WriteZeroes { .. } => geometry.write_zeroes,
            _ => true,
        };
        if !supported {
            return Err(NbdError::Enotsup);
        }
        let data = matches!(command, Command::Read | Command::Write { .. });
        if data && self.len_bytes > PAYLOAD_BYTES_MAX {
            return Err(NbdError::Einval);
        }
        if flags.contains(CommandFlags::DF) && self.len_bytes > CHUNK_BYTES {
            return Err(NbdError::Eoverflow);
        }
        Ok(lbas)
    }
}

impl From<Fault> for NbdError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::ReadOnly => Self::Eperm,
            Fault::Invalid | Fault::OutOfRange => Self::Einval,
            Fault::NoSpace => Self::Enospc,
            Fault::Unsupported => Self::Enotsup,
            Fault::Gone => Self::Eshutdown,
            Fault::Io => Self::Eio,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    const GEOMETRY: Geometry = Geometry {
        nsid: 1,
        size_bytes: 64 << 20,
        lba_bytes: 4096,
        read_only: false,
        write_zeroes: true,
        discard: true,
        holes: false,
    };

    fn header(command: CommandType, flags: u16, offset_bytes: u64, len_bytes: u32) -> [u8; 28] {
        let header = RequestHeader {
            magic: REQUEST_MAGIC.into(),
            flags: flags.into(),
            command: command.0.into(),
            cookie: 7.into(),
            offset_bytes: offset_bytes.into(),
            len_bytes: len_bytes.into(),
        };
        header.as_bytes().try_into().unwrap()
    }

    fn parse(command: CommandType, flags: u16, offset_bytes: u64, len_bytes: u32) -> Request {
        Request::parse(&header(command, flags, offset_bytes, len_bytes), &GEOMETRY).unwrap()
    }

    #[test]
    fn requests_are_typed_and_in_lbas() {
        let write = parse(CommandType::WRITE, 1, 8192, 12288);
        assert_eq!(write.command, Some(Command::Write { fua: true }));
        assert_eq!((write.lbas, write.refused), ((2, 3), None));
        assert_eq!(write.payload_bytes(), 12288);
        let zeroes = parse(CommandType::WRITE_ZEROES, 2, 0, 64 << 20);
        assert_eq!((zeroes.lbas, zeroes.refused), ((0, 16384), None));
        assert_eq!(
            zeroes.command,
            Some(Command::WriteZeroes {
                fua: false,
                may_deallocate: false
            })
        );
        assert_eq!(zeroes.payload_bytes(), 0);
    }

    #[test]
    fn a_large_request_is_several_chunks() {
        let read = parse(CommandType::READ, 0, 0, (2 << 20) + 4096);
        let chunks: Vec<_> = (0..read.chunks()).map(|i| read.chunk(i)).collect();
        assert_eq!(chunks, [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 4096)]);
        assert_eq!(parse(CommandType::READ, 4, 0, 4096).refused, None);
        assert_eq!(
            parse(CommandType::READ, 4, 0, 2 << 20).refused,
            Some(NbdError::Eoverflow)
        );
    }

    #[test]
    fn refusals_have_the_errors_of_the_protocol() {
        let refused = |command, flags, offset, len| parse(command, flags, offset, len).refused;
        assert_eq!(
            refused(CommandType::READ, 0, 512, 4096),
            Some(NbdError::Einval)
        );
        assert_eq!(refused(CommandType::READ, 0, 0, 0), Some(NbdError::Einval));
        assert_eq!(
            refused(CommandType::READ, 0, 64 << 20, 4096),
            Some(NbdError::Einval)
        );
        assert_eq!(
            refused(CommandType::WRITE, 0, 64 << 20, 4096),
            Some(NbdError::Enospc)
        );
        assert_eq!(
            refused(CommandType::WRITE, 0, u64::MAX - 4095, 4096),
            Some(NbdError::Enospc)
        );
        assert_eq!(
            refused(CommandType::WRITE, 2, 0, 4096),
            Some(NbdError::Einval)
        );
        assert_eq!(refused(CommandType(5), 0, 0, 4096), Some(NbdError::Einval));
        assert_eq!(
            refused(CommandType::READ, 1 << 9, 0, 4096),
            Some(NbdError::Einval)
        );
        let read_only = Geometry {
            read_only: true,
            ..GEOMETRY
        };
        let write = header(CommandType::WRITE, 0, 0, 4096);
        let write = Request::parse(&write, &read_only).unwrap();
        assert_eq!(
            (write.refused, write.payload_bytes()),
            (Some(NbdError::Eperm), 4096)
        );
        let poor = Geometry {
            discard: false,
            ..GEOMETRY
        };
        let trim = Request::parse(&header(CommandType::TRIM, 0, 0, 4096), &poor).unwrap();
        assert_eq!(trim.refused, Some(NbdError::Enotsup));
        let mut bad = header(CommandType::READ, 0, 0, 4096);
        bad[0] = 0;
        assert_eq!(Request::parse(&bad, &GEOMETRY), None);
    }

    proptest! {
        /// What is not refused is inside the volume, whatever the bytes.
        #[test]
        fn what_is_accepted_is_inside(
            command in 0_u16..9, flags in 0_u16..16, offset in any::<u64>(), len in any::<u32>(),
            aligned in any::<bool>(),
        ) {
            let (offset, len) = if aligned {
                ((offset % (65 << 20)) & !4095, (len % (40 << 20)) & !4095)
            } else {
                (offset, len)
            };
            let request = parse(CommandType(command), flags, offset, len);
            let (slba, nlb) = request.lbas;
            prop_assert!((slba + u64::from(nlb)) * 4096 <= GEOMETRY.size_bytes);
            if request.refused.is_none() && nlb > 0 {
                prop_assert_eq!(slba * 4096, offset);
                prop_assert_eq!(u64::from(nlb) * 4096, u64::from(len));
            }
        }
    }
}
