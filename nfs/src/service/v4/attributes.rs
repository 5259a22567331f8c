//! Attributes of objects, and GETATTR, VERIFY, NVERIFY and ACCESS (RFC 8881, sections 5, 18.1,
//! 18.7, 18.15 and 18.31; RFC 7862, section 12.2; RFC 8276, section 8).

use std::sync::Arc;

use capstan_exports::attributes::{NameLimits, Space, change_of};
use capstan_exports::name::NameRule;
use capstan_exports::{
    Attributes as FileAttributes, Export, ExportId, FileSystemId, FileType, Node, PseudoId, Rights,
};
use capstan_nfs_proto::codec::{Encode, List, Opaque, Writer};
use capstan_nfs_proto::v4::args::{Access, AccessRights};
use capstan_nfs_proto::v4::attr::{
    AttrNumber, Attributes, FS_CHARSET_CAP_ALLOWS_ONLY_UTF8, FS_CHARSET_CAP_CONTAINS_NON_UTF8,
    Fattr,
};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::opnum::{MinorVersion, OpNum};
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::AccessOk;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{
    ChangeAttrType, DeviceNumbers, FileType as WireType, Fsid, Principal, Time,
};

use super::context::{Context, Object, Outcome, Results};
use super::settings::{WRITE_ONLY, settable};
use crate::service::failure::Failure;

/// Most bytes of a READ and of a WRITE: what the buffers of transports hold.
pub(in crate::service) const IO_BYTES_MAX: u32 = 1 << 20;

/// Attributes of every object, but for those that its file system or the minor version lacks.
const GIVEN: &[AttrNumber] = &[
    AttrNumber::SUPPORTED_ATTRS,
    AttrNumber::TYPE,
    AttrNumber::FH_EXPIRE_TYPE,
    AttrNumber::CHANGE,
    AttrNumber::SIZE,
    AttrNumber::LINK_SUPPORT,
    AttrNumber::SYMLINK_SUPPORT,
    AttrNumber::NAMED_ATTR,
    AttrNumber::FSID,
    AttrNumber::UNIQUE_HANDLES,
    AttrNumber::LEASE_TIME,
    AttrNumber::RDATTR_ERROR,
    AttrNumber::ACLSUPPORT,
    AttrNumber::CANSETTIME,
    AttrNumber::CASE_INSENSITIVE,
    AttrNumber::CASE_PRESERVING,
    AttrNumber::CHOWN_RESTRICTED,
    AttrNumber::FILEHANDLE,
    AttrNumber::FILEID,
    AttrNumber::FILES_AVAIL,
    AttrNumber::FILES_FREE,
    AttrNumber::FILES_TOTAL,
    AttrNumber::HOMOGENEOUS,
    AttrNumber::MAXFILESIZE,
    AttrNumber::MAXLINK,
    AttrNumber::MAXNAME,
    AttrNumber::MAXREAD,
    AttrNumber::MAXWRITE,
    AttrNumber::MODE,
    AttrNumber::NO_TRUNC,
    AttrNumber::NUMLINKS,
    AttrNumber::OWNER,
    AttrNumber::OWNER_GROUP,
    AttrNumber::RAWDEV,
    AttrNumber::SPACE_AVAIL,
    AttrNumber::SPACE_FREE,
    AttrNumber::SPACE_TOTAL,
    AttrNumber::SPACE_USED,
    AttrNumber::TIME_ACCESS,
    AttrNumber::TIME_CREATE,
    AttrNumber::TIME_DELTA,
    AttrNumber::TIME_METADATA,
    AttrNumber::TIME_MODIFY,
    AttrNumber::MOUNTED_ON_FILEID,
    AttrNumber::FS_LAYOUT_TYPES,
    AttrNumber::SUPPATTR_EXCLCREAT,
    AttrNumber::FS_CHARSET_CAP,
    AttrNumber::CLONE_BLKSIZE,
    AttrNumber::CHANGE_ATTR_TYPE,
    AttrNumber::XATTR_SUPPORT,
];

/// Attributes of NFSv4.2 and of its extensions have these numbers (RFC 7862, section 12.2).
const FIRST_OF_4_2: u32 = AttrNumber::CLONE_BLKSIZE.0;

/// What is asked of the file system once, however many objects are described.
const OF_SPACE: &[AttrNumber] = &[
    AttrNumber::FILES_AVAIL,
    AttrNumber::FILES_FREE,
    AttrNumber::FILES_TOTAL,
    AttrNumber::SPACE_AVAIL,
    AttrNumber::SPACE_FREE,
    AttrNumber::SPACE_TOTAL,
    AttrNumber::CLONE_BLKSIZE,
];
const OF_NAMES: &[AttrNumber] = &[
    AttrNumber::CASE_INSENSITIVE,
    AttrNumber::MAXLINK,
    AttrNumber::MAXNAME,
];

