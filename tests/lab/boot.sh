#!/usr/bin/env bash
# Boots the lab's kernel under QEMU software emulation and runs one guest script in it as root.
#
#   tests/lab/boot.sh [-i] [-n] [-p] [-k RELEASE] [-f FILE]… [-o OUTPUT_FOLDER] [-m MEMORY]
#                     [-t SECONDS] SCRIPT [ARGUMENT…]
#
# -i counts instead of measuring: one processor, whose time is its instructions, 8 ns each, and
# which does not wait when it is idle.
# -k boots another kernel, whose modules are in /lib/modules and whose vmlinuz is in
# $CAPSTAN_LAB_CACHE/boot; without siw.
# -n adds an emulated NVMe controller with a 64 MiB namespace; -f puts one more file or folder into
# $LAB; -p lets the two processors of the guest run at the same time.
# SCRIPT is a name under tests/lab/guest/ (or a path). The guest sees this machine's root folder
# read-only over 9p, and two folders of its own: $LAB (a copy of tests/lab/guest and of the siw
# modules, in memory) and $OUT (writable, kept afterwards in OUTPUT_FOLDER, default
# $CAPSTAN_LAB_CACHE/out/<script name>). The exit status is the guest script's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/lab/common.sh
. "$here/common.sh"

usage() { die "usage: boot.sh [-i] [-n] [-p] [-k RELEASE] [-f FILE]… [-o OUTPUT_FOLDER] [-m MEMORY] [-t SECONDS] SCRIPT [ARGUMENT…]"; }

out='' memory=2G timeout_s=600 nvme_disk='' parallel='' counted='' files=() release=''
while getopts inpk:f:o:m:t: option; do
    case $option in
        i) counted=yes ;;
        f) files+=("$OPTARG") ;;
        k) release=$OPTARG ;;
        n) nvme_disk=yes ;;
        o) out=$OPTARG ;;
        p) parallel=yes ;;
        m) memory=$OPTARG ;;
        t) timeout_s=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || usage
script=$1
shift
[ -r "$script" ] || script=$here/guest/$script
[ -r "$script" ] || die "no guest script $script"
name=$(basename "$script" .sh)
out=${out:-$CAPSTAN_LAB_CACHE/out/$name}
release=${release:-$(lab_kernel_release)}

# The guest has fresh tmpfs mounts over /tmp and /var/cache, so all it needs goes through the folder
# it shares.
mkdir -p "$out"
rm -rf "$out/lab" "$out/exit-status"
mkdir "$out/lab"
cp "$here"/guest/* "$out/lab/"
cp "$script" "$out/lab/$name.sh"
# Another kernel has no siw.
if [ "$release" = "$(lab_kernel_release)" ]; then
    for module in "$CAPSTAN_LAB_CACHE/siw-$release"/*.ko; do
        strip --strip-debug -o "$out/lab/$(basename "$module")" "$module"
    done
fi
[ ${#files[@]} -eq 0 ] || cp -r "${files[@]}" "$out/lab/"

# Programs start faster from the guest's memory than from the folder that is shared, and one file
# gets there faster than many.
tar -cf "$out/lab.tar" -C "$out" lab
cat >"$out/lab/start" <<END
#!/usr/bin/env bash
export LAB=/run/lab OUT=$out
cd "\$OUT"
tar -xf lab.tar -C /run
bash "\$LAB/$name.sh" $(printf '%q ' "$@")
echo \$? >"\$OUT/exit-status"
sync
END
chmod 755 "$out/lab/start"

# Of udev, what it does with disks and RDMA devices, and the loading of drivers where there is
# hardware that needs one.
mkdir "$out/lab/udev-rules"
for rules in 50-udev-default 60-block 60-infiniband 60-persistent-storage 60-rdma-persistent-naming 70-nvmf-autoconnect \
    71-nvmf-iopolicy-netapp 75-rdma-description 90-rdma-ulp-modules 90-rdma-umad ${nvme_disk:+80-drivers}; do
    cp "/usr/lib/udev/rules.d/$rules.rules" "$out/lab/udev-rules/"
done

# vng finds its own helpers (virtme-run) through PATH.
export PATH=$CAPSTAN_LAB_CACHE/venv/bin:$PATH
say "booting $release (emulated, so slow) to run $name; output goes to $out"
# What makes the emulated kernel slower without making it another one: mitigations of processors
# that are not there, hardening, watchdogs for which a busy machine is a stalled one, and drivers of
# Modules of QEMU's devices that no case uses.
unused=kvm_amd,kvm_intel,kvm,ccp,ahci,libata,sr_mod,cdrom,sg,psmouse,iTCO_wdt,i6300esb,i2c_i801,lpc_ich,pcspkr,evdev,serio_raw
# All the kernel says of a cell is kept.
kernel="log_buf_len=4M mitigations=off init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off lsm= audit=0 no5lvl nowatchdog rcupdate.rcu_cpu_stall_suppress=1 modprobe.blacklist=$unused"
# Both processors take turns on one thread of this machine, unless they are to be measured: of two
# threads, one waits for a lock or an answer of the other while that does not run, which took a
# third of all time where two machines share two cores.
threads=single
[ -z "$parallel" ] || threads=multi
# A processor of x86-64-v2: an emulated one without AVX, SMAP and the like is a tenth faster, and
# drivers do the same on it.
devices="-accel tcg,thread=$threads -cpu Nehalem" processors=2
if [ -n "$counted" ]; then
    devices+=" -icount shift=3,sleep=off" processors=1
fi
command=("$CAPSTAN_LAB_CACHE/venv/bin/vng" --disable-kvm --force-9p --disable-microvm --cpus "$processors" --memory "$memory"
    --append "$kernel" --rwdir "$out" --rodir "/usr/lib/udev/rules.d=$out/lab/udev-rules" --run "$CAPSTAN_LAB_CACHE/boot/vmlinuz-$release")
if [ -n "$nvme_disk" ]; then
    # Of Debian 12's QEMU: the answers of that controller are among the golden bytes.
    truncate -s 0 "$out/nvme.img"
    truncate -s 64M "$out/nvme.img"
    devices+=" -drive file=$out/nvme.img,if=none,id=labnvme,format=raw -device nvme,serial=LABQEMU0000001,drive=labnvme"
elif [ -x "$CAPSTAN_LAB_CACHE/qemu/run" ]; then
    command+=(--qemu "$CAPSTAN_LAB_CACHE/qemu/run")
fi
command+=("--qemu-opts=$devices" -- "$out/lab/start")
# script(1) gives QEMU the terminal that virtme-ng insists on. /dev/kvm is refused on purpose: where
# it exists but is itself emulated, an unmodified kernel does not come up on it.
timeout --foreground "$timeout_s" script -q -e -f -O "$out/console.log" -c "$(printf '%q ' "${command[@]}")" \
    </dev/null &
qemu=$!
# No QEMU outlives this script: script(1) that ends takes the terminal away.
trap 'kill "$qemu" 2>/dev/null; wait "$qemu"; exit 143' TERM INT HUP
wait "$qemu" || say "QEMU ended with status $?"
# Other than the time on the clock, this tells runs on a busy machine and on a quiet one apart.
times >"$out/times"
sed -n '2s/[ms]/ /gp' "$out/times" | awk '{ printf "%d\n", $1 * 60 + $2 + $3 * 60 + $4 }' >"$out/processor-seconds"
[ -r "$out/exit-status" ] || die "the guest did not finish $name within $timeout_s s: see $out/console.log"
status=$(cat "$out/exit-status")
say "$name ended with status $status"
exit "$status"
