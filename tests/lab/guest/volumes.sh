# shellcheck shell=bash
# Sourced in the guest: names that never change, and the disks that every target exports. They are
# RAM-backed null_blk devices, so that the two targets have the same below them, and data survives
# when a target is killed.
#
#   $SUBSYSTEM  any host. NSID 1: 512 MiB of 512-byte LBAs; NSID 3: 64 MiB of 4096-byte LBAs; NSID
#               5: when added
#   $SUBSYSTEM_A, $SUBSYSTEM_B  one namespace each, for $HOSTNQN_A and $HOSTNQN_B only

RUN=/run/capstan-lab
HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:6f0c1c1e-2b5a-4c0e-9d3f-0a1b2c3d4e5f
HOSTID=6f0c1c1e-2b5a-4c0e-9d3f-0a1b2c3d4e5f
HOSTNQN_A=nqn.2014-08.org.nvmexpress:uuid:aaaaaaaa-1111-2222-3333-444444444444
HOSTID_A=aaaaaaaa-1111-2222-3333-444444444444
HOSTNQN_B=nqn.2014-08.org.nvmexpress:uuid:bbbbbbbb-1111-2222-3333-444444444444
HOSTID_B=bbbbbbbb-1111-2222-3333-444444444444
SUBSYSTEM=nqn.2026-11.org.example:capstan-lab
SUBSYSTEM_A=nqn.2026-11.org.example:capstan-lab-a
SUBSYSTEM_B=nqn.2026-11.org.example:capstan-lab-b
SERIAL=LAB0000000000001
MODEL="Capstan in the lab"
UUID_1=11111111-2222-4333-8444-555555555501 NGUID_1=01020304-0506-0708-090a-0b0c0d0e0f01
UUID_3=11111111-2222-4333-8444-555555555503 NGUID_3=01020304-0506-0708-090a-0b0c0d0e0f03
UUID_5=11111111-2222-4333-8444-555555555505 NGUID_5=01020304-0506-0708-090a-0b0c0d0e0f05
UUID_A=11111111-2222-4333-8444-55555555550a NGUID_A=01020304-0506-0708-090a-0b0c0d0e0f0a
UUID_B=11111111-2222-4333-8444-55555555550b NGUID_B=01020304-0506-0708-090a-0b0c0d0e0f0b
LBAS_1=1048576 LBAS_3=16384 LBAS_5=131072
export RUN HOSTNQN HOSTID HOSTNQN_A HOSTID_A HOSTNQN_B HOSTID_B SUBSYSTEM SUBSYSTEM_A SUBSYSTEM_B SERIAL MODEL
export UUID_1 UUID_3 UUID_5 UUID_A UUID_B NGUID_1 NGUID_3 NGUID_5 NGUID_A NGUID_B LBAS_1 LBAS_3 LBAS_5

volume() { # volume NAME LBA_BYTES MIB: /dev/NAME, which supports discard
    local dir=/sys/kernel/config/nullb/$1
    mkdir "$dir"
    echo "$3" >"$dir/size"
    echo "$2" >"$dir/blocksize"
    echo 1 >"$dir/memory_backed"
    echo 1 >"$dir/discard"
    echo 1 >"$dir/power"
}

make_volumes() {
    modprobe configfs
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    modprobe null_blk nr_devices=0
    volume lab1 512 512
    volume lab3 4096 64
    volume lab5 512 64
    volume laba 4096 16
    volume labb 4096 16
}
