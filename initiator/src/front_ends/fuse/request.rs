//! A request of the kernel, typed.

use zerocopy::FromBytes;

use super::wire::{
    FATTR_SIZE, FallocateIn, InHeader, InitIn, Opcode, OpenIn, ReadIn, SetattrIn, WriteIn,
};

/// Most bytes of a request's body that are looked at: the longest name and its end.
pub(crate) const BODY_BYTES_MAX: usize = 264;

/// A request. Nodes: 1 is the folder, 2 the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// The kernel introduces itself: major and minor version, bytes read ahead, flags.
    Init {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
        /// Most bytes read ahead.
        max_readahead_bytes: u32,
        /// Flags the kernel knows.
        flags: u32,
    },
    /// Which node a name is of.
    Lookup(&'a [u8]),
    /// Attributes.
    Getattr,
    /// Set attributes; the new size, if it is one of them.
    Setattr(Option<u64>),
    /// Open, with the flags of open(2).
    Open(u32),
    /// Open the folder.
    Opendir,
    /// List the folder from an entry on, in at most so many bytes.
    Readdir {
        /// First entry.
        offset: u64,
        /// Room in bytes.
        size_bytes: u32,
    },
    /// Sizes of the file system.
    Statfs,
    /// Read.
    Read {
        /// First byte.
        offset_bytes: u64,
        /// Bytes.
        len_bytes: u32,
    },
    /// Write the data behind the request.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// Bytes.
        len_bytes: u32,
    },
    /// Make writes durable.
    Sync,
    /// Change the allocation, with the mode of fallocate(2).
    Fallocate {
        /// First byte.
        offset_bytes: u64,
        /// Bytes.
        len_bytes: u64,
        /// Mode.
        mode: u32,
    },
    /// Close, or something else that needs nothing but a yes.
    Nothing,
    /// Has no reply.
    Silent,
    /// Not supported.
    Unsupported,
    /// Too short for its kind.
    Malformed,
}

impl<'a> Request<'a> {
    /// What `header` and the bytes behind it mean.
    #[must_use]
    pub(crate) fn parse(header: &InHeader, body: &'a [u8]) -> Self {
        Self::parse_body(Opcode(header.opcode), body).unwrap_or(Self::Malformed)
    }

    fn parse_body(opcode: Opcode, body: &'a [u8]) -> Option<Self> {
        Some(match opcode {
            Opcode::INIT => {
                let init = start::<InitIn>(body)?;
                Self::Init {
                    major: init.major,
                    minor: init.minor,
                    max_readahead_bytes: init.max_readahead_bytes,
                    flags: init.flags,
                }
            }
            Opcode::LOOKUP => {
                let end = body.iter().position(|&byte| byte == 0)?;
                Self::Lookup(body.get(..end)?)
            }
            Opcode::GETATTR => Self::Getattr,
            Opcode::SETATTR => {
                let setattr = start::<SetattrIn>(body)?;
                Self::Setattr((setattr.valid & FATTR_SIZE != 0).then_some(setattr.size_bytes))
            }
            Opcode::OPEN => Self::Open(start::<OpenIn>(body)?.flags),
            Opcode::OPENDIR => Self::Opendir,
            Opcode::READDIR => {
                let read = start::<ReadIn>(body)?;
                Self::Readdir {
                    offset: read.offset_bytes,
                    size_bytes: read.size_bytes,
                }
            }
            Opcode::STATFS => Self::Statfs,
            Opcode::READ => {
                let read = start::<ReadIn>(body)?;
                Self::Read {
                    offset_bytes: read.offset_bytes,
                    len_bytes: read.size_bytes,
                }
            }
            Opcode::WRITE => {
                let write = start::<WriteIn>(body)?;
                Self::Write {
                    offset_bytes: write.offset_bytes,
                    len_bytes: write.size_bytes,
                }
            }
            Opcode::FSYNC | Opcode::FLUSH => Self::Sync,
            Opcode::FALLOCATE => {
                let fallocate = start::<FallocateIn>(body)?;
                Self::Fallocate {
                    offset_bytes: fallocate.offset_bytes,
                    len_bytes: fallocate.length_bytes,
                    mode: fallocate.mode,
                }
            }
            Opcode::RELEASE | Opcode::RELEASEDIR | Opcode::FSYNCDIR | Opcode::DESTROY => {
                Self::Nothing
            }
            Opcode::FORGET | Opcode::BATCH_FORGET => Self::Silent,
            // Among them INTERRUPT: "not supported" makes the kernel wait for the reply itself.
            _ => Self::Unsupported,
        })
    }
}

fn start<T: FromBytes>(body: &[u8]) -> Option<T> {
    T::read_from_prefix(body).ok().map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(opcode: Opcode) -> InHeader {
        InHeader {
            len_bytes: 0,
            opcode: opcode.0,
            unique: 1,
            nodeid: 1,
            uid: 0,
            gid: 0,
            pid: 0,
            total_extlen: 0,
            padding: 0,
        }
    }

    #[test]
    fn names_end_with_zero() {
        let lookup = header(Opcode::LOOKUP);
        assert_eq!(
            Request::parse(&lookup, b"volume\0"),
            Request::Lookup(b"volume")
        );
        assert_eq!(Request::parse(&lookup, b"volume"), Request::Malformed);
    }

    #[test]
    fn unknown_opcodes_are_unsupported() {
        for opcode in [5, 22, 36, 39, 46, 52, 9999] {
            assert_eq!(
                Request::parse(&header(Opcode(opcode)), &[0; 100]),
                Request::Unsupported
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse(opcode in 0_u32..60, body in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Request::parse(&header(Opcode(opcode)), &body);
        }
    }
}
