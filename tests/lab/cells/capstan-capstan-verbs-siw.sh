#!/usr/bin/env bash
# Capstan's host on Capstan's target, both with the verbs provider, over siw.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw_shared
use_target capstan verbs
use_host capstan verbs
run_cases "$@"
