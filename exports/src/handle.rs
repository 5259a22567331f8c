//! File handles: what a client keeps of a file, and cannot be made without the key.
//!
//! ```text
//! byte 0      version, 1
//! byte 1      kind: 0 a directory of the pseudo file system, 1 a file of an export
//! kind 0      8 bytes: id of the directory
//! kind 1      4 bytes: id of the export; 2 bytes: type of the kernel's handle; its bytes
//! last 16     keyed BLAKE3 over the file system's id (16 bytes) and all that is before, cut short
//! ```
//!
//! Numbers are big-endian. The file system's id is under the MAC and not in the handle: where
//! another file system is exported under the same id, every handle of the former one is stale, and
//! none opens what happens to have the same number.
//!
//! `NFS4_FHSIZE` is 128 bytes (RFC 8881, 3.1), `NFS3_FHSIZE` 64 (RFC 1813, 2.4). That leaves the
//! kernel's handle 104 and 40 bytes. Kernel handles of ext4 have 8 bytes, of XFS 8 or 12, of tmpfs
//! 12, of btrfs 20: they fit both. Too long for NFSv3 are those of overlayfs over btrfs (24 bytes
//! around btrfs's: `struct ovl_fh`) and of re-exported NFS mounts, which carry the handle of
//! another target; a long one of those does not fit NFSv4 either.

use crate::key::Key;

/// Most bytes of a handle in NFSv4: `NFS4_FHSIZE` (RFC 8881, 3.1).
pub const V4_HANDLE_BYTES: usize = 128;

/// Most bytes of a handle in NFSv3: `NFS3_FHSIZE` (RFC 1813, 2.4).
pub const V3_HANDLE_BYTES: usize = 64;

/// Most bytes of a kernel's handle: what 128 leave beside the rest.
pub const KERNEL_HANDLE_BYTES: usize = V4_HANDLE_BYTES - FILE_HEAD_BYTES - MAC_BYTES;

const VERSION: u8 = 1;
const KIND_PSEUDO: u8 = 0;
const KIND_FILE: u8 = 1;
/// 128 bits: a guess is right with a probability of 2^-128, and is made over a network.
const MAC_BYTES: usize = 16;
const PSEUDO_HEAD_BYTES: usize = 2 + 8;
const FILE_HEAD_BYTES: usize = 2 + 4 + 2;

/// Sixteen bytes that tell a file system from every other, for as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileSystemId(pub [u8; 16]);

/// What an export is called in handles. It has to stay the same over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportId(pub u32);

/// A directory of the pseudo file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PseudoId(pub u64);

/// A handle as the kernel gives it: `name_to_handle_at` (open_by_handle_at(2)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelHandle {
    kind: u16,
    length: u8,
    bytes: [u8; KERNEL_HANDLE_BYTES],
}

impl KernelHandle {
    /// A handle of type `kind`; `None` where it is longer than [`KERNEL_HANDLE_BYTES`].
    pub fn new(kind: u16, bytes: &[u8]) -> Option<Self> {
        let mut kept = [0; KERNEL_HANDLE_BYTES];
        kept.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let length = u8::try_from(bytes.len()).ok()?;
        Some(Self {
            kind,
            length,
            bytes: kept,
        })
    }

    /// The kernel's type of handle.
    pub const fn kind(&self) -> u16 {
        self.kind
    }

    /// Its bytes, at most [`KERNEL_HANDLE_BYTES`].
    pub fn bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or(&self.bytes)
    }
}

impl std::fmt::Debug for KernelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelHandle({:#x}, {:02x?})", self.kind, self.bytes())
    }
}

/// A handle as a client keeps it: at most [`V4_HANDLE_BYTES`] opaque bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    length: u8,
    bytes: [u8; V4_HANDLE_BYTES],
}

