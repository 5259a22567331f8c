//! The bytes of the iWARP suite, without I/O: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP
//! (RFC 5040). All integers are big-endian; every structure has alignment 1.

pub mod crc;
pub mod ddp;
pub mod mpa;
pub mod terminate;
