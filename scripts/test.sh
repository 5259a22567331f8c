#!/usr/bin/env bash
# Builds Capstan and runs its tests, on a Debian or Ubuntu machine that may have only git, Rust and
# apt.
#
#   scripts/test.sh                       everything
#   scripts/test.sh -- -p capstan-config  arguments after -- go to cargo nextest (or cargo test)
#
# Installs what is missing through apt (with sudo when not root) and says so. CAPSTAN_VERBS=0 builds
# without hardware RDMA. Without arguments, tests named root_… run only as root, and where loop
# devices and mounts can be made; it says so where they do not.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/verbs.sh
. scripts/lib/cleanup.sh

if [ "${1:-}" = -- ]; then
    shift
elif [ $# -gt 0 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
fi
# rustup installs cargo where a new shell finds it, and this may be an old one.
command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
command -v cargo >/dev/null || die "there is no cargo: install Rust from https://rustup.rs"

need_packages "a linker for Rust; ext4, XFS, mounts and fio for the tests" \
    gcc libc6-dev e2fsprogs xfsprogs mount util-linux fio
choose_verbs

# What the tests print, for the list of those that were skipped.
work=$(mktemp -d)
undo rm -rf "$work"

if cargo nextest --version >/dev/null 2>&1; then
    profile=default
    [ -z "${CI:-}" ] || profile=ci
    runner=(nextest run --profile "$profile")
    report=build/nextest/$profile/junit.xml
    rm -f "$report"
else
    note "no cargo-nextest: cargo test does the same, slower (cargo install cargo-nextest --locked)"
    runner=(test --lib --bins --tests --examples)
    report=$work/printed
fi

# Tests whose name begins with root_ make loop devices and mounts, and fail where they cannot.
without_root=
if [ "$(id -u)" != 0 ]; then
    without_root="this is not root"
elif ! losetup --find >/dev/null 2>&1; then
    without_root="there are no loop devices here"
elif ! unshare --mount true 2>/dev/null; then
    without_root="mounts of one's own are not allowed here"
fi

# The tests of whole programs run those that were built last.
say "building"
cargo build --workspace --bins "${CARGO_FEATURES[@]}"
if [ $# -eq 0 ]; then
    set -- --workspace
    cargo "${runner[@]}" --no-run "${CARGO_FEATURES[@]}" "$@"
    # nextest leaves the examples of the documentation out.
    say "documentation examples"
    if ! examples=$(cargo test --doc --workspace "${CARGO_FEATURES[@]}" 2>&1); then
        printf '%s\n' "$examples" >&2
        die "a documentation example does not work"
    fi
    note "$(grep -c '^test .* ok$' <<<"$examples" || true) passed"
    if [ "${runner[0]}" = test ]; then
        # All that fails in one run, and what tests that pass say about themselves.
        set -- --no-fail-fast "$@" -- --show-output ${without_root:+--skip root_}
    elif [ -n "$without_root" ]; then
        set -- "$@" -E 'not test(/(^|::)root_/)'
    fi
else
    without_root=
fi
say "tests: cargo ${runner[*]} ${CARGO_FEATURES[*]} $*"
if [ "${runner[0]}" = test ]; then
    status=0
    cargo "${runner[@]}" "${CARGO_FEATURES[@]}" "$@" 2>&1 | tee "$report" || status=$?
    if [ $status != 0 ]; then
        say "what failed"
        grep -E '^test .*\.\.\. FAILED|^error: test failed' "$report" >&2 || true
        die "tests failed: each says why above"
    fi
    note "$(awk '/^test result: ok/ { n += $4 } END { print n + 0 }' "$report") tests passed"
else
    cargo "${runner[@]}" "${CARGO_FEATURES[@]}" "$@"
fi
# nextest keeps what tests that passed have printed to itself, and cargo test drowns it.
{ grep -o 'SKIPPED .*' "$report" || true; } | sort -u | sed 's/^/    /'
if [ -n "$without_root" ]; then
    note "SKIPPED the root_ tests of real devices and mounts: $without_root"
fi
say "tests passed"
