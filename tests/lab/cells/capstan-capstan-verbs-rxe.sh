#!/usr/bin/env bash
# Capstan's host on Capstan's target, both with the verbs provider, over Soft-RoCE.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link rxe
use_target capstan verbs
use_host capstan verbs
run_cases "$@"
