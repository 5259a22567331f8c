# shellcheck shell=bash
# Header and data digests, each alone and both: nothing is taken for damaged, and what was written
# is read back.
for digests in --hdr-digest --data-digest '--hdr-digest --data-digest'; do
    # shellcheck disable=SC2086 # one or two words
    verify -N 1 --bs 4k --iodepth 8 --size 1m $digests
    # shellcheck disable=SC2086
    verify -N 1 --bs 128k --iodepth 4 --size 4m $digests
done
