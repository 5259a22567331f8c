//! See [`capstan_fuzz::completion`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(completion);
