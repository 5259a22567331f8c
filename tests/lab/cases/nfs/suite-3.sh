# shellcheck shell=bash
# What programs may expect of files, by version 3: every case of tests/nfs-suite.
mount_export 3
suite 3
unmount_export
