//! Data: what came with a command capsule, where data is in the host, and what is pushed there.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use capstan_memory::{Buffer, Slab};

use crate::keyed_list::KeyedList;
use crate::queue::Tag;

/// What came behind the SQE of a command capsule.
#[derive(Debug, Default)]
pub enum CapsuleData {
    /// Nothing.
    #[default]
    None,
    /// A copy: a list of SGL descriptors, or data that is not worth a buffer.
    Copied(Box<[u8]>),
    /// Where it arrived, in memory of the wire. It stays there until the wire is polled again, and
    /// before that is either consumed there or landed.
    InPlace(InPlace),
    /// In a buffer of its own.
    Landed(Landed),
}

/// In-capsule data in memory of the wire: its bytes are seen only by calls of that wire.
#[derive(Clone, Copy, Debug)]
pub struct InPlace {
    /// The name of the data at its wire.
    pub(crate) message: u64,
    /// Where the data begins, from the end of the SQE.
    pub(crate) offset_bytes: u32,
    pub(crate) len_bytes: u32,
}

impl InPlace {
    /// Bytes of data.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }
}

/// In-capsule data in a buffer, which goes back to its wire.
#[derive(Debug)]
pub struct Landed {
    /// The buffer.
    pub buffer: Buffer,
    /// Where the data begins in it.
    pub offset_bytes: u32,
    /// Bytes of data.
    pub len_bytes: u32,
    /// What the buffer belongs to.
    pub receive: Receive,
}

/// What the buffer of in-capsule data belongs to: a receive over RDMA, and nothing over NVMe/TCP.
#[derive(Clone, Copy, Debug)]
pub struct Receive(pub(crate) Option<u32>);

impl Landed {
    /// The data.
    #[must_use]
    #[expect(unsafe_code, reason = "reads received bytes where they landed")]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a wire makes a `Landed` of a receive that has completed, and posts it again only
        // after the buffer was given back to it; hosts have no remote access to that memory. So
        // nothing writes it while it is borrowed here.
        let bytes = unsafe { self.buffer.bytes() };
        let behind = bytes.get(self.offset_bytes as usize..).unwrap_or_default();
        behind.get(..self.len_bytes as usize).unwrap_or(behind)
    }
}

impl CapsuleData {
    /// Takes the data, and leaves nothing.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Bytes behind the SQE.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Copied(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::InPlace(InPlace { len_bytes, .. }) | Self::Landed(Landed { len_bytes, .. }) => {
                *len_bytes
            }
        }
    }

    /// Leaves this range of the data, which is that of the command.
    pub(crate) fn cut(&mut self, range: &Range<usize>) {
        match self {
            Self::None => {}
            Self::Copied(bytes) => {
                if *range != (0..bytes.len()) {
                    *bytes = bytes.get(range.clone()).unwrap_or_default().into();
                }
            }
            Self::InPlace(InPlace {
                offset_bytes,
                len_bytes,
                ..
            })
            | Self::Landed(Landed {
                offset_bytes,
                len_bytes,
                ..
            }) => {
                *offset_bytes = offset_bytes.saturating_add(narrow(range.start));
                *len_bytes = narrow(range.len());
            }
        }
    }
}

/// Places in a capsule are below 2^32, because buffers are.
pub(crate) fn narrow(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Where the data of a command is or goes at the host. Only the wire whose queue has found it
/// ([`Queue::host_memory`](crate::Queue::host_memory)) looks inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    pub(crate) place: HostPlace,
    /// The key that the response is to invalidate.
    invalidate: Option<u32>,
}

/// Kinds of memory of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum HostPlace {
    /// The command has no data.
    #[default]
    None,
    /// In the capsule.
    InCapsule {
        /// Bytes.
        length_bytes: u32,
    },
    /// A Transport SGL Data Block of NVMe/TCP: the host sends the data when it is asked to, and
    /// takes data that comes, by the identifier of the command.
    Transport {
        /// Command Identifier.
        cid: u16,
        /// From the start of the command's data, in bytes.
        offset_bytes: u32,
        /// Bytes from there on.
        length_bytes: u32,
    },
    /// A buffer that RDMA reaches with a key.
    Keyed(KeyedBuffer),
    /// Several buffers that RDMA reaches with keys.
    KeyedList(KeyedList),
}

// In a command a list takes no more than one buffer.
const _: () = assert!(size_of::<HostPlace>() == size_of::<Option<KeyedBuffer>>());

