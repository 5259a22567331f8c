//! Arguments of the operations, one type per operation that has any.
//!
//! A doc comment names the clause of the operation. The current and the saved filehandle, which
//! most operations are about, are the COMPOUND's (RFC 8881, section 16.2.3.1).

mod file;
mod layout;
mod lock;
mod open;
mod session;
mod v42;
mod xattr;

pub use file::{
    Access, AccessRights, Commit, Create, CreateType, Read, ReadDir, Rename, SetAttr, Write,
};
pub use layout::{
    GetDeviceInfo, GetDeviceList, GetDirDelegation, LayoutCommit, LayoutGet, LayoutIomode,
    LayoutReturn, LayoutReturnFile, LayoutReturnKind, LayoutUpdate,
};
pub use lock::{ExistingLockOwner, Lock, LockType, Locker, NewLockOwner, TestLock, Unlock};
pub use open::{
    Close, CreateHow, DelegateCurrent, DelegationClaim, DelegationType, ExclusiveCreate, Open,
    OpenClaim, OpenDowngrade, OpenHow, ShareAccess, ShareDeny, WantDelegation,
};
pub use session::{
    AuthSysCredential, BackchannelCtl, BindConnToSession, CallbackSecurity, ChannelAttributes,
    ChannelDirection, ClientChannelDirection, CreateSession, CreateSessionFlags, ExchangeId,
    ExchangeIdFlags, GssCallbackHandles, RpcGssService, SecinfoStyle, Sequence, SetSsv,
    SsvParameters, StateProtect, StateProtectOps,
};
pub use v42::{
    AppDataBlock, Clone, Copy, CopyNotify, DeviceError, IoAdvise, IoInfo, LayoutError, LayoutStats,
    NetLoc, Range, ReadPlus, Seek, SeekTarget, WriteSame,
};
pub use xattr::{ListXattrs, SetXattr, SetXattrOption, XattrName};
