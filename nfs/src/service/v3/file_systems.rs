//! FSSTAT, FSINFO and PATHCONF (RFC 1813, sections 3.3.18 to 3.3.20).

use capstan_nfs_proto::codec::Encode;
use capstan_nfs_proto::v3::results::{
    FsInfoOk, FsInfoResult, FsProperties, FsStatOk, FsStatResult, Outcome, PathConfOk,
    PathConfResult,
};
use capstan_nfs_proto::v3::types::{Filehandle, Time};
use capstan_rpcrdma::xdr::Writer;

use super::Written;
use super::context::{Context, after};
use super::failure::Failure;
use super::limits::{DIRECTORY_BYTES_PREFERRED, MULTIPLE_BYTES, READ_BYTES_MAX, WRITE_BYTES_MAX};

impl Context<'_> {
    pub(super) fn file_system_space(&self, handle: Filehandle<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(handle);
        let space = file
            .as_ref()
            .map_err(|failure| *failure)
            .and_then(|file| Ok(file.node.space()?));
        let obj_attributes = after(&file);
        let result: FsStatResult = match space {
            Ok(space) => Outcome::Ok(FsStatOk {
                obj_attributes,
                tbytes: space.total_bytes,
                fbytes: space.free_bytes,
                abytes: space.available_bytes,
                tfiles: space.total_files,
                ffiles: space.free_files,
                afiles: space.free_files,
                invarsec: 0,
            }),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: obj_attributes,
            },
        };
        result.encode(to)
    }

    pub(super) fn file_system_limits(
        &self,
        handle: Filehandle<'_>,
        to: &mut Writer<'_>,
    ) -> Written {
        let file = self.file(handle);
        let obj_attributes = after(&file);
        let result: FsInfoResult = match file {
            Ok(_file) => Outcome::Ok(FsInfoOk {
                obj_attributes,
                rtmax: READ_BYTES_MAX,
                rtpref: READ_BYTES_MAX,
                rtmult: MULTIPLE_BYTES,
                wtmax: WRITE_BYTES_MAX,
                wtpref: WRITE_BYTES_MAX,
                wtmult: MULTIPLE_BYTES,
                dtpref: DIRECTORY_BYTES_PREFERRED,
                // What the kernel has; a file system that has less says NFS3ERR_FBIG.
                maxfilesize: i64::MAX.cast_unsigned(),
                time_delta: Time {
                    seconds: 0,
                    nseconds: 1,
                },
                // Not HOMOGENEOUS: directories may differ in whether the case of names counts.
                properties: FsProperties::LINK | FsProperties::SYMLINK | FsProperties::CANSETTIME,
            }),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: obj_attributes,
            },
        };
        result.encode(to)
    }

    pub(super) fn path_limits(&self, handle: Filehandle<'_>, to: &mut Writer<'_>) -> Written {
        let file = self.file(handle);
        let limits = file
            .as_ref()
            .map_err(|failure| *failure)
            .and_then(|file| Ok(file.node.name_limits()?));
        let obj_attributes = after(&file);
        let result: PathConfResult = match limits {
            Ok(limits) => Outcome::Ok(PathConfOk {
                obj_attributes,
                linkmax: u32::try_from(limits.links).unwrap_or(u32::MAX),
                name_max: u32::try_from(limits.name_bytes).unwrap_or(u32::MAX),
                no_trunc: true,
                chown_restricted: true,
                case_insensitive: limits.ignores_case,
                case_preserving: true,
            }),
            Err(Failure(status)) => Outcome::Failed {
                status,
                resfail: obj_attributes,
            },
        };
        result.encode(to)
    }
}
