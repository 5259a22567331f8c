//! READ, WRITE and COMMIT (RFC 1813, sections 3.3.6, 3.3.7 and 3.3.21).

use capstan_exports::OpenAccess;
use capstan_exports::unsynced::{Stable, WriterId};
use capstan_memory::RawBytes;
use capstan_nfs_proto::codec::Encode;
use capstan_nfs_proto::v3::args::{Commit, Read, Write};
use capstan_nfs_proto::v3::results::{
    CommitOk, CommitResult, Outcome, ReadResult, WriteOk, WriteResult,
};
use capstan_nfs_proto::v3::status::Status;
use capstan_nfs_proto::v3::types::{Attributes, StableHow};
use capstan_rpc_server::{ConnectionNumber, Data};
use capstan_rpcrdma::xdr::{Place, WriteError, Writer};

use super::context::{Context, File, after, changed};
use super::failure::Failure;
use super::limits::{READ_BYTES_MAX, WRITE_BYTES_MAX};
use super::{Written, convert};

/// Bytes of attributes that are there (post_op_attr with TRUE).
const ATTRIBUTES_BYTES: usize = 4 + 84;
const UNIT_BYTES: usize = 4;

/// The largest offset that the kernel has.
const OFFSET_MAX: u64 = i64::MAX.cast_unsigned();

/// Whose unsynced data it is that comes over a connection. A client that comes back over another
/// one is told by the write verifier what it has to write again. Clients of version 4 have numbers
/// without the first bit.
pub(in crate::service) const fn writer_of(connection: ConnectionNumber) -> WriterId {
    WriterId(connection.0 | 1 << 63)
}

/// Room for attributes in front of data that is read before they are asked for.
struct AttributesPlace([Option<Place>; ATTRIBUTES_BYTES / UNIT_BYTES]);

impl AttributesPlace {
    fn open(to: &mut Writer<'_>) -> Result<Self, WriteError> {
        let mut places = [const { None }; ATTRIBUTES_BYTES / UNIT_BYTES];
        for place in &mut places {
            *place = Some(to.open_u32()?);
        }
        Ok(Self(places))
    }

    fn fill(self, to: &mut Writer<'_>, attributes: Attributes) -> Result<(), WriteError> {
        let mut bytes = [0; ATTRIBUTES_BYTES];
        Some(attributes).encode(&mut Writer::new(&mut bytes))?;
        let (words, _none_left) = bytes.as_chunks::<UNIT_BYTES>();
        for (place, word) in self.0.into_iter().flatten().zip(words) {
            to.fill_u32(place, u32::from_be_bytes(*word));
        }
        Ok(())
    }
}

