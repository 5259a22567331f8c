//! Words of messages.

pub use capstan_nvme_proto::text::Count;
