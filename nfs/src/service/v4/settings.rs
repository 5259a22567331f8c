//! Attributes that clients set: which, what they mean to a file, and SETATTR (RFC 8881, sections
//! 5.5, 6.2 and 18.30; RFC 8275).

use capstan_exports::attributes::WasSet;
use capstan_exports::{Node, SetAttributes, SetTime, Time};
use capstan_nfs_proto::v4::args;
use capstan_nfs_proto::v4::attr::{
    AttrNumber, Fattr, SetAttributes as WireSetAttributes, TimeToSet,
};
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::opnum::MinorVersion;
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::{Principal, Stateid, Time as WireTime};

use super::attributes::{of_version, supported};
use super::context::{Context, File, Outcome, Results};
use crate::service::failure::{Failure, status_of};
use crate::state::IoAccess;

/// Attributes that can be set and not be read (RFC 8881, section 5.5; RFC 8275, section 5).
pub(super) const WRITE_ONLY: &[AttrNumber] = &[
    AttrNumber::TIME_ACCESS_SET,
    AttrNumber::TIME_MODIFY_SET,
    AttrNumber::MODE_SET_MASKED,
    AttrNumber::MODE_UMASK,
];

/// The attributes that can be set. Of time_create it is not true: Linux sets none, and as clients
/// send it without being asked, it is left out of what was set, as knfsd does.
pub(super) fn settable(minor_version: MinorVersion) -> Bitmap {
    of_version(WireSetAttributes::known(), minor_version)
}

/// The attributes that an exclusive create can set with the verifier, for which the two times are
/// used (RFC 8881, section 18.16.3).
pub(super) fn settable_exclusively(minor_version: MinorVersion) -> Bitmap {
    let times = [
        AttrNumber::TIME_ACCESS_SET,
        AttrNumber::TIME_CREATE,
        AttrNumber::TIME_MODIFY_SET,
    ];
    let times = times.iter().map(|number| number.0).collect();
    settable(minor_version).without(&times)
}

/// What a client wants set.
///
/// # Errors
/// NFS4ERR_ATTRNOTSUPP, NFS4ERR_INVAL, NFS4ERR_BADXDR, and NFS4ERR_BADOWNER of a name.
pub(super) fn parse<'a>(
    attributes: &Fattr<'a>,
    minor_version: MinorVersion,
) -> Result<WireSetAttributes<'a>, Status> {
    let parsed = WireSetAttributes::parse(attributes, &supported(minor_version));
    let values = parsed.map_err(|error| {
        tracing::debug!("attributes are not set: {error}");
        error.status()
    })?;
    for principal in [values.owner, values.owner_group].into_iter().flatten() {
        id_of(principal)?;
    }
    Ok(values)
}

fn id_of(principal: Principal<'_>) -> Result<u32, Status> {
    match principal.id()? {
        // The kernel's "as it is", which is no user.
        u32::MAX => Err(Status::BADOWNER),
        id => Ok(id),
    }
}

const fn time_of(time: TimeToSet) -> SetTime {
    match time {
        TimeToSet::Server => SetTime::Now,
        TimeToSet::Client(WireTime { seconds, nseconds }) => SetTime::To(Time {
            seconds,
            nanoseconds: nseconds,
        }),
    }
}

/// The lower 12 bits, which all modes have that were parsed.
fn mode_bits(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).unwrap_or(0)
}

/// What of the values a file has, but its mode.
fn without_mode(values: &WireSetAttributes<'_>) -> Result<SetAttributes, Status> {
    Ok(SetAttributes {
        size_bytes: values.size,
        uid: values.owner.map(id_of).transpose()?,
        gid: values.owner_group.map(id_of).transpose()?,
        mode: None,
        accessed: values.time_access_set.map(time_of),
        modified: values.time_modify_set.map(time_of),
    })
}

