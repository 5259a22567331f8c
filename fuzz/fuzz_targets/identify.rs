//! See [`capstan_fuzz::identify`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(identify);
