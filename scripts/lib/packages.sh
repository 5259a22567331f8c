# shellcheck shell=bash
# Debian and Ubuntu packages. Sourced after say.sh.

# Debian's users do not have the folders of mkfs.ext4, losetup and e2fsck in their PATH.
PATH=$PATH:/usr/sbin:/sbin

has_package() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Whether apt could install a package, as far as its lists know now.
offers_package() {
    local candidate
    candidate=$(apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ { print $2 }')
    [ -n "$candidate" ] && [ "$candidate" != '(none)' ]
}

# Once per run: a list that is fresh does not become fresher.
update_lists() {
    [ -z "${LISTS_UPDATED:-}" ] || return 0
    LISTS_UPDATED=1
    note "apt-get update (the package lists are missing or old)"
    as_root apt-get update -qq
}

install_now() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" \
        >"$APT_LOG" 2>&1
}

# need_packages REASON PACKAGE…: installs those that are missing.
need_packages() {
    local reason=$1 package
    shift
    local missing=()
    if ! command -v dpkg-query >/dev/null; then
        note "not a Debian or Ubuntu machine: expecting what the packages $* hold to be there ($reason)"
        return 0
    fi
    for package in "$@"; do
        has_package "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]} ($reason)"
    APT_LOG=$(mktemp)
    for package in "${missing[@]}"; do
        offers_package "$package" || { update_lists; break; }
    done
    # Lists that are days old name versions that the mirror no longer has: once more with new ones.
    if ! install_now "${missing[@]}"; then
        update_lists
        if ! install_now "${missing[@]}"; then
            tail -20 "$APT_LOG" >&2
            rm -f "$APT_LOG"
            die "apt-get could not install ${missing[*]}"
        fi
    fi
    rm -f "$APT_LOG"
}
