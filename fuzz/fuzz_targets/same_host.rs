//! See [`capstan_fuzz::same_host`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(same_host);
