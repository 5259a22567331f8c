//! See [`capstan_fuzz::private_data`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(private_data);
