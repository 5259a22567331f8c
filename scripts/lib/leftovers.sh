# shellcheck shell=bash
# Proof that a script leaves nothing behind: processes, mounts, loop devices and files that have to
# do with its folder. Sourced after say.sh.

# watch_leftovers FOLDER: what is looked for later.
watch_leftovers() {
    WATCHED=$1
    LOOPS_BEFORE=$(losetup --noheadings --output NAME 2>/dev/null | sort)
    CAPSTAN_BEFORE=$(capstan_processes)
}

# Processes whose program was built here, by id.
capstan_processes() {
    local process
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe" 2>/dev/null) in
            "$PWD"/build/*/capstan*) printf '%s\n' "${process#/proc/}" ;;
        esac
    done | sort
}

# Dies when something is there that was not before.
no_leftovers() {
    local left=
    [ ! -e "$WATCHED" ] || left+="the folder $WATCHED; "
    if grep -qF " $WATCHED" /proc/self/mountinfo; then
        left+="mounts below $WATCHED; "
    fi
    if [ "$(losetup --noheadings --output NAME 2>/dev/null | sort)" != "$LOOPS_BEFORE" ]; then
        left+="loop devices (losetup -a); "
    fi
    if [ "$(capstan_processes)" != "$CAPSTAN_BEFORE" ]; then
        left+="processes $(capstan_processes | tr '\n' ' '); "
    fi
    [ -z "$left" ] || die "left behind: $left"
    note "nothing left behind: no process, mount, loop device or file"
}
