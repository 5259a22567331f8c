//! See [`capstan_fuzz::tcp_controller_queue`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(tcp_controller_queue);
