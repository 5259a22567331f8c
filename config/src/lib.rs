//! The capstan-target configuration schema and its checks.
