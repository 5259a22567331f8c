# shellcheck shell=bash
# Header and data digests, each alone and both: nothing is taken for damaged, and what was written
# is read back.
for digests in hdr_digest data_digest hdr_digest,data_digest; do
    connect "nr_io_queues=1,$digests"
    disk 1
    verify "$DISK" --bs=4k --iodepth=8 --size=2m
    verify "$DISK" --bs=128k --iodepth=4 --size=4m
    disconnect
done
if dmesg | tail -50 | grep -i 'digest error'; then fail "the host has found a wrong digest"; fi
