//! See [`capstan_fuzz::rpcrdma_rpc`].
#![cfg_attr(fuzzing, no_main)]

capstan_fuzz::fuzz_target!(rpcrdma_rpc);
