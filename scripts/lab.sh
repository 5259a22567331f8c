#!/usr/bin/env bash
# Interoperation with the Linux kernel's NVMe host and target, in virtual machines: boots Debian's kernel under QEMU
# once per cell of the matrix (host × target × link, tests/lab/cells/) and runs the cases of tests/lab/cases/ in it.
#
#   scripts/lab.sh                                   the whole matrix
#   scripts/lab.sh linux-capstan-iwarp               one cell
#   scripts/lab.sh fio-verify                        one case, in every cell that has it
#   scripts/lab.sh linux-capstan-iwarp/fio-verify    one case in one cell
#   scripts/lab.sh --list                            what there is
#
#   --jobs N         so many machines at once (default: one per processor); each takes up to 2 GiB of memory
#   --again          what failed runs once more, on a fresh boot; that it passed only then is said in its line and in the sum
#   --within MINUTES what has not run by then has failed
#
# Prints a line per case (`PASS cell/case 12 s`, `FAIL cell/case: why`, `SKIPPED cell: why`) and the sum; exit status
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
# Emulation on a busy machine is slow: this is for a guest that hangs. On two idle cores, two at once, a boot takes two to three and a half minutes.
BOOT_SECONDS=1800
# A guest that has not come as far as its cases by then is booted once more: an emulator that was stopped for a while as the
# kernel started has been seen to hang.
UP_SECONDS=240

