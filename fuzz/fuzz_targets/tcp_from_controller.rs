//! See [`capstan_fuzz::tcp_from_controller`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(tcp_from_controller);
