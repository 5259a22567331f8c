#!/usr/bin/env bash
# Captures golden bytes from the real Linux host and target: boots the lab once per capture, decodes
# every pcap (which fails on any anomaly) and extracts the files.
#
#   tests/lab/golden.sh OUTPUT_FOLDER [CAPTURE…]
#
# CAPTURE: plain crc passthru auth rping p2p probe tcp data nfs (default: all), or none.
# Environment: CAPSTAN_LAB_NEWER_KERNEL   for data: a release from 6.13 on, whose vmlinuz is in
#                                         $CAPSTAN_LAB_CACHE/boot and whose modules are in
#                                         /lib/modules
#
# Captures that are not named are taken from the last time, out of $CAPSTAN_LAB_CACHE/captures.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/lab/common.sh
. "$here/common.sh"
[ $# -ge 1 ] || die "usage: golden.sh OUTPUT_FOLDER [CAPTURE…]"
output=$1
shift
[ $# -gt 0 ] || set -- plain crc passthru auth rping p2p probe tcp data nfs
captures=$CAPSTAN_LAB_CACHE/captures
release=$(lab_kernel_release)

boot() { # boot NAME [boot.sh OPTION…] SCRIPT [ARGUMENT…]
    local name=$1
    shift
    "$here/boot.sh" -o "$captures/$name" "$@" >"$captures/$name.log" 2>&1 || die "capture $name failed: see $captures/$name.log"
    say "captured $name"
}

mkdir -p "$captures"
for capture; do
    case $capture in
        plain) boot plain capture-linux.sh linux-siw ;;
        crc) boot crc capture-linux.sh linux-siw-crc 1500 siw-crc.ko ;;
        passthru) boot passthru -n capture-passthru.sh ;;
        auth) boot auth capture-auth.sh ;;
        rping) boot rping capture-rping.sh rping-crc 1500 siw-crc.ko ;;
        p2p) boot p2p capture-rping.sh rping-p2p 65536 siw-p2p.ko ;;
        probe) boot probe probe-siw.sh ;;
        tcp) boot tcp capture-tcp.sh ;;
        data) boot data -n -k "${CAPSTAN_LAB_NEWER_KERNEL:?data needs a newer kernel: see the head of this script}" capture-data.sh ;;
        nfs) boot nfs capture-nfs.sh ;;
        none) ;;
        *) die "no capture is called $capture" ;;
    esac
done

nvme_version=$(nvme version | sed -n 's/^nvme version \([^ ]*\).*/nvme-cli \1/p')
system="Linux $release, $nvme_version"
extract() { # extract PCAP SOURCE [OPTION…]: earlier captures win, so every name has one origin
    local pcap=$captures/$1 source=$2
    shift 2
    [ -r "$pcap" ] || die "$pcap is missing: run golden.sh for that capture"
    "$here/extract_golden.py" "$pcap" "$output" --keep --source "$source; $system" "$@" >>"$captures/extract.log" ||
        die "the decoder found problems in $pcap: see $captures/extract.log"
}
extract_tcp() { # extract_tcp CAPTURE SUFFIX [OPTION…]
    local pcap=$captures/tcp/linux-tcp-$1.pcap
    "$here/extract_golden_tcp.py" "$pcap" "$output" --source "nvme-tcp host, nvmet-tcp target over lo; $system" \
        "--suffix=-$2" "${@:3}" >>"$captures/extract.log" || die "$pcap is missing or wrong: see $captures/extract.log"
}
# What of version 4.1 is kept: 4.2 has the rest as well.
of_41='v41-(exchange-id|create-session|open|read|readdir|write|close|getattr-close|destroy|reclaim)'
nfs_version=$(dpkg-query -W -f 'nfs-utils ${Version}' nfs-common)
extract_nfs() { # extract_nfs TRANSPORT VERSION MATCH [OPTION…]
    local pcap=$captures/nfs/nfs-$1-$2.pcap
    "$here/extract_golden_nfs.py" "$pcap" "$output" "--version=$2" "--match=$3" "${@:4}" \
        --source "NFS client and knfsd over $1; Linux $release, $nfs_version" >>"$captures/extract.log" ||
        die "$pcap is missing or wrong: see $captures/extract.log"
}
mkdir -p "$output"
rm -f "$output"/rdma/*.hex "$output"/nvme/*.hex "$output"/tcp/*.hex "$output"/nfs/*.hex "$output"/rpcrdma/*.hex "$captures/extract.log"
host_and_target="nvme-rdma host, nvmet-rdma target"
extract plain/linux-siw.pcap "$host_and_target over siw, no CRC, lo MTU 65536"
extract crc/linux-siw-crc.pcap "$host_and_target over siw built with mpa_crc_required, lo MTU 1500" --match '^(mpa|fpdu)'
for size in 65 66 67 5001; do
    extract rping/rping-crc-rping-$size.pcap "rping -S $size, user space over siw built with mpa_crc_required, lo MTU 1500" \
        --port 14420 --match '^fpdu.*padded'
    extract p2p/rping-p2p-rping-$size.pcap "rping -S $size, user space over siw built with peer_to_peer" --port 14420 \
        --match '^fpdu.*padded'
done
extract p2p/rping-p2p.pcap "$host_and_target over siw built with peer_to_peer" --match '^(mpa|fpdu)'
extract passthru/linux-passthru.pcap "$host_and_target over siw, passed through to QEMU's NVMe controller" \
    --match '^(sqe|cqe|capsule)'
extract passthru/linux-passthru.pcap "$host_and_target over siw, passed through to QEMU's NVMe controller" \
    --match '^(identify|log)' --suffix=-qemu
extract auth/linux-auth.pcap "$host_and_target over siw, DH-HMAC-CHAP" --match '(authentication|reservation|connect-admin)'
extract probe/probe-siw.pcap "siw and nvmet-rdma answering probe_siw.py" --passive-only \
    --match '^(mpa-reply|fpdu-terminate|fpdu-read-response-zero|cm-)'
for digests in none hdgst ddgst hdgst-ddgst; do
    extract_tcp $digests $digests
done
extract_tcp flow-control flow-control --match '^(c2h-data-read|capsule-resp-(read|connect-admin))'
extract_tcp discovery none --match discovery
for file in "$captures"/data/data/*.hex; do
    # Also here earlier captures win.
    [ -e "$output/nvme/${file##*/}" ] || cp "$file" "$output/nvme/"
done
extract_nfs tcp 4.2 ''
extract_nfs tcp 4.1 "$of_41"
extract_nfs tcp 3 ''
for version in 4.2 4.1 3; do extract_nfs siw "$version" '' --rdma; done
cp "$here/golden-readme.md" "$output/README.md"
count() { find "$output/$1" -name '*.hex' | wc -l; }
say "$output: $(count rdma) files in rdma/, $(count nvme) in nvme/, $(count tcp) in tcp/, $(count nfs) in nfs/, $(count rpcrdma) in rpcrdma/"