/// What a new object in a directory gets. An owner is given by root alone, and left out otherwise,
/// as knfsd does: a creation that has happened does not fail of it.
///
/// # Errors
/// As of [`parse`].
pub(super) fn of_new(
    values: &WireSetAttributes<'_>,
    directory: &File,
) -> Result<SetAttributes, Status> {
    let mut to = without_mode(values)?;
    let masked = values
        .mode_set_masked
        .map(|masked| masked.value_to_set & masked.mask_bits);
    // RFC 8275, section 5: an ACL that is inherited takes the place of the umask.
    let with_umask = values.mode_umask.map(|mode| {
        if directory.node().is_ok_and(Node::has_default_acl) {
            mode.mode
        } else {
            mode.mode & !(mode.umask & 0o777)
        }
    });
    to.mode = values.mode.or(masked).or(with_umask).map(mode_bits);
    if directory.caller.uid() != 0 {
        (to.uid, to.gid) = (None, None);
    }
    Ok(to)
}

/// The attributes of `asked` that were set.
pub(super) fn was_set(asked: &Bitmap, done: WasSet) -> Bitmap {
    let groups: [(WasSet, &[AttrNumber]); 4] = [
        (WasSet::SIZE, &[AttrNumber::SIZE]),
        (WasSet::OWNER, &[AttrNumber::OWNER, AttrNumber::OWNER_GROUP]),
        (
            WasSet::MODE,
            &[
                AttrNumber::MODE,
                AttrNumber::MODE_SET_MASKED,
                AttrNumber::MODE_UMASK,
            ],
        ),
        (
            WasSet::TIMES,
            &[AttrNumber::TIME_ACCESS_SET, AttrNumber::TIME_MODIFY_SET],
        ),
    ];
    let set = groups
        .into_iter()
        .filter(|(group, _)| done.contains(*group))
        .flat_map(|(_, numbers)| numbers.iter().map(|number| number.0));
    asked.and(&set.collect())
}

/// What was set of a new object, which is all that was tried.
pub(super) fn was_tried(asked: &Bitmap, to: &SetAttributes) -> Bitmap {
    let mut set = WasSet::all();
    set.set(WasSet::SIZE, to.size_bytes.is_some());
    set.set(WasSet::OWNER, to.uid.is_some() || to.gid.is_some());
    set.set(WasSet::MODE, to.mode.is_some());
    was_set(asked, set)
}

impl Context<'_> {
    pub(super) fn set_attributes(
        &mut self,
        arguments: &args::SetAttr<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        self.object()?;
        let values = parse(&arguments.obj_attributes, self.minor_version)?;
        if values.mode_umask.is_some() {
            // RFC 8275, section 5: for what is made alone.
            return Err(Status::INVAL.into());
        }
        let file = self.file_or(Status::ROFS)?;
        let mut to = without_mode(&values)?;
        to.mode = values.mode.map(mode_bits);
        let open = match values.size {
            Some(_) => self.check_size_stateid(&file, arguments.stateid)?,
            None => None,
        };
        if let Some(masked) = values.mode_set_masked {
            let now = u32::from(file.node()?.attributes()?.mode);
            let mode = (now & !masked.mask_bits) | (masked.value_to_set & masked.mask_bits);
            to.mode = Some(mode_bits(mode));
        }
        let (done, set) = file
            .node()?
            .set_attributes(&file.caller, &to, open.as_deref());
        Ok(results.push(&OpResult::SetAttr {
            status: set.err().map_or(Status::OK, |error| status_of(&error)),
            attrsset: was_set(&arguments.obj_attributes.mask, done),
        })?)
    }

    /// The open file through which the size is set, which the stateid has to allow (RFC 8881,
    /// section 18.30.3); `None` for a special one.
    fn check_size_stateid(
        &self,
        file: &File,
        stateid: Stateid,
    ) -> Result<Option<std::sync::Arc<capstan_exports::OpenFile>>, Failure> {
        let client = self.client()?;
        let stateid = self.stateids.resolve(stateid)?;
        let permit = self.service.with_state(|state, now_us| {
            state.check_io(client, &file.key, stateid, IoAccess::Write, now_us)
        })??;
        let Some(open) = permit.open else {
            return Ok(None);
        };
        // It may have been closed meanwhile.
        let open = self.service.files.open(open, IoAccess::Write);
        Ok(Some(open.ok_or(Status::BAD_STATEID)?))
    }
}