# Those that take longest first.
cells() { for file in tests/lab/cells/*.sh; do basename "$file" .sh; done | sort -r; }

# The cases of a cell: of each folder whose name the cell's begins with.
cases_of() {
    local folder
    for folder in tests/lab/cases/*/; do
        folder=$(basename "$folder")
        [[ $1- != "$folder"-* ]] || (cd "tests/lab/cases/$folder" && printf '%s\n' *.sh)
    done | sed 's/\.sh$//' | sort
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

# Whether capstan was built without hardware RDMA; asked of nobody in particular, it says so before anything else.
is_without_verbs() {
    "$stripped/capstan" discover -a 127.0.0.1 -q nqn.2026-11.org.example:lab -I 00000000-1111-2222-3333-444444444444 \
        --provider verbs 2>&1 | grep -q 'built without verbs'
}

# Boots cells, `jobs` at once, and shows their results as they come. What is to run in each is in `asked`.
run_cells() { # run_cells CELL…
    local cell
    local -A boot=() shown=() began=() boots=()
    while [ $# -gt 0 ] || [ ${#boot[@]} -gt 0 ]; do
        while [ $# -gt 0 ] && [ ${#boot[@]} -lt "$jobs" ] && ! is_late; do
            cell=$1 shown[$1]=0 began[$1]=$SECONDS boots[$1]=1
            start_cell "$cell"
            boot[$cell]=$!
            booting+=("$!")
            shift
        done
        sleep 0.5
        for cell in "${!boot[@]}"; do
            if is_late; then stop "${boot[$cell]}" 10; fi
            show "$cell"
            if [ "${boots[$cell]}" = 1 ] && [ $((SECONDS - began[$cell])) -ge $UP_SECONDS ] && [ ! -e "$(out_of "$cell")/plan" ]; then
                note "$cell: its machine is not up after $UP_SECONDS s and boots once more"
                stop "${boot[$cell]}" 10
                boots[$cell]=2
                start_cell "$cell"
                boot[$cell]=$!
                booting+=("$!")
            fi
            kill -0 "${boot[$cell]}" 2>/dev/null && continue
            end_cell "$cell" "${boot[$cell]}"
            show "$cell"
            ! grep -q '^FAIL' "$(out_of "$cell")/results" || note "logs and kernel messages: $(out_of "$cell")"
            note "$cell: $((SECONDS - began[$cell])) s, $(cat "$(out_of "$cell")/processor-seconds" 2>/dev/null) s of processors' time"
            unset "boot[$cell]"
        done
        if [ $# -gt 0 ] && is_late; then
            for cell in "$@"; do
                shown[$cell]=0
                mkdir -p "$(out_of "$cell")"
                : >"$(out_of "$cell")/results"
                account_for "$cell" "the $within_minutes minutes it was given were over"
                show "$cell"
            done
            return 0
        fi
    done
}

is_late() { [ -n "$within_minutes" ] && [ $SECONDS -ge $((within_minutes * 60)) ]; }

out_of() { echo "$CAPSTAN_LAB_CACHE/matrix/$1"; } # out_of CELL

start_cell() { # start_cell CELL: its boot is $!
    local out
    out=$(out_of "$1")
    rm -rf "$out"
    mkdir -p "$out"
    # shellcheck disable=SC2086 # names of cases
    tests/lab/boot.sh -t "$BOOT_SECONDS" -o "$out" -f tests/lab/cases -f tests/lab/decode_iwarp.py -f tests/lab/decode_roce.py \
        -f "$stripped/capstan" -f "$stripped/capstan-target" \
        "tests/lab/cells/$1.sh" ${asked[$1]} >"$out/boot.log" 2>&1 &
}

# Accounts for the cases that have no result.
end_cell() { # end_cell CELL PID
    local out why status=0
    out=$(out_of "$1")
    wait "$2" || status=$?
    why="the guest ended (status $status); see $out/console.log"
    if is_late; then why="the $within_minutes minutes it was given were over"; fi
    [ ! -r "$out/ended" ] || why=$(cat "$out/ended")
    account_for "$1" "$why"
}

account_for() { # account_for CELL WHY
    local name results
    results=$(out_of "$1")/results
    for name in ${asked[$1]} nothing-left; do
        grep -qE "^[A-Z]+ $1/${name}[: ]" "$results" 2>/dev/null || echo "FAIL $1/$name: not run, because $2" >>"$results"
    done
}

# The lines of a cell's results that were not shown yet.
show() { # show CELL
    local lines results
    results=$(out_of "$1")/results
    [ -r "$results" ] || return 0
    lines=$(wc -l <"$results")
    [ "$lines" -gt "${shown[$1]}" ] || return 0
    sed -n "$((shown[$1] + 1)),${lines}p" "$results"
    shown[$1]=$lines
}

# Runs what failed once more. Where only the look at the end did, that is everything.
run_again() {
    local cell failed names first
    local -a cells=()
    if is_late; then return 0; fi
    for cell in "${chosen[@]}"; do
        failed=$(sed -n "s,^FAIL $cell/\([^: ]*\):.*,\1,p" "$results")
        [ -n "$failed" ] || continue
        cells+=("$cell")
        names=$(grep -vx nothing-left <<<"$failed" | tr '\n' ' ' || true)
        [ -z "$names" ] || asked[$cell]=$names
        first=$(out_of "$cell").first
        rm -rf "$first"
        mv "$(out_of "$cell")" "$first"
        note "what the first run left: $first"
    done
    [ ${#cells[@]} -gt 0 ] || return 0
    say "once more, what failed"
    run_cells "${cells[@]}"
    for cell in "${cells[@]}"; do
        # The first results without what ran again, and those.
        awk -v cell="$cell" 'function name(word) { sub(/:$/, "", word); return word }
            NR == FNR { second[name($2)] = $0; next }
            !(name($2) in second) { print; next }
            $1 == "PASS" && second[name($2)] ~ /^PASS/ { print }
            $1 != "PASS" || second[name($2)] !~ /^PASS/ {
                line = second[name($2)]
                print (line ~ /^PASS/ ? line " AT THE SECOND RUN; the first: " substr($0, index($0, ": ") + 2) : line)
            }' "$(out_of "$cell")/results" "$results" >"$results.merged"
        mv "$results.merged" "$results"
    done
    grep 'AT THE SECOND RUN' "$results" || true
}

count() { grep -c "^$1 " "$results" || true; }

# shellcheck disable=SC2317 # by `undo`
stop_boots() {
    local pid
    for pid in "${booting[@]}"; do stop "$pid" 10; done
}

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

    jobs=$(nproc) again='' within_minutes='' tests=()
    while [ $# -gt 0 ]; do
        case $1 in
            --jobs) jobs=${2:?"--jobs is followed by a number"} && shift ;;
            --again) again=yes ;;
            --within) within_minutes=${2:?"--within is followed by minutes"} && shift ;;
            -*) die "$1 is no option of this: scripts/lab.sh --help" ;;
            *) tests+=("$1") ;;
        esac
        shift
    done
    chosen=()
    declare -gA asked=()
    for cell in $(cells); do
        asked[$cell]=$(asked_of "$cell" "${tests[@]}" | tr '\n' ' ')
        [ -z "${asked[$cell]}" ] || chosen+=("$cell")
    done
    [ ${#chosen[@]} -gt 0 ] || die "no cell or case is called ${tests[*]}: scripts/lab.sh --list"

    say "the lab"
    tests/lab/setup.sh
    build
    stripped=$(mktemp -d)
    undo rm -rf "$stripped"
    for program in capstan capstan-target; do
        # The guest reads them over 9p, without their debugging information.
        strip -o "$stripped/$program" "$bin/$program"
    done
    booting=()
    undo stop_boots
    results=$stripped/results
    if is_without_verbs; then
        for cell in "${chosen[@]}"; do
            if [[ $cell == *-verbs-* ]]; then echo "SKIPPED $cell: capstan was built without verbs"; fi
        done | tee "$results"
        mapfile -t chosen < <(printf '%s\n' "${chosen[@]}" | sed '/-verbs-/d')
    fi
    say "the matrix, $jobs at once"
    run_cells "${chosen[@]}"
    for cell in "${chosen[@]}"; do cat "$(out_of "$cell")/results"; done >>"$results"
    [ -z "$again" ] || run_again
    sum="$(count PASS) passed, $(count FAIL) failed, $(count SKIPPED) skipped"
    second=$(grep -c 'AT THE SECOND RUN' "$results" || true)
    [ "$second" = 0 ] || sum+=" ($second PASSED ONLY AT THE SECOND RUN)"
    say "$sum, in $((SECONDS / 60)) min $((SECONDS % 60)) s"
    [ "$(count FAIL)" = 0 ]
}

# Read as a whole before it runs, so that it can be edited meanwhile.
main "$@"
exit
