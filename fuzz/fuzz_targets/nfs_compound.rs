//! See [`capstan_fuzz::nfs_compound`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(nfs_compound);
