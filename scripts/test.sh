#!/usr/bin/env bash
# Builds Capstan and runs its tests, on a Debian or Ubuntu machine that may have only git, Rust and
# apt.
#
#   scripts/test.sh                       everything
#   scripts/test.sh -- -p capstan-config  arguments after -- go to cargo nextest (or cargo test)
#
# Installs what is missing through apt (with sudo when not root) and says so. CAPSTAN_VERBS=0 builds
# without hardware RDMA.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/verbs.sh

if [ "${1:-}" = -- ]; then
    shift
elif [ $# -gt 0 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
fi
# rustup installs cargo where a new shell finds it, and this may be an old one.
command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
command -v cargo >/dev/null || die "there is no cargo: install Rust from https://rustup.rs"

need_packages "a linker for Rust" gcc libc6-dev
choose_verbs

if cargo nextest --version >/dev/null 2>&1; then
    runner=(nextest run)
    [ -z "${CI:-}" ] || runner+=(--profile ci)
else
    note "no cargo-nextest: cargo test does the same, slower (cargo install cargo-nextest --locked)"
    runner=(test --lib --bins --tests --examples)
fi

if [ $# -eq 0 ]; then
    set -- --workspace
    # nextest leaves the examples of the documentation out.
    say "documentation examples"
    if ! examples=$(cargo test --doc --workspace "${CARGO_FEATURES[@]}" 2>&1); then
        printf '%s\n' "$examples" >&2
        die "a documentation example does not work"
    fi
    note "$(grep -c '^test .* ok$' <<<"$examples" || true) passed"
fi
say "tests: cargo ${runner[*]} ${CARGO_FEATURES[*]} $*"
cargo "${runner[@]}" "${CARGO_FEATURES[@]}" "$@"
say "tests passed"
