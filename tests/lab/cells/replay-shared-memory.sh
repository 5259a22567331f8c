#!/usr/bin/env bash
# The same with both on one machine, which exchange their bytes through shared memory.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
use_target capstan iwarp
use_host capstan iwarp
HOST_ADDRESS=$TARGET_ADDRESS
run_cases "$@"
