//! How OPEN makes a file (createhow4; RFC 8881, section 18.16).

use capstan_exports::SetAttributes;
use capstan_exports::entries::Create;
use capstan_nfs_proto::v4::args::CreateHow;
use capstan_nfs_proto::v4::attr::AttrNumber;
use capstan_nfs_proto::v4::bitmap::Bitmap;
use capstan_nfs_proto::v4::opnum::MinorVersion;
use capstan_nfs_proto::v4::status::Status;
use capstan_nfs_proto::v4::types::Verifier;

use super::context::File;
use super::settings::{of_new, parse, settable_exclusively, was_tried};

/// How a file is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creation {
    pub(super) how: Create,
    /// What a new file gets.
    pub(super) attributes: SetAttributes,
    /// What the client is told that was set, of a new file.
    pub(super) attrset: Bitmap,
    /// A file that is there is emptied: other attributes are not looked at then (section 18.16.3).
    pub(super) empties: bool,
}

impl Creation {
    /// What the arguments say of a file in `directory`.
    ///
    /// # Errors
    /// Of [`parse`]; NFS4ERR_INVAL for what is not in suppattr_exclcreat.
    pub(super) fn parse(
        how: &CreateHow<'_>,
        directory: &File,
        minor_version: MinorVersion,
    ) -> Result<Self, Status> {
        let exclusive = |Verifier(verifier)| Create::Exclusive(verifier);
        let (how, given) = match how {
            CreateHow::Unchecked(attributes) => (Create::Unchecked, Some(attributes)),
            CreateHow::Guarded(attributes) => (Create::Guarded, Some(attributes)),
            CreateHow::Exclusive(verifier) => (exclusive(*verifier), None),
            CreateHow::Exclusive41(create) => (exclusive(create.verifier), Some(&create.attrs)),
        };
        let mut creation = Self {
            how,
            attributes: SetAttributes::default(),
            attrset: Bitmap::EMPTY,
            empties: false,
        };
        let is_exclusive = matches!(how, Create::Exclusive(_));
        if let Some(given) = given {
            let values = parse(given, minor_version)?;
            let settable = settable_exclusively(minor_version);
            if is_exclusive && !given.mask.without(&settable).is_empty() {
                return Err(Status::INVAL);
            }
            creation.attributes = of_new(&values, directory)?;
            creation.attrset = was_tried(&given.mask, &creation.attributes);
            creation.empties = values.size == Some(0);
        }
        if is_exclusive {
            // The verifier is in these, so that the client knows that it has to set them (section
            // 18.16.3).
            creation.attrset.insert(AttrNumber::TIME_ACCESS.0);
            creation.attrset.insert(AttrNumber::TIME_MODIFY.0);
        }
        if creation.empties {
            // As every new file is.
            creation.attributes.size_bytes = None;
        }
        Ok(creation)
    }
}
