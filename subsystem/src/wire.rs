//! Building data structures whose reserved bytes are private: all zero but the fields that are
//! named.

/// `wire!(Type { field: value, … })`: a zeroed `Type` with these fields set.
macro_rules! wire {
    ($type:ident { $( $field:ident: $value:expr, )* }) => {{
        let mut value = <$type as zerocopy::FromZeros>::new_zeroed();
        $( value.$field = $value; )*
        value
    }};
}
pub(crate) use wire;