/// A buffer of the host that RDMA reaches with `rkey`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyedBuffer {
    /// Its first address.
    pub(crate) address: u64,
    /// The key (`STag`).
    pub(crate) rkey: u32,
    /// Bytes to move.
    pub(crate) len_bytes: u32,
}

impl HostMemory {
    #[inline]
    pub(crate) fn new(place: HostPlace, invalidate: Option<u32>) -> Self {
        Self { place, invalidate }
    }

    /// Bytes of data.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        match &self.place {
            HostPlace::None => 0,
            HostPlace::InCapsule { length_bytes } | HostPlace::Transport { length_bytes, .. } => {
                *length_bytes
            }
            HostPlace::Keyed(buffer) => buffer.len_bytes,
            HostPlace::KeyedList(list) => list
                .buffers()
                .iter()
                .fold(0, |sum: u32, buffer| sum.saturating_add(buffer.len_bytes)),
        }
    }

    /// Whether data is to be pulled from there or pushed there: false where there is none, and for
    /// in-capsule data.
    #[must_use]
    #[inline]
    pub fn is_remote(&self) -> bool {
        match self.place {
            HostPlace::None | HostPlace::InCapsule { .. } => false,
            HostPlace::Transport { .. } | HostPlace::Keyed(_) | HostPlace::KeyedList(_) => true,
        }
    }

    /// Whether data is to be pulled from one place or pushed there.
    #[must_use]
    #[inline]
    pub fn is_one_place(&self) -> bool {
        matches!(
            self.place,
            HostPlace::Transport { .. } | HostPlace::Keyed(_)
        )
    }

    /// Whether the data came in the capsule.
    #[must_use]
    #[inline]
    pub fn is_in_capsule(&self) -> bool {
        matches!(self.place, HostPlace::InCapsule { .. })
    }

    /// What the response to the command is to invalidate, for
    /// [`Queue::respond`](crate::Queue::respond).
    #[must_use]
    #[inline]
    pub fn invalidate(&self) -> Option<u32> {
        self.invalidate
    }

    /// Its buffers that RDMA reaches, in order.
    #[inline]
    pub(crate) fn keyed(&self) -> &[KeyedBuffer] {
        match &self.place {
            HostPlace::None | HostPlace::InCapsule { .. } | HostPlace::Transport { .. } => &[],
            HostPlace::Keyed(buffer) => std::slice::from_ref(buffer),
            HostPlace::KeyedList(list) => list.buffers(),
        }
    }

    /// The memory behind the first `len_bytes`.
    #[must_use]
    pub fn behind(&self, len_bytes: u32) -> Self {
        let mut skip_bytes = len_bytes;
        let rest = self.keyed().iter().filter_map(|buffer| {
            let skipped = skip_bytes.min(buffer.len_bytes);
            skip_bytes -= skipped;
            let rest = KeyedBuffer {
                address: buffer.address.wrapping_add(skipped.into()),
                len_bytes: buffer.len_bytes - skipped,
                ..*buffer
            };
            (rest.len_bytes > 0).then_some(rest)
        });
        let place = match &self.place {
            HostPlace::None => HostPlace::None,
            HostPlace::InCapsule { length_bytes } => HostPlace::InCapsule {
                length_bytes: length_bytes.saturating_sub(len_bytes),
            },
            HostPlace::Transport {
                cid,
                offset_bytes,
                length_bytes,
            } => HostPlace::Transport {
                cid: *cid,
                offset_bytes: offset_bytes.saturating_add(len_bytes),
                length_bytes: length_bytes.saturating_sub(len_bytes),
            },
            HostPlace::Keyed(_) => rest.last().map_or(HostPlace::None, HostPlace::Keyed),
            HostPlace::KeyedList(_) => HostPlace::KeyedList(rest.collect()),
        };
        Self::new(place, self.invalidate)
    }
}

/// Calls its argument with bytes to copy, piece by piece and in order.
pub type CopyTo<'a> = dyn FnMut(&mut dyn FnMut(&[u8])) + 'a;

