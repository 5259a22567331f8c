# shellcheck shell=bash
# Whether to build with the hardware RDMA provider (cargo feature `verbs`), and what it needs: the
# rdma-core headers, and a libclang for rdma-sys. Sourced after packages.sh.

# The bindgen inside rdma-sys 0.3 panics with libclang 16 and later ("is not a valid Ident").
# 14 first: it is what Debian 12 has and what the project is developed with.
LIBCLANG_VERSIONS="14 15 13 12 11"

# The folder of an installed libclang of that major version.
libclang_folder() {
    local folder=/usr/lib/llvm-$1/lib
    compgen -G "$folder/libclang*.so*" >/dev/null && printf '%s\n' "$folder"
}

installed_libclang() {
    local version
    for version in $LIBCLANG_VERSIONS; do
        if has_package "libclang-$version-dev" && libclang_folder "$version"; then
            return 0
        fi
    done
    return 1
}

workspace_has_verbs() { grep -qE '^verbs *=' rdma/Cargo.toml; }

# shellcheck disable=SC2034 # CARGO_FEATURES is for the script that sources this.
# Sets CARGO_FEATURES (an array of arguments for cargo) and exports LIBCLANG_PATH.
choose_verbs() {
    local version folder
    CARGO_FEATURES=()
    workspace_has_verbs || return 0
    if [ "${CAPSTAN_VERBS:-}" = 0 ]; then
        note "CAPSTAN_VERBS=0: building without hardware RDMA"
        CARGO_FEATURES=(--no-default-features)
        return 0
    fi
    if [ -n "${LIBCLANG_PATH:-}" ]; then
        need_packages "headers for hardware RDMA" libibverbs-dev librdmacm-dev pkg-config
        note "libclang: $LIBCLANG_PATH (from the environment)"
        return 0
    fi
    if command -v apt-cache >/dev/null; then
        if ! installed_libclang >/dev/null; then
            # A release that has newer ones only has libclang-dev: its lists are not to blame.
            offers_package libclang-dev || update_lists
            for version in $LIBCLANG_VERSIONS; do
                offers_package "libclang-$version-dev" && break
            done
            if offers_package "libclang-$version-dev"; then
                need_packages "rdma-sys reads the RDMA headers with libclang 15 or older" \
                    "libclang-$version-dev"
            fi
        fi
        if folder=$(installed_libclang); then
            need_packages "headers for hardware RDMA" libibverbs-dev librdmacm-dev pkg-config
            export LIBCLANG_PATH=$folder
            note "libclang: $folder"
            return 0
        fi
    fi
    say "no libclang 15 or older to be had: building WITHOUT hardware RDMA (the iwarp provider remains)"
    note "with one, set LIBCLANG_PATH to the folder of its libclang.so and run this again"
    CARGO_FEATURES=(--no-default-features)
}
