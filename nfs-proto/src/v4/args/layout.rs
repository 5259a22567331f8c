//! Arguments of the operations of pNFS and of directory delegations.

use crate::codec::Unbounded;
use crate::macros::{xdr_enum, xdr_struct, xdr_union};
use crate::v4::bitmap::Bitmap;
use crate::v4::types::{DeviceId, Stateid, Time, Verifier};

xdr_enum! {
    /// What a layout is for (layoutiomode4; RFC 8881, section 3.3).
    pub enum LayoutIomode {
        /// To read.
        Read = 1,
        /// To read and to write.
        ReadWrite = 2,
        /// Either, in LAYOUTRETURN.
        Any = 3,
    }
}

xdr_struct! {
    /// GET_DIR_DELEGATION (RFC 8881, section 18.39).
    pub struct GetDirDelegation {
        /// Whether the server is to tell when there can be one.
        pub signal_deleg_avail: bool,
        /// The notifications that are wanted.
        pub notification_types: Bitmap,
        /// How long notifications of children's attributes may take.
        pub child_attr_delay: Time,
        /// How long notifications of the directory's attributes may take.
        pub dir_attr_delay: Time,
        /// Attributes of children.
        pub child_attributes: Bitmap,
        /// Attributes of the directory.
        pub dir_attributes: Bitmap,
    }
}

xdr_struct! {
    /// GETDEVICEINFO (RFC 8881, section 18.40).
    pub struct GetDeviceInfo {
        /// The device.
        pub device_id: DeviceId,
        /// The layout type.
        pub layout_type: u32,
        /// Most bytes of the result; 0 to be told of changes alone.
        pub maxcount: u32,
        /// The notifications that are wanted.
        pub notify_types: Bitmap,
    }
}

xdr_struct! {
    /// GETDEVICELIST (RFC 8881, section 18.41).
    pub struct GetDeviceList {
        /// The layout type.
        pub layout_type: u32,
        /// Most devices.
        pub maxdevices: u32,
        /// Where to go on.
        pub cookie: u64,
        /// The verifier that came with the cookie.
        pub cookieverf: Verifier,
    }
}

xdr_struct! {
    /// What a layout type says of an update (layoutupdate4; RFC 8881, section 3.3).
    pub struct LayoutUpdate<'a> {
        /// The layout type.
        pub layout_type: u32,
        /// By its rules.
        pub body: Unbounded<'a>,
    }
}

xdr_struct! {
    /// LAYOUTCOMMIT (RFC 8881, section 18.42).
    pub struct LayoutCommit<'a> {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// Whether the layout is from before the server restarted.
        pub reclaim: bool,
        /// The layout.
        pub stateid: Stateid,
        /// The last byte that was written.
        pub last_write_offset: Option<u64>,
        /// When it was written.
        pub time_modify: Option<Time>,
        /// By the rules of the layout type.
        pub layoutupdate: LayoutUpdate<'a>,
    }
}

xdr_struct! {
    /// LAYOUTGET (RFC 8881, section 18.43).
    pub struct LayoutGet {
        /// Whether the server is to tell when there can be one.
        pub signal_layout_avail: bool,
        /// The layout type.
        pub layout_type: u32,
        /// What for.
        pub iomode: LayoutIomode,
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// Least bytes.
        pub minlength: u64,
        /// The state that allows it.
        pub stateid: Stateid,
        /// Most bytes of the result.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// The layout of a file that is returned (layoutreturn_file4; RFC 8881, section 18.44.1).
    pub struct LayoutReturnFile<'a> {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// By the rules of the layout type.
        pub body: Unbounded<'a>,
    }
}

xdr_union! {
    /// Which layouts are returned (layoutreturn4; RFC 8881, section 18.44.1).
    pub enum LayoutReturnKind<'a> {
        /// Of a file.
        File(LayoutReturnFile<'a>) = 1,
        /// Of a file system.
        Fsid = 2,
        /// All.
        All = 3,
    }
}

xdr_struct! {
    /// LAYOUTRETURN (RFC 8881, section 18.44).
    pub struct LayoutReturn<'a> {
        /// Whether the layout is from before the server restarted.
        pub reclaim: bool,
        /// The layout type.
        pub layout_type: u32,
        /// What for.
        pub iomode: LayoutIomode,
        /// Which.
        pub layoutreturn: LayoutReturnKind<'a>,
    }
}
