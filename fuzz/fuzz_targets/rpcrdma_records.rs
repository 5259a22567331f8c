//! See [`capstan_fuzz::rpcrdma_records`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(rpcrdma_records);
