//! Calls and replies of ONC RPC version 2 (RFC 5531), up to where the arguments and results of a
//! program begin.

mod auth;
mod call;
mod reply;

pub use auth::{AuthFlavor, AuthStat, AuthSys, Credentials, Gids};
pub use call::{Call, CallError};
pub use reply::{Accepted, Denied, Reply, ReplyError};

/// The version of the RPC protocol (RFC 5531, section 9).
pub const RPC_VERSION: u32 = 2;

/// `msg_type` of a call (RFC 5531, section 9).
const CALL: u32 = 0;
/// `msg_type` of a reply (RFC 5531, section 9).
const REPLY: u32 = 1;
