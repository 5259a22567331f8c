#!/usr/bin/env bash
# Capstan's host on Capstan's target over the user-space iwarp provider, where the system allows
# little: control groups, limits of a process, a unit of systemd's, other users. The machine that
# runs tests/tests may have no such controllers, and its settings are its own.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
use_target capstan iwarp
use_host capstan iwarp
# The host is in the namespace of networks that the guest has from its start.
export HOST_IN_NETNS=''
run_cases "$@"
