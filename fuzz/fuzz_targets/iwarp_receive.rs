//! See [`capstan_fuzz::iwarp_receive`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(iwarp_receive);
