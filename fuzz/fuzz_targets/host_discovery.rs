//! See [`capstan_fuzz::host_discovery`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(host_discovery);
