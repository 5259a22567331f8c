//! See [`capstan_fuzz::iwarp_setup`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(iwarp_setup);