/// Largest file that Linux has (`MAX_LFS_FILESIZE`); a file system that has less says so of a
/// WRITE.
const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();

fn set_of(numbers: &[AttrNumber]) -> Bitmap {
    numbers.iter().map(|number| number.0).collect()
}

fn any_of(numbers: &[AttrNumber], requested: &Bitmap) -> bool {
    numbers.iter().any(|number| requested.contains(number.0))
}

/// Those of a set that a minor version has.
pub(super) fn of_version(set: Bitmap, minor_version: MinorVersion) -> Bitmap {
    match minor_version {
        MinorVersion::V2 => set,
        MinorVersion::V1 => set.iter().filter(|number| *number < FIRST_OF_4_2).collect(),
    }
}

/// All attributes, if the file system has what they tell.
pub(super) fn supported(minor_version: MinorVersion) -> Bitmap {
    of_version(set_of(GIVEN), minor_version).or(&settable(minor_version))
}

/// Refuses what can only be set (RFC 8881, section 5.5; RFC 8275, section 5).
///
/// # Errors
/// NFS4ERR_INVAL.
pub(super) fn check_readable(requested: &Bitmap) -> Result<(), Status> {
    if any_of(WRITE_ONLY, requested) {
        return Err(Status::INVAL);
    }
    Ok(())
}

/// The file system of an export, as two numbers.
fn fsid_of(file_system: FileSystemId) -> Fsid {
    let bits = u128::from_be_bytes(file_system.0);
    let low = bits & u128::from(u64::MAX);
    Fsid {
        major: u64::try_from(bits >> 64).unwrap_or(0),
        minor: u64::try_from(low).unwrap_or(0),
    }
}

/// The file system of the directories that lead to exports. Those of exports are UUIDs.
const PSEUDO_FSID: Fsid = Fsid { major: 0, minor: 0 };

/// The number of the directory that an export is mounted on in the pseudo file system: none of a
/// digest of a path, but by chance.
pub(super) fn mounted_on(export: ExportId) -> u64 {
    (1 << 32) | u64::from(export.0)
}

const fn wire_type(file_type: FileType) -> WireType {
    match file_type {
        FileType::Regular => WireType::Regular,
        FileType::Directory => WireType::Directory,
        FileType::Symlink => WireType::SymbolicLink,
        FileType::Block => WireType::Block,
        FileType::Character => WireType::Character,
        FileType::Socket => WireType::Socket,
        FileType::Fifo => WireType::Fifo,
    }
}

const fn wire_time(time: capstan_exports::Time) -> Time {
    Time {
        seconds: time.seconds,
        nseconds: time.nanoseconds,
    }
}

/// What is the same of all objects of one file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared(Attributes<'static>);

impl Shared {
    fn set_space(&mut self, space: &Space) {
        let all = &mut self.0;
        all.files_avail = Some(space.free_files);
        all.files_free = Some(space.free_files);
        all.files_total = Some(space.total_files);
        all.space_avail = Some(space.available_bytes);
        all.space_free = Some(space.free_bytes);
        all.space_total = Some(space.total_bytes);
        all.clone_blksize = Some(space.block_bytes);
    }

    fn set_names(&mut self, limits: &NameLimits) {
        let all = &mut self.0;
        all.case_insensitive = Some(limits.ignores_case);
        all.maxlink = Some(u32::try_from(limits.links).unwrap_or(u32::MAX));
        all.maxname = Some(u32::try_from(limits.name_bytes).unwrap_or(u32::MAX));
    }

    /// With what a file has of its own.
    pub(super) fn with_file<'h>(
        &self,
        file: &FileAttributes,
        mounted_on_fileid: u64,
        handle: &'h [u8],
    ) -> Attributes<'h> {
        let mut all: Attributes<'h> = self.0;
        let mut supported = all.supported_attrs.unwrap_or_default();
        if file.born.is_none() {
            supported.remove(AttrNumber::TIME_CREATE.0);
        }
        all.supported_attrs = Some(supported);
        all.file_type = Some(wire_type(file.file_type));
        all.change = Some(file.change);
        all.size = Some(file.size_bytes);
        all.filehandle = Some(Opaque(handle));
        all.fileid = Some(file.file_id);
        all.mode = Some(file.mode.into());
        all.numlinks = Some(file.link_count);
        all.owner = Some(Principal::Id(file.uid));
        all.owner_group = Some(Principal::Id(file.gid));
        let (major, minor) = file.device;
        all.rawdev = Some(DeviceNumbers { major, minor });
        all.space_used = Some(file.used_bytes);
        all.time_access = Some(wire_time(file.accessed));
        all.time_create = file.born.map(wire_time);
        all.time_metadata = Some(wire_time(file.changed));
        all.time_modify = Some(wire_time(file.modified));
        all.mounted_on_fileid = Some(mounted_on_fileid);
        all
    }
}

