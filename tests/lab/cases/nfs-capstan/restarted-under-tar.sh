# shellcheck shell=bash
# A tree is packed and another one unpacked by tar(1) while the server ends and is killed in turn
# and started anew: tar sees none of it, and every file is what it was. By versions 4.2 and 3.
rounds=$(cat "$LAB/rounds" 2>/dev/null || echo 2)
make_tree tree
tar -cf tree.tar -C tree .

# So that a restart is in the midst of it, the tree is packed and unpacked until there were all.
tars_until_told() {
    local n=0
    while [ ! -e "$WORK/enough" ]; do
        n=$((n + 1))
        # Of what was not answered before the server ended the client hears as of something done
        # twice.
        mkdir -p "$FIRST/tars/$n"
        tar -xf "$WORK/tree.tar" -C "$FIRST/tars/$n" || return 1
        tar -cf "$FIRST/tars/$n.tar" -C "$FIRST/tars/$n" . || return 1
        mkdir "$WORK/from-$n"
        tar -xf "$FIRST/tars/$n.tar" -C "$WORK/from-$n" || return 1
        diff -r --no-dereference "$WORK/tree" "$FIRST/tars/$n" || return 1
        diff -r --no-dereference "$WORK/tree" "$WORK/from-$n" || return 1
        [ "$(files_of "$FIRST/tars/$n")" = "$(files_of "$WORK/tree")" ] || return 1
        rm -rf "$FIRST/tars/$n" "$FIRST/tars/$n.tar" "$WORK/from-$n" || return 1
    done
}
# Whether anything was made or changed since the server came back.
goes_on_since() { [ -n "$(find "$NFS_EXPORT/tars" -newer "$1" -print -quit)" ]; } # goes_on_since MARK

for version in 4.2 3; do
    mount_export "$version"
    mkdir "$FIRST/tars"
    begin tars tars_until_told
    for round in $(seq "$rounds"); do
        # Where in its work tar is differs from round to round.
        sleep "$((round % 3)).$((round % 10))"
        if [ $((round % 2)) = 0 ]; then target_stop; else target_kill; fi
        touch "$NFS_EXPORT/came-back"
        target_start
        # Its grace time is over then.
        within 90 "what tar does goes on" goes_on_since "$NFS_EXPORT/came-back"
        running tars || fail "tar has ended: $(tail -3 tars.out)"
    done
    touch enough
    finish tars
    rm enough
    rmdir "$FIRST/tars"
    rm "$NFS_EXPORT/came-back"
    unmount_export
done
