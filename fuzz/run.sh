#!/usr/bin/env bash
# Runs fuzz targets, each for so many executions, and says how many there were.
#
#   fuzz/run.sh [RUNS [TARGET...]]      RUNS: 1000000 unless told; TARGET: all unless told
#
# Needs the nightly toolchain, a C++ compiler and `cargo install cargo-fuzz --locked`. Finds start
# from seeds/TARGET; what is new goes to build/corpus/TARGET, a failing input to artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")"
runs=${1:-1000000}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' Cargo.toml)
fi
for target in "${targets[@]}"; do
  mkdir -p "build/corpus/$target"
  # AddressSanitizer where there is unsafe code; elsewhere it finds nothing and takes most of the
  # time. Sequences of operations are kept short: what needs a long one is rare, what is long is
  # slow.
  case $target in
    iwarp_receive | same_host) sanitizer=address max_len=512 ;;
    controller_ops | host) sanitizer=none max_len=1024 ;;
    # A transfer of several PDUs of 4 KiB.
    tcp_*) sanitizer=none max_len=16384 ;;
    *) sanitizer=none max_len=8192 ;;
  esac
  ASAN_OPTIONS=quarantine_size_mb=16 cargo +nightly fuzz run --fuzz-dir . -s "$sanitizer" \
    --target-dir "build/$sanitizer" "$target" "build/corpus/$target" "seeds/$target" -- \
    -runs="$runs" -max_len="$max_len" -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 2>&1 |
    tee "build/$target.log" | grep -E '^==|panicked|SUMMARY|Test unit written' || true
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "build/$target.log")
  if [ -z "$count" ] || grep -q '^SUMMARY:' "build/$target.log"; then
    echo "$target: FAILED, see fuzz/build/$target.log"
    exit 1
  fi
  echo "$target: $count executions, no finding"
done
