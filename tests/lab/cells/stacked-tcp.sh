#!/usr/bin/env bash
# Capstan's host on Capstan's target over NVMe/TCP, below what users put on an attached volume: the
# cases in which connections are lost and made again under it (md, the kernel's NBD driver, a clock
# that is set). What lies on a disk that stays, and what images lie on below the target, does not
# meet the wire: those are cases of stacked-iwarp alone.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
LISTENER_OPTIONS='transports = ["tcp"]'
use_target capstan iwarp
use_host capstan tcp
# Mounts are made in the kernel's namespace of networks, where the host is.
export HOST_IN_NETNS=''
run_cases "$@"
