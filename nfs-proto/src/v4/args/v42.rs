//! Arguments of the operations that are new in NFSv4.2.

use crate::codec::{List, Unbounded};
use crate::macros::{xdr_enum, xdr_struct, xdr_union};
use crate::v4::args::LayoutUpdate;
use crate::v4::bitmap::Bitmap;
use crate::v4::opnum::OpNum;
use crate::v4::status::Status;
use crate::v4::types::{DeviceId, NetAddr, StableHow, Stateid};

xdr_struct! {
    /// ALLOCATE and DEALLOCATE (RFC 7862, sections 15.1 and 15.4).
    pub struct Range {
        /// The state that allows it.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
    }
}

xdr_union! {
    /// A server (netloc4; RFC 7862, section 15.2.1).
    pub enum NetLoc<'a> {
        /// By name.
        Name(Unbounded<'a>) = 1,
        /// By URL.
        Url(Unbounded<'a>) = 2,
        /// By network address.
        NetAddr(NetAddr<'a>) = 3,
    }
}

xdr_struct! {
    /// COPY, from the saved to the current file (RFC 7862, section 15.2).
    pub struct Copy<'a> {
        /// The state that allows to read.
        pub src_stateid: Stateid,
        /// The state that allows to write.
        pub dst_stateid: Stateid,
        /// First byte that is read.
        pub src_offset: u64,
        /// First byte that is written.
        pub dst_offset: u64,
        /// Bytes; 0 for up to the end.
        pub count: u64,
        /// Whether to copy in the order of the bytes.
        pub consecutive: bool,
        /// Whether to answer when it is done.
        pub synchronous: bool,
        /// Where the source is; nothing for this server.
        pub source_server: List<'a, NetLoc<'a>>,
    }
}

xdr_struct! {
    /// COPY_NOTIFY (RFC 7862, section 15.3).
    pub struct CopyNotify<'a> {
        /// The state that allows to read.
        pub src_stateid: Stateid,
        /// Where the copy goes.
        pub destination_server: NetLoc<'a>,
    }
}

xdr_struct! {
    /// IO_ADVISE (RFC 7862, section 15.5).
    pub struct IoAdvise {
        /// The state of the file.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes; 0 for up to the end.
        pub count: u64,
        /// The hints.
        pub hints: Bitmap,
    }
}

xdr_struct! {
    /// An error of a device (device_error4; RFC 7862, section 15.6.1).
    pub struct DeviceError {
        /// The device.
        pub deviceid: DeviceId,
        /// Its answer.
        pub status: Status,
        /// To which operation.
        pub opnum: OpNum,
    }
}

xdr_struct! {
    /// LAYOUTERROR (RFC 7862, section 15.6).
    pub struct LayoutError<'a> {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// The errors.
        pub errors: List<'a, DeviceError>,
    }
}

xdr_struct! {
    /// How much was done (io_info4; RFC 7862, section 15.7.1).
    pub struct IoInfo {
        /// Operations.
        pub count: u64,
        /// Bytes.
        pub bytes: u64,
    }
}

xdr_struct! {
    /// LAYOUTSTATS (RFC 7862, section 15.7).
    pub struct LayoutStats<'a> {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// What was read.
        pub read: IoInfo,
        /// What was written.
        pub write: IoInfo,
        /// The device.
        pub deviceid: DeviceId,
        /// By the rules of the layout type.
        pub layoutupdate: LayoutUpdate<'a>,
    }
}

xdr_struct! {
    /// READ_PLUS (RFC 7862, section 15.10).
    pub struct ReadPlus {
        /// The state that allows it.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub count: u32,
    }
}

xdr_enum! {
    /// What SEEK looks for (data_content4; RFC 7862, section 15.11.1).
    pub enum SeekTarget {
        /// Data.
        Data = 0,
        /// A hole.
        Hole = 1,
    }
}

xdr_struct! {
    /// SEEK (RFC 7862, section 15.11).
    pub struct Seek {
        /// The state that allows it.
        pub stateid: Stateid,
        /// First byte that is looked at.
        pub offset: u64,
        /// What is looked for.
        pub what: SeekTarget,
    }
}

xdr_struct! {
    /// A pattern of blocks (app_data_block4; RFC 7862, section 8.1).
    pub struct AppDataBlock<'a> {
        /// First byte.
        pub offset: u64,
        /// Bytes of a block.
        pub block_size: u64,
        /// Blocks.
        pub block_count: u64,
        /// Where in a block its number is; all ones for nowhere.
        pub reloff_blocknum: u64,
        /// The number of the first block.
        pub block_num: u32,
        /// Where in a block the pattern is; all ones for nowhere.
        pub reloff_pattern: u64,
        /// The pattern.
        pub pattern: Unbounded<'a>,
    }
}

xdr_struct! {
    /// WRITE_SAME (RFC 7862, section 15.12).
    pub struct WriteSame<'a> {
        /// The state that allows it.
        pub stateid: Stateid,
        /// How stable the data is to be before the reply.
        pub stable: StableHow,
        /// What is written.
        pub adb: AppDataBlock<'a>,
    }
}

xdr_struct! {
    /// CLONE, from the saved to the current file (RFC 7862, section 15.13).
    pub struct Clone {
        /// The state that allows to read.
        pub src_stateid: Stateid,
        /// The state that allows to write.
        pub dst_stateid: Stateid,
        /// First byte that is read.
        pub src_offset: u64,
        /// First byte that is written.
        pub dst_offset: u64,
        /// Bytes; 0 for up to the end.
        pub count: u64,
    }
}
