//! See [`capstan_fuzz::command_data`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(command_data);
