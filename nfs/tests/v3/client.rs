//! A client of NFS version 3 without a transport.

use std::net::SocketAddr;
use std::sync::Arc;

use capstan_memory::Span;
use capstan_nfs::service::Service;
use capstan_nfs_proto::NFS_PROGRAM;
use capstan_nfs_proto::codec::{DataItem, Decode, Encode, Opaque};
use capstan_nfs_proto::mount::{MOUNT_PROGRAM, MOUNT_V3, MountCall, MountResult, MountStatus};
use capstan_nfs_proto::v3::NFS_V3;
use capstan_nfs_proto::v3::args::{self, CreateHow};
use capstan_nfs_proto::v3::call::Call as Procedure;
use capstan_nfs_proto::v3::results::{
    CreateResult, GetAttrResult, LookupResult, Outcome, ReadResult, WccResult, WriteOk, WriteResult,
};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{
    Attributes, DirOpArgs, FileName, Filehandle, SetAttributes, SetTime, StableHow,
};
use capstan_rpc_server::{Arguments, Call, ConnectionNumber, Results, Wire};
use capstan_rpcrdma::rpc::Accepted;
use capstan_rpcrdma::xdr::{Reader, ReducedItem, Writer};

use crate::support::Served;
use crate::support::rpc::{self, Answer};

/// A client on one connection.
pub(crate) struct Client {
    service: Arc<Service>,
    pub(crate) peer: SocketAddr,
    pub(crate) wire: Wire,
    pub(crate) connection: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) xid: u32,
}

impl Answer {
    /// The results, as this type.
    pub(crate) fn decode<'a, T: Decode<'a>>(&'a self) -> T {
        assert_eq!(self.accepted, Accepted::Success);
        let mut reader = Reader::with_reduced(&self.bytes, &self.reduced);
        let value = T::decode(&mut reader, "result").unwrap();
        reader.finish().unwrap();
        value
    }
}

/// The value of a procedure that succeeded, or the status.
pub(crate) fn ok<T, F>(outcome: Outcome<T, F>) -> Result<T, Status> {
    match outcome {
        Outcome::Ok(value) => Ok(value),
        Outcome::Failed { status, .. } => Err(status),
    }
}

/// Attributes that are not set.
pub(crate) const UNSET: SetAttributes = SetAttributes {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: SetTime::DontChange,
    mtime: SetTime::DontChange,
};

pub(crate) fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..UNSET
    }
}

/// A name in a directory.
pub(crate) fn place<'a>(dir: &'a [u8], name: &'a str) -> DirOpArgs<'a> {
    DirOpArgs {
        dir: Opaque(dir),
        name: FileName(name.as_bytes()),
    }
}

impl Client {
    pub(crate) fn new(served: &Served) -> Self {
        Self {
            service: served.service.clone(),
            peer: "192.0.2.1:700".parse().unwrap(),
            wire: Wire::Tcp,
            connection: 1,
            uid: 0,
            gid: 0,
            xid: 1,
        }
    }

    /// As this user, whose group has the same number.
    pub(crate) fn user(served: &Served, uid: u32) -> Self {
        let mut client = Self::new(served);
        (client.uid, client.gid) = (uid, uid);
        client
    }

