# shellcheck shell=bash
# What programs may expect of files, by version 4.1: every case of tests/nfs-suite.
mount_export 4.1
suite 4.1
unmount_export
