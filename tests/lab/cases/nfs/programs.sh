# shellcheck shell=bash
# What people do with files, by version 4.2 and both clients: a repository of git's that is made,
# cloned and checked; a tree that is copied and unpacked; a database of SQLite's with two writers.
mount_export 4.2
make_tree tree

tar -cf "$FIRST/tree.tar" -C tree .
mkdir "$SECOND/unpacked"
tar -xf "$SECOND/tree.tar" -C "$SECOND/unpacked"
cp -a tree "$FIRST/copied"
for name in unpacked copied; do
    diff -r --no-dereference tree "$SECOND/$name" || fail "$name: files are not what they were"
    equal "modes and links in $name" "$(files_of "$FIRST/$name")" "$(files_of tree)"
done

export HOME=$WORK GIT_AUTHOR_NAME=lab GIT_AUTHOR_EMAIL=lab@example.org GIT_COMMITTER_NAME=lab GIT_COMMITTER_EMAIL=lab@example.org
git init -q "$FIRST/repository"
cp -a tree "$FIRST/repository/"
git -C "$FIRST/repository" add -A
git -C "$FIRST/repository" commit -q -m "The tree"
git clone -q --no-local "$SECOND/repository" "$FIRST/clone"
git -C "$FIRST/clone" fsck --strict
equal "the head of the clone" "$(git -C "$FIRST/clone" rev-parse HEAD)" "$(git -C "$FIRST/repository" rev-parse HEAD)"
equal "what git sees changed" "$(git -C "$FIRST/clone" status --porcelain)" ""
diff -r --no-dereference tree "$FIRST/clone/tree" || fail "files of the clone are not what they were"

ROWS=8
database() { # database PATH STATEMENT…
    /usr/bin/python3 -c 'import sqlite3, sys
with sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None) as database:
    for statement in sys.argv[2:]:
        for row in database.execute(statement): print(*row)' "$@"
}
rows() { for number in $(seq "$ROWS"); do echo "insert into t values ('$1', $number)"; done; }
database "$FIRST/database" "create table t (client text, number integer)"
mapfile -t one < <(rows first)
mapfile -t two < <(rows second)
begin first database "$FIRST/database" "${one[@]}"
begin second database "$SECOND/database" "${two[@]}"
finish first
finish second
said=$(database "$FIRST/database" "select client, count(distinct number) from t group by client order by client" "pragma integrity_check")
equal "the rows of both clients" "$said" "first $ROWS
second $ROWS
ok"
rm -rf "$FIRST"/{tree.tar,unpacked,copied,repository,clone,database}
equal "what is left" "$(find "$SECOND" -mindepth 1 -maxdepth 1 ! -name lost+found)" ""
unmount_export
