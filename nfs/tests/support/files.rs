//! Files of a client: opens, and what is in them.

use capstan_nfs_proto::codec::{DataItem, Decode, Encode, Opaque, Reader, Writer};
use capstan_nfs_proto::v4::args::{
    Close, CreateHow, ExistingLockOwner, Lock, LockType, Locker, NewLockOwner, Open, OpenClaim,
    OpenHow, Read, ShareAccess, ShareDeny, Write,
};
use capstan_nfs_proto::v4::attr::{Fattr, SetAttributes};
use capstan_nfs_proto::v4::op::Op;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::{OpenOk, WriteOk};
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{ClientId, Component, StableHow, StateOwner, Stateid};

use super::{Client, path_ops};

pub(crate) const READ: u32 = 1;
pub(crate) const WRITE: u32 = 2;
pub(crate) const BOTH: u32 = 3;

/// OPEN of an existing file of the current directory.
pub(crate) fn open_op<'a>(name: &'a str, owner: &'a str, access: u32, deny: u32) -> Op<'a> {
    let claim = OpenClaim::Null(Component(name.as_bytes()));
    open_by(claim, owner, access, deny, OpenHow::NoCreate)
}

/// OPEN that makes a file of the current directory.
pub(crate) fn create_op<'a>(name: &'a str, owner: &'a str, how: CreateHow<'a>) -> Op<'a> {
    let claim = OpenClaim::Null(Component(name.as_bytes()));
    open_by(claim, owner, BOTH, 0, OpenHow::Create(how))
}

pub(crate) fn open_by<'a>(
    claim: OpenClaim<'a>,
    owner: &'a str,
    access: u32,
    deny: u32,
    openhow: OpenHow<'a>,
) -> Op<'a> {
    Op::Open(Open {
        seqid: 0,
        share_access: ShareAccess(access),
        share_deny: ShareDeny(deny),
        owner: owner_of(owner),
        openhow,
        claim,
    })
}

pub(crate) fn owner_of(owner: &str) -> StateOwner<'_> {
    StateOwner {
        clientid: ClientId(0),
        owner: Opaque(owner.as_bytes()),
    }
}

/// LOCK of an owner that has no lock of the file yet.
pub(crate) fn new_lock<'a>(
    file: &Opened,
    owner: &'a str,
    locktype: LockType,
    (offset, length): (u64, u64),
) -> Lock<'a> {
    Lock {
        locktype,
        reclaim: false,
        offset,
        length,
        locker: Locker::New(NewLockOwner {
            open_seqid: 0,
            open_stateid: file.stateid,
            lock_seqid: 0,
            lock_owner: owner_of(owner),
        }),
    }
}

/// LOCK of one that has this state ID for the file.
pub(crate) fn lock_again(
    lock_stateid: Stateid,
    locktype: LockType,
    (offset, length): (u64, u64),
) -> Lock<'static> {
    let locker = Locker::Existing(ExistingLockOwner {
        lock_stateid,
        lock_seqid: 0,
    });
    Lock {
        locktype,
        reclaim: false,
        offset,
        length,
        locker,
    }
}

/// Attributes as they are on the wire, in `buffer`.
pub(crate) fn fattr<'a>(attributes: &SetAttributes<'_>, buffer: &'a mut Vec<u8>) -> Fattr<'a> {
    buffer.resize(256, 0);
    let mut writer = Writer::new(buffer);
    attributes.encode(&mut writer).unwrap();
    let length = writer.offset();
    Fattr::decode(&mut Reader::new(&buffer[..length]), "attributes").unwrap()
}

pub(crate) fn size(bytes: u64) -> SetAttributes<'static> {
    SetAttributes {
        size: Some(bytes),
        ..SetAttributes::default()
    }
}

pub(crate) fn mode(mode: u32) -> SetAttributes<'static> {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// What the last OPEN said.
#[track_caller]
pub(crate) fn opened(results: &[OpResult<'_>]) -> OpenOk<'static> {
    let found = results.iter().rev().find_map(|result| match result {
        OpResult::Open(ok) => Some(OpenOk {
            delegation: match ok.delegation {
                capstan_nfs_proto::v4::results::Delegation::NoneExt(why) => {
                    capstan_nfs_proto::v4::results::Delegation::NoneExt(why)
                }
                capstan_nfs_proto::v4::results::Delegation::None => {
                    capstan_nfs_proto::v4::results::Delegation::None
                }
                other => panic!("{other:?}"),
            },
            ..*ok
        }),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{results:?}"))
}

/// An open file, as a client has it.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) handle: Vec<u8>,
    pub(crate) stateid: Stateid,
}

impl Opened {
    pub(crate) fn put(&self) -> Op<'_> {
        Op::PutFh(Opaque(&self.handle))
    }

    pub(crate) fn read(&self, offset: u64, count: u32) -> [Op<'_>; 2] {
        let read = Read {
            stateid: self.stateid,
            offset,
            count,
        };
        [self.put(), Op::Read(read)]
    }

    pub(crate) fn write<'a>(
        &'a self,
        offset: u64,
        data: &'a [u8],
        stable: StableHow,
    ) -> [Op<'a>; 2] {
        let write = Write {
            stateid: self.stateid,
            offset,
            stable,
            data: DataItem::Inline(data),
        };
        [self.put(), Op::Write(write)]
    }

    pub(crate) fn close(&self) -> [Op<'_>; 2] {
        let close = Close {
            seqid: 0,
            open_stateid: self.stateid,
        };
        [self.put(), Op::Close(close)]
    }
}

impl Client {
    /// Carries out an OPEN in the root of the export.
    #[track_caller]
    pub(crate) fn open_with(&mut self, open: Op<'_>) -> Opened {
        let ops = [path_ops(&[]), vec![open, Op::GetFh]].concat();
        self.run(&ops, |results| Opened {
            handle: match results.last() {
                Some(OpResult::GetFh(handle)) => handle.0.to_vec(),
                other => panic!("{other:?}"),
            },
            stateid: opened(results).stateid,
        })
    }

    /// Opens a file of the root of the export that is there, for this owner.
    #[track_caller]
    pub(crate) fn open(&mut self, name: &str, owner: &str, access: u32) -> Opened {
        self.open_with(open_op(name, owner, access, 0))
    }

    /// The status of an OPEN in the root of the export.
    pub(crate) fn open_status(&mut self, open: Op<'_>) -> Status {
        self.status(&[path_ops(&[]), vec![open]].concat())
    }

    /// Reads: the data, and whether it is the last.
    #[track_caller]
    pub(crate) fn read(&mut self, file: &Opened, offset: u64, count: u32) -> (Vec<u8>, bool) {
        self.run(&file.read(offset, count), |results| match results {
            [_, OpResult::Read(ok)] => match ok.data {
                DataItem::Inline(data) => (data.to_vec(), ok.eof),
                DataItem::Reduced { .. } => panic!("reduced"),
            },
            other => panic!("{other:?}"),
        })
    }

    #[track_caller]
    pub(crate) fn write(
        &mut self,
        file: &Opened,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> WriteOk {
        self.run(&file.write(offset, data, stable), |results| match results {
            [_, OpResult::Write(ok)] => *ok,
            other => panic!("{other:?}"),
        })
    }

    #[track_caller]
    pub(crate) fn close(&mut self, file: &Opened) {
        self.run(&file.close(), |_results| ());
    }
}
