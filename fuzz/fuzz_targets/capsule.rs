//! See [`capstan_fuzz::capsule`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(capsule);
