//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS and REMOVEXATTR (RFC 8276, section 8.4).

use capstan_exports::xattr::SetXattr;
use capstan_nfs_proto::codec::{List, Opaque};
use capstan_nfs_proto::v4::args::{self, ListXattrs, SetXattrOption, XattrName};
use capstan_nfs_proto::v4::result::OpResult;
use capstan_nfs_proto::v4::results::ListXattrsOk;
use capstan_nfs_proto::v4::status::Status;

use super::context::{Context, Outcome, Results};
use super::entries::{change_before, change_info};

/// Bytes of the result of LISTXATTRS besides its names: the cookie, their count, and whether they
/// are the last.
const LIST_BYTES: usize = 8 + 4 + 4;

/// Names that fit in `room` bytes with their XDR, and whether these are all.
fn fitting<'n>(names: &[&'n [u8]], room: usize) -> (Vec<XattrName<'n>>, bool) {
    let mut left = room;
    let fitting: Vec<_> = names
        .iter()
        .map_while(|name| {
            let takes = name.len().next_multiple_of(4).saturating_add(4);
            left = left.checked_sub(takes)?;
            Some(XattrName(name))
        })
        .collect();
    let is_all = fitting.len() == names.len();
    (fitting, is_all)
}

impl Context<'_> {
    pub(super) fn xattr(&mut self, name: XattrName<'_>, results: &mut Results<'_, '_>) -> Outcome {
        let file = self.file_or(Status::NOTSUPP)?;
        let value = file.node()?.xattr(&file.caller, name.name()?)?;
        Ok(results.push(&OpResult::GetXattr(Opaque(&value)))?)
    }

    pub(super) fn set_xattr(
        &mut self,
        arguments: &args::SetXattr<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let file = self.file_or(Status::ROFS)?;
        let name = arguments.key.name()?;
        let value = arguments.bounded_value()?;
        let how = match arguments.option {
            SetXattrOption::Either => SetXattr::Any,
            SetXattrOption::Create => SetXattr::Create,
            SetXattrOption::Replace => SetXattr::Replace,
        };
        let before = change_before(&file)?;
        file.node()?.set_xattr(&file.caller, name, value, how)?;
        Ok(results.push(&OpResult::SetXattr(change_info(before, &file)))?)
    }

    /// The cookie is the number of names before: they stay in their order while none is added or
    /// removed.
    pub(super) fn list_xattrs(
        &mut self,
        arguments: ListXattrs,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let file = self.file_or(Status::NOTSUPP)?;
        let maxcount = usize::try_from(arguments.maxcount).unwrap_or(usize::MAX);
        let room = maxcount.checked_sub(LIST_BYTES).ok_or(Status::TOOSMALL)?;
        let names = file.node()?.xattr_names(&file.caller)?;
        let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let skipped = usize::try_from(arguments.cookie).unwrap_or(usize::MAX);
        let names = names.get(skipped..).ok_or(Status::BAD_COOKIE)?;
        let (names, eof) = fitting(names, room);
        if names.is_empty() && !eof {
            return Err(Status::TOOSMALL.into());
        }
        let given = u64::try_from(names.len()).unwrap_or(u64::MAX);
        Ok(results.push(&OpResult::ListXattrs(ListXattrsOk {
            cookie: arguments.cookie.saturating_add(given),
            names: List::of(&names),
            eof,
        }))?)
    }

    pub(super) fn remove_xattr(
        &mut self,
        name: XattrName<'_>,
        results: &mut Results<'_, '_>,
    ) -> Outcome {
        let file = self.file_or(Status::ROFS)?;
        let name = name.name()?;
        let before = change_before(&file)?;
        file.node()?.remove_xattr(&file.caller, name)?;
        Ok(results.push(&OpResult::RemoveXattr(change_info(before, &file)))?)
    }
}