impl Handle {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or(&self.bytes)
    }

    /// Whether NFSv3 can carry it.
    pub fn fits_v3(&self) -> bool {
        usize::from(self.length) <= V3_HANDLE_BYTES
    }

    fn sealed(key: &Key, file_system: FileSystemId, parts: [&[u8]; 4]) -> Self {
        let mut handle = Self {
            length: 0,
            bytes: [0; V4_HANDLE_BYTES],
        };
        for part in parts {
            handle.push(part);
        }
        let mac = mac(key, file_system, handle.bytes());
        handle.push(&mac);
        handle
    }

    /// What a kernel's handle may have is chosen so that there is room for all of it.
    fn push(&mut self, part: &[u8]) {
        let free = self
            .bytes
            .get_mut(usize::from(self.length)..)
            .unwrap_or_default();
        for (to, from) in free.iter_mut().zip(part) {
            *to = *from;
            self.length += 1;
        }
    }

    /// The handle of a file of an export on the file system `file_system`.
    pub fn of_file(
        key: &Key,
        file_system: FileSystemId,
        export: ExportId,
        kernel: &KernelHandle,
    ) -> Self {
        let (export, kind) = (export.0.to_be_bytes(), kernel.kind.to_be_bytes());
        let parts = [&[VERSION, KIND_FILE][..], &export, &kind, kernel.bytes()];
        Self::sealed(key, file_system, parts)
    }

    /// The handle of a directory of the pseudo file system.
    pub fn of_pseudo(key: &Key, directory: PseudoId) -> Self {
        let id = directory.0.to_be_bytes();
        Self::sealed(
            key,
            PSEUDO_FILE_SYSTEM,
            [&[VERSION, KIND_PSEUDO][..], &id, &[], &[]],
        )
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({:02x?})", self.bytes())
    }
}

/// The id that the pseudo file system has under the MAC and in attributes.
pub const PSEUDO_FILE_SYSTEM: FileSystemId = FileSystemId([0; 16]);

fn mac(key: &Key, file_system: FileSystemId, before: &[u8]) -> [u8; MAC_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key.bytes());
    hasher.update(&file_system.0).update(before);
    let mut mac = [0; MAC_BYTES];
    hasher.finalize_xof().fill(&mut mac);
    mac
}

/// What a client presented, read but not believed: [`Presented::is_genuine`] has to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A directory of the pseudo file system.
    Pseudo(PseudoId),
    /// A file of an export.
    File(ExportId, KernelHandle),
}

/// A handle as a client presented it.
#[derive(Clone, Copy, Debug)]
pub struct Presented<'a> {
    claim: Claim,
    before: &'a [u8],
    mac: &'a [u8; MAC_BYTES],
}

/// Bytes that are no handle of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Too few or too many bytes.
    #[error("the handle has {0} bytes, which none of ours has; mount again")]
    Length(usize),
    /// A version that is not known.
    #[error("the handle is of version {0}, and ours are of version 1; mount again")]
    Version(u8),
    /// A kind that is not known.
    #[error("the handle is of kind {0}, and ours are of kind 0 or 1; mount again")]
    Kind(u8),
}

