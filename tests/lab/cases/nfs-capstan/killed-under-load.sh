# shellcheck shell=bash
# A server that is killed, round after round, under writes with checksums that are read back, and
# started anew. By version 4.2 a lock that was held is held still, and what was open is; by version
# 3 nothing that was written for good is lost.
rounds=$(cat "$LAB/rounds" 2>/dev/null || echo 2)

# When the server's file was last changed.
changed() { stat -c %y "$NFS_EXPORT/load.0.0"; }
# fio that was told to end has status 128, and one more with each error.
told_to_end() { # told_to_end NAME
    local status=0
    kill -TERM "$(cat "$WORK/$1.pid")"
    wait "$(cat "$WORK/$1.pid")" || status=$?
    cat "$WORK/$1.out"
    equal "the status of fio" "$status" 128
}
goes_on_from() { [ "$(changed)" != "$1" ]; }

for version in 4.2 3; do
    mount_export "$version"
    if [ "$version" = 4.2 ]; then
        touch "$FIRST/locked"
        begin holder flock -x --no-fork "$FIRST/locked" sleep 10000
        within 20 "the lock is held" bash -c "! flock -n -x '$SECOND/locked' true"
    fi
    begin load fio --directory="$FIRST" --name=load --ioengine=libaio --direct=1 --thread --randrepeat=0 --rw=randwrite \
        --bsrange=4k-64k --iodepth=8 --size=16m --loops=1000 --time_based --runtime=$((rounds * 40)) --verify=crc32c \
        --verify_fatal=1 --verify_backlog=16 --verify_state_save=0 --output-format=terse --terse-version=3
    within 60 "fio works" [ -s "$NFS_EXPORT/load.0.0" ]
    for _ in $(seq "$rounds"); do
        target_kill
        target_start
        # Its grace time is over then.
        within 60 "what fio does goes on" goes_on_from "$(changed)"
        if [ "$version" = 4.2 ]; then
            running holder || fail "what holds the lock has ended"
            refused '^$' flock -n -x "$SECOND/locked" true
        fi
    done
    told_to_end load
    if [ "$version" = 4.2 ]; then
        kill "$(cat "$WORK/holder.pid")"
        rm "$FIRST/locked"
    fi
    unmount_export
    rm "$NFS_EXPORT/load.0.0"
done
