#!/usr/bin/env bash
# Builds the packages that this machine can build, in build/packages, and says which it cannot, and
# why:
#
#   capstan-target_*.deb, capstan_*.deb     Debian and Ubuntu (cargo-deb)
#   capstan-target-*.rpm, capstan-*.rpm     Fedora and its like (cargo-generate-rpm)
#   capstan-*-static.tar.xz                 both programs for any distribution, linked with musl,
#                                           without hardware RDMA
#   capstan-*-debug.tar.xz                  lines of the source for core dumps of these programs
#
#   scripts/package.sh                      all of them
#   scripts/package.sh deb rpm              only these
#
#   --bin FOLDER        programs that are built already, instead of a build; none for `static`
#   --version VERSION   of the packages, instead of that in Cargo.toml
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/say.sh
. scripts/lib/packages.sh
. scripts/lib/verbs.sh
. scripts/lib/cleanup.sh
export CARGO_TERM_COLOR=never
command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
command -v cargo >/dev/null || die "there is no cargo: install Rust from https://rustup.rs"

CARGO_DEB_VERSION=3.8.0
CARGO_GENERATE_RPM_VERSION=0.21.1
machine=$(uname -m)
musl=$machine-unknown-linux-musl
out=build/packages
stage=$out/stage

usage() {
    sed -n '2,16s/^# \{0,1\}//p' "$0"
    exit 2
}

bin='' version='' kinds=()
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=${2:?"--bin needs a folder"} && shift ;;
        --version) version=${2:?"--version needs one"} && shift ;;
        deb | rpm | static) kinds+=("$1") ;;
        *) usage ;;
    esac
    shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(deb rpm static)
version=${version:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)}
# The same files give the same packages.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
skipped=()
skip() {
    note "SKIPPED $1: $2"
    skipped+=("$1")
}

# cargo_tool NAME VERSION: whether `cargo NAME` of that version is there, or could be installed.
cargo_tool() {
    if ! "cargo-$1" --version 2>/dev/null | grep -q "$2$"; then
        note "building cargo-$1 $2 (without optimization)"
        CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --force --version "=$2" "cargo-$1" >&2
    fi
}

# programs FOLDER TO: both programs without what is for debuggers, which goes to TO.debug.
programs() {
    local program
    mkdir -p "$2" "$2.debug"
    for program in capstan-target capstan; do
        [ -x "$1/$program" ] || die "$1/$program is not there: cargo build --release --bin $program"
        objcopy --only-keep-debug --compress-debug-sections "$1/$program" "$2.debug/$program.debug"
        strip --strip-unneeded -o "$2/$program" "$1/$program"
        (cd "$2.debug" && objcopy --add-gnu-debuglink="$program.debug" "../${2##*/}/$program")
    done
}

# What the programs write about themselves.
texts() {
    local program
    for program in capstan-target capstan; do
        mkdir -p "$stage/man/$program/man1" "$stage/completions"
        "$stage/bin/$program" man --to "$stage/man/$program/man1"
        "$stage/bin/$program" completions bash >"$stage/completions/$program.bash"
        "$stage/bin/$program" completions zsh >"$stage/completions/_$program"
        "$stage/bin/$program" completions fish >"$stage/completions/$program.fish"
    done
    python3 scripts/lib/third_party.py >"$stage/THIRD-PARTY"
}

deb() {
    need_packages "what a .deb depends on" dpkg-dev
    cargo_tool deb "$CARGO_DEB_VERSION" || { skip ".deb" "cargo-deb cannot be installed"; return 0; }
    local crate
    rm -f "$out"/*.deb
    for crate in capstan-target capstan-cli; do
        cargo deb --quiet --no-build --no-strip --no-separate-debug-symbols -p "$crate" --deb-version "$version-1" --output "$out/"
    done
}

rpm() {
    cargo_tool generate-rpm "$CARGO_GENERATE_RPM_VERSION" ||
        { skip ".rpm" "cargo-generate-rpm cannot be installed"; return 0; }
    local folder
    rm -f "$out"/*.rpm
    for folder in target initiator/cli; do
        # Libraries by their names, as every distribution of RPM has them; its packages differ.
        cargo generate-rpm -p "$folder" --output "$out/" --auto-req builtin \
            --source-date "$SOURCE_DATE_EPOCH" --set-metadata "version = \"$version\"" >/dev/null
    done
}

# Both programs, what belongs to them, and a file that says where it goes.
static() {
    if ! rustc --print target-libdir --target "$musl" | xargs test -d &&
        ! timeout 300 rustup target add "$musl" >/dev/null 2>&1; then
        skip "static tarball" "Rust's $musl is not installed and rustup cannot fetch it"
        return 0
    fi
    [ -z "$bin" ] || { skip "static tarball" "--bin has programs that are not static"; return 0; }
    # No hardware RDMA: its libraries open drivers at run time, which a static program cannot.
    cargo build --quiet --release --no-default-features --target "$musl" --bins -p capstan-target -p capstan-cli
    local name=capstan-$version-$machine-static
    local root=$out/$name
    rm -rf "$root" "$root".debug
    programs "build/$musl/release" "$root/bin"
    rm -r "$root/bin.debug"
    ! readelf --dynamic "$root/bin/capstan" | grep NEEDED || die "$root/bin/capstan needs the libraries above"
    cp -r systemd docs README.md CHANGELOG.md LICENSE-* "$stage/THIRD-PARTY" "$stage/completions" "$root"
    cp -r config/samples "$root/samples"
    mkdir -p "$root/man"
    cp -r "$stage"/man/*/* "$root/man"
    archive "$name"
    rm -r "$root"
}

# archive NAME: the folder of that name in build/packages, the same for the same files.
archive() {
    tar --create --xz --file "$out/$1.tar.xz" --directory "$out" --sort=name --owner=0 --group=0 \
        --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" "$1"
}

need_packages "programs without what is for debuggers; archives" binutils xz-utils python3
rm -rf "$stage"
mkdir -p "$stage"
if [ -z "$bin" ]; then
    need_packages "a linker for Rust" gcc libc6-dev
    choose_verbs
    [ ${#CARGO_FEATURES[@]} -eq 0 ] || skipped+=("hardware RDMA")
    say "building"
    cargo build --quiet --release --bins -p capstan-target -p capstan-cli "${CARGO_FEATURES[@]}"
fi
programs "${bin:-build/release}" "$stage/bin"
texts
for kind in "${kinds[@]}"; do
    say "$kind"
    "$kind"
done
debug=capstan-$version-$machine-debug
rm -rf "${out:?}/$debug"
cp -r "$stage/bin.debug" "$out/$debug"
archive "$debug"
rm -r "${out:?}/$debug"
say "packages in $out"
find "$out" -maxdepth 1 -type f -newer "$stage/THIRD-PARTY" -printf '    %f, %k KiB\n' | sort
[ ${#skipped[@]} -eq 0 ] || say "SKIPPED: $(printf '%s; ' "${skipped[@]}")"
