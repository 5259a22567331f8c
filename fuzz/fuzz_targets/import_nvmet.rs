//! See [`capstan_fuzz::import_nvmet`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(import_nvmet);
