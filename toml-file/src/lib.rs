//! TOML files that people write and programs change: tables are taken out with the comments that
//! belong to them and nothing else ([`without`]), and a file is replaced as a whole or not at all
//! ([`replace`]). Values are set by `toml_edit`, which leaves all else as it is.

#![forbid(unsafe_code)]

mod cut;
mod replace;

pub use cut::without;
pub use replace::replace;
