//! See [`capstan_fuzz::features`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(features);
