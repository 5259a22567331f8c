//! See [`capstan_fuzz::nfs3_call`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(nfs3_call);
