#!/usr/bin/env bash
# Capstan's host on Capstan's target over the user-space iwarp provider: what users put on an
# attached volume (LVM, dm-crypt, md, btrfs), and the file systems they keep images on below the
# target. It needs drivers that a machine which runs tests/tests may lack.
# shellcheck source=tests/lab/guest/cell.sh
. "$LAB/cell.sh"
use_link siw
use_target capstan iwarp
use_host capstan iwarp
# Mounts are made in the kernel's namespace of networks, where the host is.
export HOST_IN_NETNS=''
run_cases "$@"