impl Context<'_> {
    /// What every object of this server has.
    fn shared_by_all(&self, requested: &Bitmap) -> Result<Attributes<'static>, Failure> {
        let lease_time = if requested.contains(AttrNumber::LEASE_TIME.0) {
            let lease_us = self
                .service
                .update(|state, _now_us| state.config().lease_us());
            Some(u32::try_from(lease_us / 1_000_000).unwrap_or(u32::MAX))
        } else {
            None
        };
        Ok(Attributes {
            supported_attrs: Some(supported(self.minor_version)),
            fh_expire_type: Some(0),
            link_support: Some(true),
            symlink_support: Some(true),
            named_attr: Some(false),
            unique_handles: Some(true),
            lease_time,
            rdattr_error: Some(Status::OK),
            aclsupport: Some(0),
            cansettime: Some(true),
            case_insensitive: Some(false),
            case_preserving: Some(true),
            chown_restricted: Some(true),
            homogeneous: Some(true),
            maxfilesize: Some(FILE_BYTES_MAX),
            maxread: Some(IO_BYTES_MAX.into()),
            maxwrite: Some(IO_BYTES_MAX.into()),
            no_trunc: Some(true),
            time_delta: Some(Time {
                seconds: 0,
                nseconds: 1,
            }),
            fs_layout_types: Some(List::of(&[])),
            suppattr_exclcreat: Some(super::settings::settable_exclusively(self.minor_version)),
            // The change attribute is made of time_metadata (RFC 7862, section 12.2.3).
            change_attr_type: Some(ChangeAttrType::TimeMetadata),
            ..Attributes::default()
        })
    }

    /// What the objects of a node's file system share, as far as it is requested.
    pub(super) fn shared_of(&self, node: &Node, requested: &Bitmap) -> Result<Shared, Failure> {
        let export = node.export();
        let mut shared = Shared(self.shared_by_all(requested)?);
        if any_of(OF_SPACE, requested) {
            shared.set_space(&node.space()?);
        }
        if any_of(OF_NAMES, requested) {
            shared.set_names(&node.name_limits()?);
        }
        let all = &mut shared.0;
        all.fsid = Some(fsid_of(export.file_system()));
        all.fs_charset_cap = Some(match export.settings().names {
            NameRule::Utf8 => FS_CHARSET_CAP_ALLOWS_ONLY_UTF8,
            NameRule::Raw => FS_CHARSET_CAP_CONTAINS_NON_UTF8,
        });
        if requested.contains(AttrNumber::XATTR_SUPPORT.0) {
            all.xattr_support = Some(node.keeps_xattrs());
        }
        Ok(shared)
    }

    /// What a directory of the pseudo file system has.
    pub(super) fn pseudo_attributes<'h>(
        &self,
        directory: PseudoId,
        requested: &Bitmap,
        handle: &'h [u8],
    ) -> Result<Attributes<'h>, Failure> {
        let tree = self.exports.tree();
        let mut shared = Shared(self.shared_by_all(requested)?);
        shared.set_space(&Space {
            block_bytes: 0,
            total_bytes: 0,
            free_bytes: 0,
            available_bytes: 0,
            total_files: 0,
            free_files: 0,
        });
        shared.set_names(&NameLimits {
            name_bytes: capstan_exports::name::NAME_BYTES as u64,
            links: u32::MAX.into(),
            ignores_case: false,
        });
        shared.0.fsid = Some(PSEUDO_FSID);
        shared.0.fs_charset_cap = Some(FS_CHARSET_CAP_ALLOWS_ONLY_UTF8);
        shared.0.xattr_support = Some(false);
        let since = tree.since();
        let file = FileAttributes {
            file_type: FileType::Directory,
            mode: 0o555,
            link_count: tree.link_count(directory),
            uid: 0,
            gid: 0,
            size_bytes: 0,
            used_bytes: 0,
            io_bytes: 0,
            device: (0, 0),
            file_id: directory.0,
            accessed: since,
            modified: since,
            changed: since,
            born: None,
            change: change_of(since),
        };
        let mut all = shared.with_file(&file, directory.0, handle);
        // The clock may have been set back between two starts.
        all.change_attr_type = Some(ChangeAttrType::Undefined);
        Ok(all)
    }

    /// The number of the directory that an object is, or is mounted on.
    fn mounted_on_fileid(&self, node: &Node, file_id: u64) -> u64 {
        let export: &Arc<Export> = node.export();
        if node.is_root() && export.outer().is_none() {
            mounted_on(export.id())
        } else {
            node.mounted_on_file_id().unwrap_or(file_id)
        }
    }

    /// Attributes of an object: at least those requested that it has.
    pub(super) fn attributes_of<'h>(
        &self,
        object: &Object,
        requested: &Bitmap,
        handle: &'h [u8],
    ) -> Result<Attributes<'h>, Failure> {
        match object {
            Object::Pseudo(directory) => self.pseudo_attributes(*directory, requested, handle),
            Object::File(file) => {
                let shared = self.shared_of(file.node()?, requested)?;
                let attributes = file.node()?.attributes()?;
                let mounted_on = self.mounted_on_fileid(file.node()?, attributes.file_id);
                Ok(shared.with_file(&attributes, mounted_on, handle))
            }
        }
    }

    pub(super) fn get_attributes(
        &mut self,
        requested: &Bitmap,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let object = self.object()?;
        check_readable(requested)?;
        let handle = self.handle(object);
        let all = self.attributes_of(object, requested, handle.bytes())?;
        let supported = all.supported_attrs.unwrap_or_default();
        Ok(results.push_attributes(&all, &requested.and(&supported))?)
    }

    /// VERIFY and NVERIFY: whether the attributes are these.
    fn is_same(&self, expected: &Fattr<'_>) -> Result<bool, Failure> {
        let object = self.object()?;
        let handle = self.handle(object);
        let all = self.attributes_of(object, &expected.mask, handle.bytes())?;
        let supported = all.supported_attrs.unwrap_or_default();
        // RFC 8881, sections 18.15.3 and 18.31.3.
        let unsupported = expected.mask.without(&supported);
        if !unsupported.is_empty() {
            return Err(Status::ATTRNOTSUPP.into());
        }
        check_readable(&expected.mask)?;
        if expected.mask.contains(AttrNumber::RDATTR_ERROR.0) {
            return Err(Status::INVAL.into());
        }
        // What takes more than the expected bytes is something else.
        let mut buffer = vec![0; expected.values.0.len().saturating_add(FATTR_HEAD_BYTES_MAX)];
        let mut ours = Writer::new(&mut buffer);
        if all.encode_requested(&expected.mask, &mut ours).is_err() {
            return Ok(false);
        }
        let mut buffer = vec![0; ours.written().len()];
        let mut theirs = Writer::new(&mut buffer);
        Ok(expected.encode(&mut theirs).is_ok() && theirs.written() == ours.written())
    }

    pub(super) fn verify(
        &mut self,
        expected: &Fattr<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        if !self.is_same(expected)? {
            return Err(Status::NOT_SAME.into());
        }
        Ok(results.push(&OpResult::Done(OpNum::VERIFY))?)
    }

    pub(super) fn verify_not(
        &mut self,
        expected: &Fattr<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        if self.is_same(expected)? {
            return Err(Status::SAME.into());
        }
        Ok(results.push(&OpResult::Done(OpNum::NVERIFY))?)
    }

    pub(super) fn access(&mut self, asked: Access, results: &mut Results<'_, '_>) -> Outcome {
        let object = self.object()?;
        let asked = asked.access;
        let xattrs = AccessRights::XAREAD | AccessRights::XAWRITE | AccessRights::XALIST;
        let known = match self.minor_version {
            MinorVersion::V1 => AccessRights::all().difference(xattrs),
            MinorVersion::V2 => AccessRights::all(),
        };
        if !known.contains(asked) {
            return Err(Status::INVAL.into());
        }
        let is_directory = match object {
            Object::Pseudo(_) => true,
            Object::File(file) => file.node()?.file_type() == FileType::Directory,
        };
        // What means nothing of an object cannot be told (RFC 8881, section 18.1.3).
        let meaningless = if is_directory {
            AccessRights::EXECUTE
        } else {
            AccessRights::LOOKUP | AccessRights::DELETE
        };
        let supported = asked.difference(meaningless);
        let access = match object {
            Object::Pseudo(_) => supported & (AccessRights::READ | AccessRights::LOOKUP),
            Object::File(file) => {
                let asked = Rights::from_bits_truncate(supported.bits());
                let granted = file.node()?.rights(&file.caller, asked)?;
                AccessRights::from_bits_truncate(granted.bits())
            }
        };
        Ok(results.push(&OpResult::Access(AccessOk { supported, access }))?)
    }
}

/// Bytes of a set of attributes and of the length of the values in front of these: three words
/// with their count, and the length.
const FATTR_HEAD_BYTES_MAX: usize = 4 * (1 + 3 + 1);
