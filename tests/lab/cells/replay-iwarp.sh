#!/usr/bin/env bash
# Capstan's host on Capstan's target, both with the user-space iwarp provider, over TCP between two
# network namespaces: what an old copy of a write could do. Everything else of this pair is tried
# without a machine of its own, by tests/tests.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
use_target capstan iwarp
use_host capstan iwarp
# The host is in the kernel's namespace.
export HOST_IN_NETNS=''
run_cases "$@"
