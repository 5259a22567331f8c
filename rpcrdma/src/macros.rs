//! `open_enum!`: a set of named values that can also hold every value the specification has not
//! named, because a peer may send one.

/// Declares a newtype over `u32` with one associated constant per named value.
///
/// `Display` prints the name from the specification, or the value in decimal as the RFCs write
/// them. Other crates over XDR declare theirs with it as well.
#[macro_export]
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub struct $type:ident {
            $( $(#[$vmeta:meta])* $name:ident = $value:literal => $text:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(pub u32);

        impl $type {
            $( #[doc = concat!($text, " (`", stringify!($value), "`).")] $(#[$vmeta])*
               pub const $name: Self = Self($value); )+

            /// Every named value, in the order of the declaration.
            pub const NAMED: &'static [Self] = &[$( Self::$name, )+];

            /// The name in the specification, or `None` for a value it does not define.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$name => Some($text), )+
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}", self.0),
                }
            }
        }

        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}", self.0)?;
                match self.name() {
                    Some(name) => write!(f, " {name}"),
                    None => Ok(()),
                }
            }
        }
    };
}
