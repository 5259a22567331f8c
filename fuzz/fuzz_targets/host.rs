//! See [`capstan_fuzz::host`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(host);
