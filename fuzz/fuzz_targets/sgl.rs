//! See [`capstan_fuzz::sgl`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(sgl);