impl<'a> Presented<'a> {
    /// Reads bytes from a client.
    ///
    /// # Errors
    /// Where they cannot be a handle, whatever the key.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let length = Malformed::Length(bytes.len());
        if bytes.len() > V4_HANDLE_BYTES {
            return Err(length);
        }
        let (before, mac) = bytes.split_last_chunk::<MAC_BYTES>().ok_or(length)?;
        let (&[version, kind], rest) = before.split_first_chunk().ok_or(length)?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let claim = match kind {
            KIND_PSEUDO => {
                let id: [u8; PSEUDO_HEAD_BYTES - 2] = rest.try_into().map_err(|_| length)?;
                Claim::Pseudo(PseudoId(u64::from_be_bytes(id)))
            }
            KIND_FILE => {
                let (export, rest) = rest.split_first_chunk().ok_or(length)?;
                let (kind, rest) = rest.split_first_chunk().ok_or(length)?;
                let kernel = KernelHandle::new(u16::from_be_bytes(*kind), rest).ok_or(length)?;
                Claim::File(ExportId(u32::from_be_bytes(*export)), kernel)
            }
            other => return Err(Malformed::Kind(other)),
        };
        Ok(Self { claim, before, mac })
    }

    /// What it claims to be of: enough to find the file system's id, and nothing else.
    pub const fn claim(&self) -> Claim {
        self.claim
    }

    /// Whether it was made with `key` for `file_system`. Takes as long for every wrong MAC.
    pub fn is_genuine(&self, key: &Key, file_system: FileSystemId) -> bool {
        let right = mac(key, file_system, self.before);
        constant_time_eq::constant_time_eq_n(&right, self.mac)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const KEY: Key = Key::from_bytes([3; crate::key::KEY_BYTES]);
    const DISK: FileSystemId = FileSystemId(*b"sixteen of bytes");

    fn genuine(bytes: &[u8], key: &Key, disk: FileSystemId) -> Option<Claim> {
        let presented = Presented::read(bytes).ok()?;
        presented.is_genuine(key, disk).then_some(presented.claim())
    }

    /// Handles outlive versions of this program: what is on clients has to be read for good.
    #[test]
    fn the_bytes_stay_what_they_are() {
        let kernel = KernelHandle::new(0x81, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).unwrap();
        let handle = Handle::of_file(&KEY, DISK, ExportId(0x0a0b_0c0d), &kernel);
        let (before, mac) = handle.bytes().split_at(20);
        assert_eq!(
            before,
            [
                1, 1, 10, 11, 12, 13, 0, 0x81, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
            ]
        );
        assert_eq!(mac, MAC_THEN);
        let pseudo = Handle::of_pseudo(&KEY, PseudoId(5));
        assert_eq!(pseudo.bytes()[..10], [1, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(pseudo.bytes().len(), 26);
    }

    const MAC_THEN: [u8; 16] = [
        107, 109, 20, 255, 249, 44, 155, 98, 139, 104, 205, 79, 165, 67, 6, 181,
    ];

    #[test]
    fn what_fits_which_version() {
        let of = |bytes: usize| {
            let kernel = KernelHandle::new(1, &vec![9; bytes])?;
            Some(Handle::of_file(&KEY, DISK, ExportId(1), &kernel))
        };
        for (name, bytes) in [("ext4", 8), ("xfs", 12), ("tmpfs", 12), ("btrfs", 20)] {
            assert!(of(bytes).unwrap().fits_v3(), "{name}");
        }
        assert!(of(40).unwrap().fits_v3());
        assert!(!of(41).unwrap().fits_v3());
        assert_eq!(of(104).unwrap().bytes().len(), V4_HANDLE_BYTES);
        assert!(of(105).is_none());
    }

    #[test]
    fn bytes_that_are_no_handle_are_told_from_each_other() {
        let read = |bytes: &[u8]| Presented::read(bytes).unwrap_err();
        assert_eq!(read(&[]), Malformed::Length(0));
        assert_eq!(read(&[1; 17]), Malformed::Length(17));
        assert_eq!(read(&[1; 129]), Malformed::Length(129));
        assert_eq!(read(&[2; 40]), Malformed::Version(2));
        assert_eq!(read(&[&[1, 7][..], &[0; 30]].concat()), Malformed::Kind(7));
        assert_eq!(
            read(&[&[1, 0][..], &[0; 25]].concat()),
            Malformed::Length(27)
        );
        assert_eq!(
            read(&[&[1, 1][..], &[0; 21]].concat()),
            Malformed::Length(23)
        );
    }

    proptest! {
        #[test]
        fn what_was_made_is_read_again(
            export: u32, kind: u16, bytes in vec(any::<u8>(), 0..=KERNEL_HANDLE_BYTES)
        ) {
            let kernel = KernelHandle::new(kind, &bytes).unwrap();
            let handle = Handle::of_file(&KEY, DISK, ExportId(export), &kernel);
            let claim = Claim::File(ExportId(export), kernel);
            prop_assert_eq!(genuine(handle.bytes(), &KEY, DISK), Some(claim));
        }

        #[test]
        fn any_other_bit_key_or_file_system_makes_it_false(
            bytes in vec(any::<u8>(), 0..=KERNEL_HANDLE_BYTES), at: usize, bit in 0_u32..8, id: u64
        ) {
            let kernel = KernelHandle::new(1, &bytes).unwrap();
            for (handle, disk) in [
                (Handle::of_file(&KEY, DISK, ExportId(7), &kernel), DISK),
                (Handle::of_pseudo(&KEY, PseudoId(id)), PSEUDO_FILE_SYSTEM),
            ] {
                let mut bytes = handle.bytes().to_vec();
                prop_assert!(genuine(&bytes, &KEY, disk).is_some());
                let other = Key::from_bytes([4; crate::key::KEY_BYTES]);
                prop_assert_eq!(genuine(&bytes, &other, disk), None);
                prop_assert_eq!(genuine(&bytes, &KEY, FileSystemId([1; 16])), None);
                let at = at % bytes.len();
                bytes[at] ^= 1 << bit;
                prop_assert_eq!(genuine(&bytes, &KEY, disk), None);
                bytes[at] ^= 1 << bit;
                bytes.push(0);
                prop_assert_eq!(genuine(&bytes, &KEY, disk), None);
            }
        }

        #[test]
        fn hostile_bytes_are_read_without_a_panic_and_never_believed(
            mut bytes in vec(any::<u8>(), 0..300), head in any::<[bool; 2]>()
        ) {
            // Most random bytes end at the version.
            if let (true, Some(first)) = (head[0], bytes.get_mut(0)) { *first = VERSION; }
            if let (true, Some(second)) = (head[1], bytes.get_mut(1)) { *second &= 1; }
            prop_assert_eq!(genuine(&bytes, &KEY, DISK), None);
        }
    }
}