    /// The bytes of a call.
    pub(crate) fn bytes(
        &mut self,
        numbers: (u32, u32, u32),
        arguments: &dyn Fn(&mut Writer<'_>),
    ) -> (Vec<u8>, Vec<ReducedItem>) {
        self.xid += 1;
        rpc::call_bytes(self.xid, numbers, (self.uid, self.gid), arguments)
    }

    /// The bytes of a procedure of NFS.
    pub(crate) fn procedure_bytes(&mut self, procedure: &Procedure<'_>) -> Vec<u8> {
        let number = procedure.procedure();
        let (bytes, reduced) = self.bytes((NFS_PROGRAM, NFS_V3, number), &|writer| {
            procedure.encode(writer).unwrap();
        });
        assert!(reduced.is_empty());
        bytes
    }

    /// Sends a message; `None` when no reply comes.
    pub(crate) fn send_with(
        &self,
        message: &[u8],
        (reduced, data): (&[ReducedItem], &[Span]),
        places: &[Option<Span>],
    ) -> Option<Answer> {
        let call = Call {
            connection: ConnectionNumber(self.connection),
            wire: self.wire,
            peer: self.peer,
            message,
            reader: Reader::with_reduced(message, reduced),
            arguments: Arguments(data),
            results: Results(places),
        };
        rpc::carry_out(&self.service, &call)
    }

    pub(crate) fn send(&self, message: &[u8]) -> Answer {
        self.send_with(message, (&[], &[]), &[]).unwrap()
    }

    /// Carries out a procedure of NFS.
    pub(crate) fn call(&mut self, procedure: &Procedure<'_>) -> Answer {
        let message = self.procedure_bytes(procedure);
        self.send(&message)
    }

    /// Carries out a procedure of MOUNT.
    pub(crate) fn mount_call(&mut self, procedure: &MountCall<'_>) -> Answer {
        let number = procedure.procedure();
        let (message, _) = self.bytes((MOUNT_PROGRAM, MOUNT_V3, number), &|writer| {
            procedure.encode(writer).unwrap();
        });
        self.send(&message)
    }

    /// The handle of a path.
    pub(crate) fn mount(&mut self, path: &str) -> Result<Vec<u8>, MountStatus> {
        let answer = self.mount_call(&MountCall::Mnt(Opaque(path.as_bytes())));
        match answer.decode() {
            MountResult::Ok(ok) => {
                assert_eq!(ok.auth_flavors.iter().collect::<Vec<_>>(), [1], "AUTH_SYS");
                Ok(ok.fhandle.0.to_vec())
            }
            MountResult::Failed(status) => Err(status),
        }
    }

    /// The handle of the export.
    pub(crate) fn root(&mut self) -> Vec<u8> {
        self.mount("/exported").unwrap()
    }

    pub(crate) fn attributes(&mut self, handle: &[u8]) -> Result<Attributes, Status> {
        ok(self
            .call(&Procedure::GetAttr(Opaque(handle)))
            .decode::<GetAttrResult>())
    }

    pub(crate) fn look_up(&mut self, dir: &[u8], name: &str) -> Result<Vec<u8>, Status> {
        let answer = self.call(&Procedure::Lookup(place(dir, name)));
        ok(answer.decode::<LookupResult<'_>>()).map(|found| found.object.0.to_vec())
    }

    /// The handle of a name in the export.
    pub(crate) fn named(&mut self, name: &str) -> Vec<u8> {
        let root = self.root();
        self.look_up(&root, name).unwrap()
    }

    pub(crate) fn read(
        &mut self,
        file: &[u8],
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), Status> {
        let answer = self.call(&Procedure::Read(args::Read {
            file: Opaque(file),
            offset,
            count,
        }));
        let read = ok(answer.decode::<ReadResult<'_>>())?;
        let DataItem::Inline(data) = read.data else {
            panic!("{read:?}")
        };
        assert_eq!(usize::try_from(read.count).unwrap(), data.len());
        assert!(read.file_attributes.is_some());
        Ok((data.to_vec(), read.eof))
    }

    pub(crate) fn write(
        &mut self,
        file: &[u8],
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> Result<WriteOk, Status> {
        let answer = self.call(&Procedure::Write(args::Write {
            file: Opaque(file),
            offset,
            count: u32::try_from(data.len()).unwrap(),
            stable,
            data: DataItem::Inline(data),
        }));
        ok(answer.decode::<WriteResult>())
    }

    pub(crate) fn set(
        &mut self,
        object: &[u8],
        new_attributes: SetAttributes,
        guard: Option<capstan_nfs_proto::v3::types::Time>,
    ) -> Result<Attributes, Status> {
        let answer = self.call(&Procedure::SetAttr(args::SetAttr {
            object: Opaque(object),
            new_attributes,
            guard,
        }));
        ok(answer.decode::<WccResult>()).map(|wcc| wcc.after.unwrap())
    }

    /// The handle of what a procedure makes.
    pub(crate) fn made(&mut self, procedure: &Procedure<'_>) -> Result<Vec<u8>, Status> {
        let answer = self.call(procedure);
        let made = ok(answer.decode::<CreateResult<'_>>())?;
        assert!(made.obj_attributes.is_some() && made.dir_wcc.after.is_some());
        let handle: Filehandle<'_> = made.obj.unwrap();
        Ok(handle.0.to_vec())
    }

    pub(crate) fn create(
        &mut self,
        dir: &[u8],
        name: &str,
        how: CreateHow,
    ) -> Result<Vec<u8>, Status> {
        self.made(&Procedure::Create(args::Create {
            place: place(dir, name),
            how,
        }))
    }

    /// The status of SETATTR, REMOVE and RMDIR.
    pub(crate) fn status(&mut self, procedure: &Procedure<'_>) -> Status {
        self.call(procedure).decode::<WccResult>().status()
    }
}
