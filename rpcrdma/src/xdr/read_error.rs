//! Why XDR could not be read.

/// Bytes that are not what was expected. The sender gets an answer like GARBAGE_ARGS (RFC 5531,
/// section 9) or the layer above has one of its own; nothing was kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream ends within an item.
    #[error(
        "{field} at offset {offset} needs {needed_bytes} bytes, {left_bytes} are left: \
         refuse the message as undecodable"
    )]
    Short {
        /// The field, by its name in the specification.
        field: &'static str,
        /// Bytes of the stream before it.
        offset: usize,
        /// Bytes it takes, padding included; of an array, the least that its elements can take.
        needed_bytes: u64,
        /// Bytes there are from `offset` on.
        left_bytes: usize,
    },
    /// A count above its bound.
    #[error(
        "{field} at offset {offset} counts {count}, expected at most {max}: \
         refuse the message as undecodable"
    )]
    TooMany {
        /// The field, by its name in the specification.
        field: &'static str,
        /// Bytes of the stream before the count.
        offset: usize,
        /// Bytes or elements it counts.
        count: u32,
        /// The bound.
        max: u32,
    },
    /// A value that the field cannot have.
    #[error(
        "{field} at offset {offset} is {value}, expected {expected}: \
         refuse the message as undecodable"
    )]
    Invalid {
        /// The field, by its name in the specification.
        field: &'static str,
        /// Bytes of the stream before it.
        offset: usize,
        /// What it held.
        value: u64,
        /// What it may hold.
        expected: &'static str,
    },
    /// Bytes behind the last item.
    #[error(
        "{left_bytes} bytes follow the last item at offset {offset}, expected none: \
         refuse the message as undecodable"
    )]
    Trailing {
        /// Bytes of the stream that were read.
        offset: usize,
        /// Bytes behind them.
        left_bytes: usize,
    },
    /// A reduced item lies where none can: within a field, at one that is not DDP-eligible, or
    /// behind everything.
    #[error(
        "a read chunk has Position {position}, where {field} is (position {at}), expected one \
         right behind the count of a DDP-eligible item: refuse the message as undecodable"
    )]
    Misplaced {
        /// The field that was read.
        field: &'static str,
        /// Its position.
        at: u32,
        /// The Position of the read chunk.
        position: u32,
    },
    /// The count of a reduced item is not that of what was moved.
    #[error(
        "{field} counts {count} bytes, its read chunk at Position {position} has {length_bytes}, \
         expected as many, with or without padding: refuse the message as undecodable"
    )]
    ReducedLength {
        /// The field, by its name in the specification.
        field: &'static str,
        /// The Position of the read chunk.
        position: u32,
        /// Bytes as the stream counts them.
        count: u32,
        /// Bytes of the read chunk.
        length_bytes: u32,
    },
}
