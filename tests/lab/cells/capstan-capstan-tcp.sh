#!/usr/bin/env bash
# Capstan's host on Capstan's target over NVMe/TCP, between two network namespaces: RDMA has no
# part in it.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
LISTENER_OPTIONS='transports = ["tcp"]'
use_target capstan iwarp
use_host capstan tcp
# The host is in the kernel's namespace.
export HOST_IN_NETNS=''
run_cases "$@"
