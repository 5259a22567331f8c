//! The procedures of NFS version 3 with their arguments.
//!
//! Source: RFC 1813, section 3.

use crate::codec::{Decode, Encode, ReadError, Reader, WriteError, Writer};
use crate::v3::args;
use crate::v3::types::{DirOpArgs, Filehandle};

macro_rules! procedures {
    ($( $number:literal $name:ident $(($arguments:ty))? $text:literal, )+) => {
        /// A call.
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum Call<'a> {
            $( #[doc = concat!($text, " (`", stringify!($number), "`).")] $name $(($arguments))?, )+
        }

        impl<'a> Call<'a> {
            /// Parses the arguments of the procedure `number`, which are what is left of a call
            /// behind its RPC header; `None` for a procedure that there is not: PROC_UNAVAIL.
            ///
            /// # Errors
            /// They are malformed, or a reduced item is where none can be: GARBAGE_ARGS.
            pub fn parse(number: u32, from: &mut Reader<'a>) -> Result<Option<Self>, ReadError> {
                let call = match number {
                    $( $number => procedures!(@decode from $name $(, $arguments)?), )+
                    _ => return Ok(None),
                };
                match from.finish() {
                    // What follows the arguments is not looked at.
                    Ok(()) | Err(ReadError::Trailing { .. }) => Ok(Some(call)),
                    Err(error) => Err(error),
                }
            }

            /// The number of the procedure.
            #[must_use]
            pub const fn procedure(&self) -> u32 {
                match self {
                    $( procedures!(@bind _arguments $name $(, $arguments)?) => $number, )+
                }
            }

            /// The name of a procedure.
            #[must_use]
            pub const fn name(number: u32) -> Option<&'static str> {
                match number {
                    $( $number => Some($text), )+
                    _ => None,
                }
            }
        }

        /// The arguments.
        impl Encode for Call<'_> {
            fn encode(&self, to: &mut Writer<'_>) -> Result<(), WriteError> {
                match self {
                    $( procedures!(@bind arguments $name $(, $arguments)?) =>
                        procedures!(@encode to arguments $(, $arguments)?), )+
                }
            }
        }
    };
    (@bind $bound:ident $name:ident, $arguments:ty) => { Self::$name($bound) };
    (@bind $bound:ident $name:ident) => { Self::$name };
    (@decode $from:ident $name:ident, $arguments:ty) => {
        Self::$name(Decode::decode($from, stringify!($name))?)
    };
    (@decode $from:ident $name:ident) => { Self::$name };
    (@encode $to:ident $bound:ident, $arguments:ty) => { $bound.encode($to) };
    (@encode $to:ident $bound:ident) => { Ok(()) };
}

procedures! {
    0 Null "NULL",
    1 GetAttr(Filehandle<'a>) "GETATTR",
    2 SetAttr(args::SetAttr<'a>) "SETATTR",
    3 Lookup(DirOpArgs<'a>) "LOOKUP",
    4 Access(args::Access<'a>) "ACCESS",
    5 ReadLink(Filehandle<'a>) "READLINK",
    6 Read(args::Read<'a>) "READ",
    7 Write(args::Write<'a>) "WRITE",
    8 Create(args::Create<'a>) "CREATE",
    9 MkDir(args::MkDir<'a>) "MKDIR",
    10 SymLink(args::SymLink<'a>) "SYMLINK",
    11 MkNod(args::MkNod<'a>) "MKNOD",
    12 Remove(DirOpArgs<'a>) "REMOVE",
    13 RmDir(DirOpArgs<'a>) "RMDIR",
    14 Rename(args::Rename<'a>) "RENAME",
    15 Link(args::Link<'a>) "LINK",
    16 ReadDir(args::ReadDir<'a>) "READDIR",
    17 ReadDirPlus(args::ReadDirPlus<'a>) "READDIRPLUS",
    18 FsStat(Filehandle<'a>) "FSSTAT",
    19 FsInfo(Filehandle<'a>) "FSINFO",
    20 PathConf(Filehandle<'a>) "PATHCONF",
    21 Commit(args::Commit<'a>) "COMMIT",
}
