# shellcheck shell=bash
# A folder of 10,000 entries that were made beside the server is listed whole, by versions 4.2 and 3
# and by both clients, with what `stat` says of each.
made() { seq -f "entry-with-a-name-of-some-length-%05g" 10000; }
mkdir "$NFS_EXPORT/many"
(cd "$NFS_EXPORT/many" && made | xargs touch)
made | sort >expected
for version in 4.2 3; do
    mount_export "$version"
    (cd "$FIRST/many" && LC_ALL=C find . -type f -printf '%f %s %n\n') | sort >said
    same "what version $version lists" <(sed 's/$/ 0 1/' expected) said
    (cd "$SECOND/many" && LC_ALL=C find . -mindepth 1 -printf '%f\n') | sort >said
    same "what version $version lists at the second client" expected said
    unmount_export
done
rm -r "$NFS_EXPORT/many"
