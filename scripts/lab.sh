#!/usr/bin/env bash
# Interoperation with the Linux kernel's NVMe host and target, in virtual machines: boots Debian's
# kernel under QEMU once per cell of the matrix (host × target × link, tests/lab/cells/), twice
# where the target is Capstan, and runs the cases of tests/lab/cases/ in it.
#
#   scripts/lab.sh                                   the whole matrix, but for nfs-knfsd-…
#   scripts/lab.sh linux-capstan-iwarp               one cell
#   scripts/lab.sh fio-verify                        one case, in every cell that has it
#   scripts/lab.sh linux-capstan-iwarp/fio-verify    one case in one cell
#   scripts/lab.sh --list                            what there is
#
#   --jobs N         so many machines at once (default: one per processor); each takes up to 2 GiB
#                    of memory
#   --again          what failed runs once more, on a fresh boot; that it passed only then is said
#                    in its line and in the sum
#   --within MINUTES no machine is started after that: what it would have run is SKIPPED, and its
#                    line says so
#   --begin-at N     the Nth machine of the list comes first, and those in front of it last: with
#                    --within, others are left out then
#   --rounds N       cases that repeat themselves do so N times, in place of two
#
# Prints a line per case (`PASS cell/case 12 s`, `FAIL cell/case: why`, `SKIPPED cell: why`,
# `SKIPPED cell/case: why`) and the sum; exit status 1 when one failed. Installs and builds what is
# missing; what is large stays in $CAPSTAN_LAB_CACHE (default /var/cache/capstan-lab), and so do the
# logs and kernel messages of what failed. Needs Debian 12 and root.
#
# CAPSTAN_LAB_BIN=FOLDER takes capstan, capstan-target, nfs_suite, examples/conformance_verbs and
# examples/conformance_queue from there and builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/verbs.sh
. scripts/lib/cleanup.sh

CAPSTAN_LAB_CACHE=${CAPSTAN_LAB_CACHE:-/var/cache/capstan-lab}
export CAPSTAN_LAB_CACHE
# Emulation on a busy machine is slow: this is for a guest that hangs. On two idle cores, two at
# once, a boot takes one to three minutes.
BOOT_SECONDS=1800
# Of the NFS cells: `entries`, `programs` and three runs of a suite take 50 minutes, two at once.
NFS_BOOT_SECONDS=4500
# A guest that has not come as far as its cases by then is booted once more: an emulator that was
# stopped for a while as the kernel started has been seen to hang.
UP_SECONDS=240

cells() { for file in tests/lab/cells/*.sh; do basename "$file" .sh; done; }

# The cases of a cell: of each folder whose name the cell's begins with.
cases_of() {
    local folder
    for folder in tests/lab/cases/*/; do
        folder=$(basename "$folder")
        [[ $1- != "$folder"-* ]] || (cd "tests/lab/cases/$folder" && printf '%s\n' *.sh)
    done | sed 's/\.sh$//' | sort
}

# The cases that a cell runs when it is not named, in a line `# By default: NAME…` of its file; all,
# where it has none.
by_default_in() { sed -n 's/^# By default: //p' "tests/lab/cells/$1.sh"; } # by_default_in CELL

# What was asked for in one cell: the names of its cases, or nothing.
asked_of() { # asked_of CELL TEST…
    local cell=$1 name test by_default
    shift
    by_default=$(by_default_in "$cell")
    for name in $(cases_of "$cell"); do
        if [ $# -eq 0 ]; then
            [[ -n $by_default && " $by_default " != *" $name "* ]] || echo "$name"
            continue
        fi
        for test in "$@"; do
            case $test in
                "$cell" | "$name" | "$cell/$name") echo "$name" && break ;;
            esac
        done
    done
}

