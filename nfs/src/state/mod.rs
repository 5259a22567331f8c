//! The state of an NFSv4.1 server. RFC 8881.
pub mod limits;
pub mod stable;
