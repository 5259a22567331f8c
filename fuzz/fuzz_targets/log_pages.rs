//! See [`capstan_fuzz::log_pages`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(log_pages);