# The boots of a cell, each with its cases in `asked`. In one, all cases take more than three
# minutes where the target is Capstan, of which most is asked: every other one goes to a second
# boot.
boots_of() { # boots_of CELL TEST…
    local cell=$1 names
    mapfile -t names < <(asked_of "$@")
    if [[ $cell == *-capstan-* ]] && [ ${#names[@]} -gt 12 ]; then
        asked[$cell.1]=$(printf '%s\n' "${names[@]}" | awk 'NR % 2 { printf "%s ", $0 }')
        asked[$cell.2]=$(printf '%s\n' "${names[@]}" | awk 'NR % 2 == 0 { printf "%s ", $0 }')
        boots+=("$cell.1" "$cell.2")
    elif [ ${#names[@]} -gt 0 ]; then
        asked[$cell]=${names[*]}
        boots+=("$cell")
    fi
}

# The cell of a boot.
cell_of() { echo "${1%.[12]}"; } # cell_of BOOT

build() {
    if [ -n "${CAPSTAN_LAB_BIN:-}" ]; then
        bin=$CAPSTAN_LAB_BIN
        return 0
    fi
    command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
    command -v cargo >/dev/null || die "there is no cargo: install Rust from https://rustup.rs"
    need_packages "a linker for Rust" gcc libc6-dev
    choose_verbs
    say "building capstan, capstan-target, nfs_suite and the conformance suites (release)"
    cargo build --quiet --release -p capstan-target -p capstan-cli "${CARGO_FEATURES[@]}"
    cargo build --quiet --release -p capstan-nfs-suite
    if [ ${#CARGO_FEATURES[@]} -eq 0 ]; then
        # At once, so that both are built of the same crates.
        cargo build --quiet --release -p capstan-rdma -p capstan-transport --features capstan-transport/verbs \
            --example conformance_verbs --example conformance_queue
    fi
    bin=build/release
}

# Whether capstan was built without hardware RDMA: it says so before it connects, so the address
# does not matter.
is_without_verbs() {
    local said
    said=$("$stripped/capstan" discover -a 127.0.0.1 -q nqn.2026-11.org.example:lab -I 00000000-1111-2222-3333-444444444444 \
        --provider verbs 2>&1 || true)
    grep -q 'built without verbs' <<<"$said"
}

# Whether capstan-target serves no exports to NFS clients: its check refuses their key, or says so.
serves_no_exports() {
    local said
    printf '[nfs]\naddresses = ["127.0.0.1"]\n[[export]]\npath = "/tmp"\nclients = ["192.0.2.1"]\n' >"$stripped/export.toml"
    said=$("$stripped/capstan-target" check --config "$stripped/export.toml" 2>&1 || true)
    grep -qE 'export: there is no such key|serves no NFS yet' <<<"$said"
}

# Runs boots, `jobs` at once, and shows their results as they come. What is to run in each is in
# `asked`.
run_boots() { # run_boots BOOT…
    local boot
    local -A process=() shown=() began=() starts=()
    while [ $# -gt 0 ] || [ ${#process[@]} -gt 0 ]; do
        while [ $# -gt 0 ] && [ ${#process[@]} -lt "$jobs" ] && ! is_late "$within_minutes"; do
            boot=$1 shown[$1]=0 began[$1]=$SECONDS starts[$1]=1
            start "$boot"
            shift
        done
        sleep 0.5
        for boot in "${!process[@]}"; do
            show "$boot"
            if [ "${starts[$boot]}" = 1 ] && [ $((SECONDS - began[$boot])) -ge $UP_SECONDS ] && [ ! -e "$(out_of "$boot")/plan" ]; then
                note "$boot: its machine is not up after $UP_SECONDS s and boots once more"
                stop "${process[$boot]}" 10
                starts[$boot]=2
                start "$boot"
            fi
            kill -0 "${process[$boot]}" 2>/dev/null && continue
            end "$boot" "${process[$boot]}"
            show "$boot"
            ! grep -q '^FAIL' "$(out_of "$boot")/results" || note "logs and kernel messages: $(out_of "$boot")"
            note "$boot: $((SECONDS - began[$boot])) s, $(cat "$(out_of "$boot")/processor-seconds" 2>/dev/null) s of processors' time"
            unset "process[$boot]"
        done
        if is_late "$within_minutes"; then
            for boot in "$@"; do
                shown[$boot]=0
                mkdir -p "$(out_of "$boot")"
                : >"$(out_of "$boot")/results"
                account_for SKIPPED "$boot" "the lab had $within_minutes minutes and they were over"
                show "$boot"
            done
            set --
        fi
    done
}

is_late() { [ -n "$1" ] && [ $SECONDS -ge $(($1 * 60)) ]; } # is_late MINUTES

out_of() { echo "$CAPSTAN_LAB_CACHE/matrix/$1"; } # out_of BOOT

start() { # start BOOT
    local out seconds=$BOOT_SECONDS
    [[ $1 != nfs-* ]] || seconds=$NFS_BOOT_SECONDS
    out=$(out_of "$1")
    rm -rf "$out"
    mkdir -p "$out"
    # shellcheck disable=SC2086 # names of cases
    tests/lab/boot.sh -t "$seconds" -o "$out" -f tests/lab/cases -f systemd -f tests/lab/decode_iwarp.py -f tests/lab/decode_roce.py \
        -f tests/lab/decode_tcp.py -f tests/lab/ladders.py \
        "${programs[@]}" \
        "tests/lab/cells/$(cell_of "$1").sh" ${asked[$1]} >"$out/boot.log" 2>&1 &
    process[$1]=$!
    booting+=("$!")
}

# Accounts for the cases that have no result.
end() { # end BOOT PID
    local out why status=0
    out=$(out_of "$1")
    wait "$2" || status=$?
    why="the guest ended (status $status); see $out/console.log"
    [ ! -r "$out/ended" ] || why=$(cat "$out/ended")
    account_for FAIL "$1" "$why"
}

account_for() { # account_for FAIL|SKIPPED BOOT WHY
    local cell name results
    cell=$(cell_of "$2")
    results=$(out_of "$2")/results
    for name in ${asked[$2]} nothing-left; do
        grep -qE "^[A-Z]+ $cell/${name}[: ]" "$results" 2>/dev/null || echo "$1 $cell/$name: not run, because $3" >>"$results"
    done
}

# The lines of a boot's results that were not shown yet.
show() { # show BOOT
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
    local boot names first
    local -a failed=()
    # These are few: half of the time again.
    within_minutes=${within_minutes:+$((within_minutes * 3 / 2))}
    if is_late "$within_minutes"; then return 0; fi
    for boot in "${boots[@]}"; do
        grep -q '^FAIL' "$(out_of "$boot")/results" || continue
        failed+=("$boot")
        names=$(sed -n 's,^FAIL [^/]*/\([^: ]*\):.*,\1,p' "$(out_of "$boot")/results" | grep -vx nothing-left | tr '\n' ' ' || true)
        [ -z "$names" ] || asked[$boot]=$names
        first=$(out_of "$boot").first
        rm -rf "$first"
        mv "$(out_of "$boot")" "$first"
        note "what the first run left: $first"
    done
    [ ${#failed[@]} -gt 0 ] || return 0
    say "once more, what failed"
    run_boots "${failed[@]}"
    for boot in "${failed[@]}"; do
        first=$(out_of "$boot").first
        # The first results without what ran again, and those.
        awk 'function name(word) { sub(/:$/, "", word); return word }
            NR == FNR { second[name($2)] = $0; next }
            !(name($2) in second) { print; next }
            $1 == "PASS" && second[name($2)] ~ /^PASS/ { print }
            $1 != "PASS" || second[name($2)] !~ /^PASS/ {
                line = second[name($2)]
                if (line ~ /^SKIPPED/) line = $0
                print (line ~ /^PASS/ ? line " AT THE SECOND RUN; the first: " substr($0, index($0, ": ") + 2) : line)
            }' "$(out_of "$boot")/results" "$first/results" >"$first/merged"
        mv "$first/merged" "$(out_of "$boot")/results"
        grep 'AT THE SECOND RUN' "$(out_of "$boot")/results" || true
    done
}

# Cells that cannot run, by their names.
leave_out() { # leave_out EXTENDED_REGULAR_EXPRESSION WHY
    local boot
    [ ${#boots[@]} -gt 0 ] || return 0
    for boot in "${boots[@]}"; do
        [[ ! $boot =~ $1 ]] || echo "SKIPPED $(cell_of "$boot"): $2"
    done | uniq | tee -a "$results"
    mapfile -t boots < <(printf '%s\n' "${boots[@]}" | grep -vE -- "$1")
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

    jobs=$(nproc) again='' within_minutes='' rounds='' begin_at=0 tests=()
    while [ $# -gt 0 ]; do
        case $1 in
            --jobs) jobs=${2:?"--jobs is followed by a number"} && shift ;;
            --again) again=yes ;;
            --within) within_minutes=${2:?"--within is followed by minutes"} && shift ;;
            --begin-at) begin_at=${2:?"--begin-at is followed by a number"} && shift ;;
            --rounds) rounds=${2:?"--rounds is followed by a number"} && shift ;;
            -*) die "$1 is no option of this: scripts/lab.sh --help" ;;
            *) tests+=("$1") ;;
        esac
        shift
    done
    boots=()
    declare -gA asked=()
    for cell in $(cells); do
        # What ours is compared with says nothing new of ours.
        if [[ $cell == nfs-knfsd-* ]] && [ ${#tests[@]} -eq 0 ]; then continue; fi
        boots_of "$cell" "${tests[@]}"
    done
    # Those that take longest first, so that none is alone for long at the end.
    mapfile -t boots < <(printf '%s\n' "${boots[@]}" | awk '{ print /\.1$/ ? 3 : /\.2$/ ? 2 : 1, $0 }' | sort -s -k 1,1n | cut -d ' ' -f 2-)
    begin_at=$((begin_at % ${#boots[@]}))
    boots=("${boots[@]:begin_at}" "${boots[@]:0:begin_at}")
    [ -n "${boots[0]}" ] || die "no cell or case is called ${tests[*]}: scripts/lab.sh --list"

    say "the lab"
    tests/lab/setup.sh
    build
    stripped=$(mktemp -d)
    undo rm -rf "$stripped"
    # The guest reads them over 9p, without their debugging information.
    programs=()
    for program in capstan capstan-target nfs_suite examples/conformance_verbs examples/conformance_queue; do
        if [ ! -e "$bin/$program" ] && [[ $program == examples/* ]]; then
            # There are no conformance suites of a provider that was left out.
            is_without_verbs || die "no $bin/$program: cargo build --workspace --bins --examples"
            continue
        fi
        strip -o "$stripped/$(basename "$program")" "$bin/$program"
        programs+=(-f "$stripped/$(basename "$program")")
    done
    if [ -n "$rounds" ]; then
        # As many times as there are twice the usual rounds, as each case has (guest/cell.sh).
        BOOT_SECONDS=$((BOOT_SECONDS * (rounds + 1) / 2))
        NFS_BOOT_SECONDS=$((NFS_BOOT_SECONDS * (rounds + 1) / 2))
        echo "$rounds" >"$stripped/rounds"
        programs+=(-f "$stripped/rounds")
    fi
    booting=()
    undo stop_boots
    results=$stripped/results
    : >"$results"
    ! is_without_verbs || leave_out '-verbs-|^nfs-capstan-(siw|rxe)' "capstan was built without verbs"
    ! serves_no_exports || leave_out '^nfs-capstan-' "capstan-target serves no NFS yet"
    # What earlier runs left of these cells.
    for boot in "${boots[@]}"; do rm -rf "$CAPSTAN_LAB_CACHE/matrix/$(cell_of "$boot")"{,.[12]}{,.first}; done
    say "the matrix, $jobs at once"
    run_boots "${boots[@]}"
    [ -z "$again" ] || run_again
    for boot in "${boots[@]}"; do cat "$(out_of "$boot")/results"; done >>"$results"
    sum="$(count PASS) passed, $(count FAIL) failed, $(count SKIPPED) skipped"
    second=$(grep -c 'AT THE SECOND RUN' "$results" || true)
    [ "$second" = 0 ] || sum+=" ($second PASSED ONLY AT THE SECOND RUN)"
    say "$sum, in $((SECONDS / 60)) min $((SECONDS % 60)) s"
    [ "$(count FAIL)" = 0 ]
}

# Read as a whole before it runs, so that it can be edited meanwhile.
main "$@"
exit