impl Context<'_> {
    pub(super) fn read(&self, arguments: &Read<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(arguments.file);
        let start = to.mark();
        let read = file
            .as_ref()
            .map_err(|failure| *failure)
            .and_then(|file| self.read_of(file, arguments, to));
        match read {
            Ok(()) => Ok(()),
            Err(Failure(status)) => {
                to.rewind(start);
                let resfail = after(&file);
                ReadResult::Failed { status, resfail }.encode(to)
            }
        }
    }

    /// Reads, and writes the result with the attributes that the file has behind it.
    fn read_of(
        &self,
        file: &File,
        arguments: &Read<'_>,
        to: &mut Writer<'_>,
    ) -> Result<(), Failure> {
        let open = self.open(file, OpenAccess::Read)?;
        // Nothing is behind the last offset: the answer is the end of the file.
        let offset = arguments.offset.min(OFFSET_MAX);
        let count = arguments.count.min(READ_BYTES_MAX);
        let count = u64::from(count).min(OFFSET_MAX.saturating_sub(offset));
        let count = usize::try_from(count).unwrap_or(0);
        let attributes = |bytes: usize| -> Result<_, Failure> {
            let attributes = convert::attributes(&file.node)?;
            let end = offset.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
            Ok((attributes, end >= attributes.size))
        };
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Some(span) = self.call.results.next(to) {
            let part = span.part(0..count.min(span.len_bytes()));
            let bytes = open.read_into(&part.ok_or(Status::SERVERFAULT)?, offset)?;
            self.service.counters().read(file.node.export().id(), bytes);
            let (attributes, eof) = attributes(bytes)?;
            Status::OK.encode(to)?;
            Some(attributes).encode(to)?;
            to.u32(length(bytes))?;
            to.bool(eof)?;
            to.reduced(length(bytes))?;
            return Ok(());
        }
        Status::OK.encode(to)?;
        let attributes_place = AttributesPlace::open(to)?;
        let count_place = to.open_u32()?;
        let eof_place = to.open_u32()?;
        let bytes = to.opaque_with(count, |room| open.read(room, offset).map_err(Failure::from))?;
        self.service.counters().read(file.node.export().id(), bytes);
        let (attributes, eof) = attributes(bytes)?;
        attributes_place.fill(to, attributes)?;
        to.fill_u32(count_place, length(bytes));
        to.fill_u32(eof_place, eof.into());
        Ok(())
    }

    pub(super) fn write(&self, arguments: &Write<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(arguments.file);
        // As it was before: what is lost while this is written may be lost of this as well.
        let verf = self.service.unsynced.verifier();
        let written = file
            .as_ref()
            .map_err(|failure| *failure)
            .and_then(|file| self.write_of(file, arguments));
        let file_wcc = changed(&file);
        let result: WriteResult = match written {
            Ok((bytes, stable)) => Outcome::Ok(WriteOk {
                file_wcc,
                count: u32::try_from(bytes).unwrap_or(u32::MAX),
                committed: match stable {
                    Stable::Unstable => StableHow::Unstable,
                    Stable::Data => StableHow::DataSync,
                    Stable::File => StableHow::FileSync,
                },
                verf,
            }),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: file_wcc,
            },
        };
        result.encode(to)
    }

    fn write_of(&self, file: &File, arguments: &Write<'_>) -> Result<(usize, Stable), Failure> {
        let data = self.call.arguments.data(&arguments.data);
        let data: RawBytes<'_> = match data.ok_or(Status::INVAL)? {
            Data::Inline(bytes) => bytes.into(),
            Data::Pulled(span, length) => span.raw().first(length),
        };
        let count = usize::try_from(arguments.count).unwrap_or(usize::MAX);
        if count != data.len() {
            return Err(Failure(Status::INVAL));
        }
        // Of more than wtmax the first part is written (RFC 1813, section 3.3.7).
        let data = data.first(count.min(usize::try_from(WRITE_BYTES_MAX).unwrap_or(0)));
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let end = arguments.offset.checked_add(length);
        if end.is_none_or(|end| end > OFFSET_MAX) {
            return Err(Failure(Status::FBIG));
        }
        let open = self.open(file, OpenAccess::Write)?;
        let stable = match arguments.stable {
            StableHow::Unstable => Stable::Unstable,
            StableHow::DataSync => Stable::Data,
            StableHow::FileSync => Stable::File,
        };
        let writer = writer_of(self.call.connection);
        let (bytes, stable) = self.service.unsynced.write(
            writer,
            &file.caller,
            &open,
            data,
            arguments.offset,
            stable,
        )?;
        self.service
            .counters()
            .written(file.node.export().id(), bytes);
        Ok((bytes, stable))
    }

    /// Commits all of the file, of which a client may ask for a part.
    pub(super) fn commit(&self, arguments: &Commit<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(arguments.file);
        let committed = file.as_ref().map_err(|failure| *failure).and_then(|file| {
            let writer = writer_of(self.call.connection);
            let unsynced = &self.service.unsynced;
            Ok(unsynced.commit_node(writer, &file.caller, &file.node)?)
        });
        let file_wcc = changed(&file);
        let result: CommitResult = match committed {
            Ok(verf) => Outcome::Ok(CommitOk { file_wcc, verf }),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: file_wcc,
            },
        };
        result.encode(to)
    }
}
