# shellcheck shell=bash
# What a script says, and doing things as root. Sourced.

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
    printf '\033[1;31mFAIL\033[0m %s\n' "$*" >&2
    exit 1
}

# Runs a command as root, through sudo where that is needed.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "'$*' needs root and there is no sudo: run it as root, then run this script again"
    fi
}
