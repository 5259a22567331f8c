# shellcheck shell=bash
# Shared by the lab's scripts on the machine (not in the guest): where the cache is and which kernel
# it holds. Sourced, never run.

# Everything large or fetched lives here, outside the source tree.
CAPSTAN_LAB_CACHE=${CAPSTAN_LAB_CACHE:-/var/cache/capstan-lab}
export CAPSTAN_LAB_CACHE

say() { printf 'lab: %s\n' "$*"; }

die() {
    printf 'lab: %s\n' "$*" >&2
    exit 1
}

# Runs a command as root, with sudo when we are not.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# The kernel release the lab boots, for example 6.12.117+deb12-amd64; setup.sh writes it.
lab_kernel_release() {
    [ -r "$CAPSTAN_LAB_CACHE/kernel-release" ] ||
        die "$CAPSTAN_LAB_CACHE/kernel-release is missing: run tests/lab/setup.sh first"
    cat "$CAPSTAN_LAB_CACHE/kernel-release"
}
