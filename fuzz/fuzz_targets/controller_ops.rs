//! See [`capstan_fuzz::controller_ops`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(controller_ops);
