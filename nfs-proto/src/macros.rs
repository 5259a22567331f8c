//! Declarations of wire types: named values that may also hold any other value, closed
//! enumerations, sets of flags, structures and discriminated unions, each with its encoding.

/// As `capstan_rpcrdma::open_enum!`, with the encoding.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub struct $type:ident { $($values:tt)+ }
    ) => {
        capstan_rpcrdma::open_enum! {
            $(#[$meta])*
            pub struct $type { $($values)+ }
        }

        impl $crate::codec::Encode for $type {
            fn encode(
                &self,
                to: &mut $crate::codec::Writer<'_>,
            ) -> Result<(), $crate::codec::WriteError> {
                to.u32(self.0)
            }
        }

        impl $crate::codec::Decode<'_> for $type {
            fn decode(
                from: &mut $crate::codec::Reader<'_>,
                field: &'static str,
            ) -> Result<Self, $crate::codec::ReadError> {
                from.u32(field).map(Self)
            }
        }
    };
}
pub(crate) use open_enum;

/// Declares an enumeration of XDR: any other value is malformed (RFC 4506, section 4.3; RFC 8881,
/// section 15.1.1.1, NFS4ERR_BADXDR).
macro_rules! xdr_enum {
    (
        $(#[$meta:meta])*
        pub enum $type:ident {
            $( $(#[$vmeta:meta])* $name:ident = $value:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $type {
            $( $(#[$vmeta])* $name, )+
        }

        impl $type {
            /// Every value, in the order of the declaration.
            pub const ALL: &'static [Self] = &[$( Self::$name, )+];

            /// The value on the wire.
            #[must_use]
            pub const fn to_wire(self) -> u32 {
                match self {
                    $( Self::$name => $value, )+
                }
            }
        }

        impl $crate::codec::Encode for $type {
            fn encode(
                &self,
                to: &mut $crate::codec::Writer<'_>,
            ) -> Result<(), $crate::codec::WriteError> {
                to.u32(self.to_wire())
            }
        }

        impl $crate::codec::Decode<'_> for $type {
            fn decode(
                from: &mut $crate::codec::Reader<'_>,
                field: &'static str,
            ) -> Result<Self, $crate::codec::ReadError> {
                let start = *from;
                match from.u32(field)? {
                    $( $value => Ok(Self::$name), )+
                    value => Err(start.invalid(
                        field, u64::from(value), "a value of its enumeration",
                    )),
                }
            }
        }
    };
}
pub(crate) use xdr_enum;

/// Declares a word of flags that keeps bits without a name.
macro_rules! xdr_flags {
    (
        $(#[$meta:meta])*
        pub struct $type:ident {
            $( $(#[$($vmeta:tt)*])* const $name:ident = $value:literal; )+
        }
    ) => {
        bitflags::bitflags! {
            $(#[$meta])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
            pub struct $type: u32 {
                $( $(#[$($vmeta)*])* const $name = $value; )+
            }
        }

        impl $crate::codec::Encode for $type {
            fn encode(
                &self,
                to: &mut $crate::codec::Writer<'_>,
            ) -> Result<(), $crate::codec::WriteError> {
                to.u32(self.bits())
            }
        }

        impl $crate::codec::Decode<'_> for $type {
            fn decode(
                from: &mut $crate::codec::Reader<'_>,
                field: &'static str,
            ) -> Result<Self, $crate::codec::ReadError> {
                from.u32(field).map(Self::from_bits_retain)
            }
        }
    };
}
pub(crate) use xdr_flags;

/// Declares a structure of XDR: its fields in the order of the declaration (RFC 4506, section
/// 4.14).
macro_rules! xdr_struct {
    (
        $(#[$meta:meta])*
        pub struct $type:ident $(<$life:lifetime>)? {
            $( $(#[$fmeta:meta])* pub $field:ident: $ftype:ty, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub struct $type $(<$life>)? {
            $( $(#[$fmeta])* pub $field: $ftype, )+
        }

        impl $(<$life>)? $crate::codec::Encode for $type $(<$life>)? {
            fn encode(
                &self,
                to: &mut $crate::codec::Writer<'_>,
            ) -> Result<(), $crate::codec::WriteError> {
                $( $crate::codec::Encode::encode(&self.$field, to)?; )+
                Ok(())
            }
        }

        $crate::macros::decode_impl! {
            $type $(<$life>)?,
            (from, _field) => {
                Ok(Self { $( $field: $crate::codec::Decode::decode(from, stringify!($field))?, )+ })
            }
        }
    };
}
pub(crate) use xdr_struct;

/// `impl Decode` with the type's lifetime, where it has one.
macro_rules! decode_impl {
    ($type:ident<$life:lifetime>, ($from:ident, $field:ident) => $body:block) => {
        impl<$life> $crate::codec::Decode<$life> for $type<$life> {
            fn decode(
                $from: &mut $crate::codec::Reader<$life>,
                $field: &'static str,
            ) -> Result<Self, $crate::codec::ReadError> $body
        }
    };
    ($type:ident, ($from:ident, $field:ident) => $body:block) => {
        impl $crate::codec::Decode<'_> for $type {
            fn decode(
                $from: &mut $crate::codec::Reader<'_>,
                $field: &'static str,
            ) -> Result<Self, $crate::codec::ReadError> $body
        }
    };
}
pub(crate) use decode_impl;

/// Declares a discriminated union of XDR (RFC 4506, section 4.15): a discriminant, and the arm it
/// selects. A discriminant without an arm is malformed.
macro_rules! xdr_union {
    (
        $(#[$meta:meta])*
        pub enum $type:ident $(<$life:lifetime>)? {
            $( $(#[$vmeta:meta])* $name:ident $(($arm:ty))? = $value:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum $type $(<$life>)? {
            $( $(#[$vmeta])* $name $(($arm))?, )+
        }

        impl $(<$life>)? $crate::codec::Encode for $type $(<$life>)? {
            fn encode(
                &self,
                to: &mut $crate::codec::Writer<'_>,
            ) -> Result<(), $crate::codec::WriteError> {
                match self {
                    $( $crate::macros::arm_pattern!($name, arm $(, $arm)?) => {
                        to.u32($value)?;
                        $crate::macros::arm_encode!(to, arm $(, $arm)?)
                    } )+
                }
            }
        }

        $crate::macros::decode_impl! {
            $type $(<$life>)?,
            (from, field) => {
                let start = *from;
                match from.u32(field)? {
                    $( $value => Ok($crate::macros::arm_decode!(from, field, $name $(, $arm)?)), )+
                    value => Err(start.invalid(
                        field, u64::from(value), "a discriminant of its union",
                    )),
                }
            }
        }
    };
}
pub(crate) use xdr_union;

macro_rules! arm_pattern {
    ($name:ident, $arm:ident, $type:ty) => {
        Self::$name($arm)
    };
    ($name:ident, $arm:ident) => {
        Self::$name
    };
}
pub(crate) use arm_pattern;

macro_rules! arm_encode {
    ($to:ident, $arm:ident, $type:ty) => {
        $crate::codec::Encode::encode($arm, $to)
    };
    ($to:ident, $arm:ident) => {
        Ok(())
    };
}
pub(crate) use arm_encode;

macro_rules! arm_decode {
    ($from:ident, $field:ident, $name:ident, $type:ty) => {
        Self::$name($crate::codec::Decode::decode($from, $field)?)
    };
    ($from:ident, $field:ident, $name:ident) => {
        Self::$name
    };
}
pub(crate) use arm_decode;
