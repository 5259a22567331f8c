//! See [`capstan_fuzz::config_toml`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(config_toml);
