#!/usr/bin/env bash
# Measures Capstan: prints every figure beside a reference of the same run, with what is required
# and what is aimed at, and compares it with the result that was committed last
# (docs/performance.json).
#
#   scripts/bench.sh                        the whole table: some twelve minutes, and half an hour
#                                           in the lab's virtual machine
#   scripts/bench.sh CASE…                  parts of it; --list says which there are
#   scripts/bench.sh spdk                   beside SPDK, where it is installed: docs/performance.md
#                                           says how
#   scripts/bench.sh nvmet-tcp              NVMe/TCP beside the Linux target, in the lab's virtual
#                                           machine
#   scripts/bench.sh nfs-tcp nfs-rdma       NFS beside the kernel's server, in the lab's virtual
#                                           machine; nfs-counted in instructions
#   scripts/bench.sh soft-roce-counted      what the lab has in instructions of everything that runs
#                                           there: no noise
#   scripts/bench.sh instructions syscalls lines  the deterministic figures; exit status 1 beyond
#                                                 their gates
#   scripts/bench.sh --save                 also puts the results into docs/performance.json and
#                                           .svg
#   scripts/bench.sh --help                 all options, for shorter runs or more of them
#
# One core for the target and one for the load: let the machine be quiet, the run says when it was
# not. Installs what is missing through apt. CAPSTAN_BENCH_PROFILE=dev measures what a plain `cargo
# build` makes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/verbs.sh

command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
command -v cargo >/dev/null || die "there is no cargo: install Rust from https://rustup.rs"
need_packages "a linker for Rust; fio, counters of instructions and system calls" gcc libc6-dev fio valgrind strace util-linux iproute2
choose_verbs
profile=${CAPSTAN_BENCH_PROFILE:-release}
say "building ($profile)"
cargo build --quiet --profile "$profile" -p capstan-target "${CARGO_FEATURES[@]}"
say "measuring"
exec cargo bench --quiet --profile "$profile" -p capstan-tests --bench table "${CARGO_FEATURES[@]}" -- "$@"
