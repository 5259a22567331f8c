#!/usr/bin/env bash
# Interoperation with the Linux kernel's NVMe host and target, in a virtual machine: boots Debian's kernel under QEMU
# once per cell of the matrix (host × target × link, tests/lab/cells/) and runs the cases of tests/lab/cases/ in it.
#
#   scripts/lab.sh                                   the whole matrix
#   scripts/lab.sh linux-capstan-iwarp               one cell
#   scripts/lab.sh fio-verify                        one case, in every cell that has it
#   scripts/lab.sh linux-capstan-iwarp/fio-verify    one case in one cell
#   scripts/lab.sh --list                            what there is
#
# Prints a line per case (`PASS cell/case 12 s`, `FAIL cell/case: why`, `SKIPPED cell/case: why`) and the sum; exit status
# 1 when one failed. Installs and builds what is missing; what is large stays in $CAPSTAN_LAB_CACHE (default
# /var/cache/capstan-lab), and so do the logs and kernel messages of what failed. Needs Debian 12 and root.
#
# CAPSTAN_LAB_BIN=FOLDER takes capstan and capstan-target from there and builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/verbs.sh
. scripts/lib/cleanup.sh

CAPSTAN_LAB_CACHE=${CAPSTAN_LAB_CACHE:-/var/cache/capstan-lab}
export CAPSTAN_LAB_CACHE
# Emulation on a busy machine is slow: this is for a guest that hangs. A boot should take less than three minutes.
BOOT_SECONDS=900

cells() { for file in tests/lab/cells/*.sh; do basename "$file" .sh; done; }

# The cases of a cell: those of its host.
cases_of() {
    local host file
    host=$(sed -n 's/^use_host \([a-z]*\).*/\1/p' "tests/lab/cells/$1.sh")
    for file in "tests/lab/cases/$host"/*.sh; do basename "$file" .sh; done
}

# What was asked for in one cell: the names of its cases, or nothing.
asked_of() { # asked_of CELL TEST…
    local cell=$1 name test
    shift
    for name in $(cases_of "$cell"); do
        [ $# -gt 0 ] || { echo "$name"; continue; }
        for test in "$@"; do
            case $test in
                "$cell" | "$name" | "$cell/$name") echo "$name" && break ;;
            esac
        done
    done
}

build() {
    if [ -n "${CAPSTAN_LAB_BIN:-}" ]; then
        bin=$CAPSTAN_LAB_BIN
        return 0
    fi
    command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
    command -v cargo >/dev/null || die "there is no cargo: install Rust from https://rustup.rs"
    need_packages "a linker for Rust" gcc libc6-dev
    choose_verbs
    say "building capstan and capstan-target (release)"
    cargo build --quiet --release -p capstan-target -p capstan-initiator "${CARGO_FEATURES[@]}"
    bin=build/release
}

# Boots a cell, shows its results as they come, and accounts for the cases that have none.
run_cell() { # run_cell CELL CASE…
    local cell=$1 began=$SECONDS out=$CAPSTAN_LAB_CACHE/matrix/$1 shown=0 name status=0 why
    shift
    rm -rf "$out"
    mkdir -p "$out"
    tests/lab/boot.sh -t "$BOOT_SECONDS" -o "$out" -f tests/lab/cases -f tests/lab/decode_iwarp.py -f tests/lab/decode_roce.py \
        -f "$stripped/capstan" -f "$stripped/capstan-target" \
        "tests/lab/cells/$cell.sh" "$@" >"$out/boot.log" 2>&1 &
    boot=$!
    while kill -0 "$boot" 2>/dev/null; do
        sleep 0.5
        show
    done
    wait "$boot" || status=$?
    boot=''
    show
    why="the guest ended (status $status); see $out/console.log"
    [ ! -r "$out/ended" ] || why=$(cat "$out/ended")
    if ! grep -q "^SKIPPED $cell:" "$out/results" 2>/dev/null; then
        for name in "$@" nothing-left; do
            grep -qE "^[A-Z]+ ${cell}/${name}[: ]" "$out/results" 2>/dev/null && continue
            echo "FAIL $cell/$name: not run, because $why" >>"$out/results"
        done
        show
    fi
    cat "$out/results" >>"$results"
    if grep -q '^FAIL' "$out/results"; then
        note "logs and kernel messages: $out"
    fi
    note "$cell: $((SECONDS - began)) s"
}

# The lines of results that were not shown yet.
show() {
    local lines
    [ -r "$out/results" ] || return 0
    lines=$(wc -l <"$out/results")
    [ "$lines" -gt "$shown" ] || return 0
    sed -n "$((shown + 1)),${lines}p" "$out/results"
    shown=$lines
}

count() { grep -c "^$1 " "$results" || true; }

# shellcheck disable=SC2317 # by `undo`
stop_boot() { [ -z "$boot" ] || stop "$boot" 10; }

main() {
    case ${1:-} in
        -h | --help)
            sed -n '2,/^set /s/^# \{0,1\}//p' scripts/lab.sh
            exit 0
            ;;
        --list)
            for cell in $(cells); do
                for name in $(cases_of "$cell"); do echo "$cell/$name"; done
            done
            exit 0
            ;;
    esac

    chosen=()
    for cell in $(cells); do
        [ -z "$(asked_of "$cell" "$@")" ] || chosen+=("$cell")
    done
    [ ${#chosen[@]} -gt 0 ] || die "no cell or case is called $*: scripts/lab.sh --list"

    say "the lab"
    tests/lab/setup.sh
    build
    stripped=$(mktemp -d)
    undo rm -rf "$stripped"
    for program in capstan capstan-target; do
        # The guest reads them over 9p, without their debugging information.
        strip -o "$stripped/$program" "$bin/$program"
    done
    boot=''
    undo stop_boot
    results=$stripped/results
    : >"$results"
    say "the matrix"
    for cell in "${chosen[@]}"; do
        mapfile -t asked < <(asked_of "$cell" "$@")
        run_cell "$cell" "${asked[@]}"
    done
    say "$(count PASS) passed, $(count FAIL) failed, $(count SKIPPED) skipped, in $((SECONDS / 60)) min $((SECONDS % 60)) s"
    [ "$(count FAIL)" = 0 ]
}

# Read as a whole before it runs, so that it can be edited meanwhile.
main "$@"
exit
