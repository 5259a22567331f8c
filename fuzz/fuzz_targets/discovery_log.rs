//! See [`capstan_fuzz::discovery_log`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(discovery_log);
