#!/usr/bin/env bash
# Capstan's host on Capstan's target over NVMe/TCP, where the system allows little memory: sockets
# count in a control group's memory.max, and there is no registered memory of an RDMA provider below
# `ulimit -l`. Cores, threads, systemd's unit and users do not meet the wire: those are cases of
# limits-iwarp alone.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
LISTENER_OPTIONS='transports = ["tcp"]'
use_target capstan iwarp
use_host capstan tcp
# The host is in the namespace of networks that the guest has from its start.
export HOST_IN_NETNS=''
run_cases "$@"
