# shellcheck shell=bash
# What programs may expect of files, by version 4.2: every case of tests/nfs-suite.
mount_export 4.2
suite 4.2
unmount_export