/// What a push takes its bytes from.
pub enum Source<'a> {
    /// A range of a buffer: all that the command returns. Unless it is copied at once, it belongs
    /// to the wire until [`Event::Returned`](crate::Event::Returned), or until the response of the
    /// command is released.
    Buffer(Tag, Buffer, Range<u32>),
    /// A piece of what the command returns.
    Piece(Piece),
    /// This many zeroes, where the wire has them.
    Zeroes(u32),
    /// A range of memory that stays as it is, or changes by whole pages, as long as the slab, of
    /// which the wire keeps a reference.
    Held(&'a Arc<Slab>, Range<usize>),
    /// This many bytes, which a wire that is able to copies during the call.
    Copy(u32, &'a mut CopyTo<'a>),
}

/// A piece of what a command returns: the first bytes of a buffer. Unless it is the last one, the
/// buffer comes back with [`Event::Returned`](crate::Event::Returned) when it has left. Where the
/// last one is shorter than the remaining memory of the host, and the wire has to fill all of it,
/// zeroes follow.
pub struct Piece {
    /// The command.
    pub tag: Tag,
    /// It begins with the bytes.
    pub buffer: Buffer,
    /// How many they are.
    pub len_bytes: u32,
    /// Whether no other piece follows.
    pub last: bool,
}

impl Source<'_> {
    /// Bytes to push.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Buffer(_, _, range) => range.end.saturating_sub(range.start) as usize,
            Self::Piece(piece) => piece.len_bytes as usize,
            Self::Zeroes(len_bytes) | Self::Copy(len_bytes, _) => *len_bytes as usize,
            Self::Held(_, range) => range.len(),
        }
    }

    /// The buffer, where it is in one.
    #[must_use]
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(_, buffer, _) | Self::Piece(Piece { buffer, .. }) => Some(buffer),
            Self::Zeroes(_) | Self::Held(..) | Self::Copy(..) => None,
        }
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Buffer(..) => "Buffer",
            Self::Piece(_) => "Piece",
            Self::Zeroes(_) => "Zeroes",
            Self::Held(..) => "Held",
            Self::Copy(..) => "Copy",
        };
        write!(f, "{name} of {} bytes", self.len_bytes())
    }
}

/// What a push that was taken leaves to be done.
#[derive(Debug)]
pub enum Pushed {
    /// Nothing: the wire has the bytes, or all that it needs to send them. No event follows, and a
    /// buffer comes back here.
    Gone(Option<Buffer>),
    /// The wire reads the memory later. A buffer comes back with
    /// [`Event::Returned`](crate::Event::Returned) or
    /// [`Event::Released`](crate::Event::Released).
    UntilReleased,
}

/// The wire takes nothing now, or does not take this kind of source (a [`Source::Zeroes`], a
/// [`Source::Copy`] or a [`Source::Held`] where a buffer is needed): the source comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<T> {
    /// What was to be moved.
    pub what: T,
    /// Whether an [`Event::Room`](crate::Event::Room) says when it may be tried again. Where it is
    /// false, it is to be tried as another kind.
    pub until_room: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(address: u64, len_bytes: u32) -> KeyedBuffer {
        KeyedBuffer {
            address,
            rkey: 7,
            len_bytes,
        }
    }

    fn rest(host: &HostMemory, len_bytes: u32) -> Vec<(u64, u32)> {
        let rest = host.behind(len_bytes);
        assert_eq!(rest.len_bytes(), host.len_bytes() - len_bytes);
        assert_eq!(rest.invalidate(), host.invalidate());
        let rest = rest.keyed().iter();
        rest.map(|buffer| (buffer.address, buffer.len_bytes))
            .collect()
    }

    #[test]
    fn what_is_behind_a_piece_begins_in_the_middle_of_a_buffer() {
        let at = |place| HostMemory::new(place, Some(7));
        let one = at(HostPlace::Keyed(buffer(0x1000, 100)));
        assert_eq!(rest(&one, 40), [(0x1028, 60)]);
        assert_eq!(rest(&one, 100), []);
        let list = [buffer(0x1000, 10), buffer(0x2000, 10)];
        let list = at(HostPlace::KeyedList(list.into_iter().collect()));
        assert_eq!(rest(&list, 4), [(0x1004, 6), (0x2000, 10)]);
        assert_eq!(rest(&list, 10), [(0x2000, 10)]);
        let transport = |offset_bytes, length_bytes| {
            at(HostPlace::Transport {
                cid: 7,
                offset_bytes,
                length_bytes,
            })
        };
        assert_eq!(transport(0, 10).behind(4), transport(4, 6));
        assert_eq!(rest(&at(HostPlace::InCapsule { length_bytes: 20 }), 15), []);
    }
}
