//! See [`capstan_fuzz::connect_data`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(connect_data);
