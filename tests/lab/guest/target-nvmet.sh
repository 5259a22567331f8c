# shellcheck shell=bash
# Sourced in the guest: the Linux target, nvmet-rdma or nvmet-tcp. A kernel cannot be killed: its
# port is removed. Over siw its connections are reset and the link goes down instead, because
# nvmet-rdma there never ends a queue of which it has RDMA READs outstanding (README.md says why);
# that may happen all the same, as one reset connection makes it end the others itself.

TARGET_ADDRESS=$KERNEL_ADDRESS
NVMET=/sys/kernel/config/nvmet
case $TARGET_PROVIDER in tcp) TRTYPE=tcp ;; *) TRTYPE=rdma ;; esac

target_set_up() {
    modprobe -a nvmet "nvmet-$TRTYPE"
    # shellcheck disable=SC2153 # of volumes.sh
    mkdir "$NVMET/subsystems/$SUBSYSTEM"
    echo 1 >"$NVMET/subsystems/$SUBSYSTEM/attr_allow_any_host"
    echo "$SERIAL" >"$NVMET/subsystems/$SUBSYSTEM/attr_serial"
    echo "$MODEL" >"$NVMET/subsystems/$SUBSYSTEM/attr_model"
    target_namespace "$SUBSYSTEM" 1 /dev/lab1 "$UUID_1" "$NGUID_1"
    target_namespace "$SUBSYSTEM" 3 /dev/lab3 "$UUID_3" "$NGUID_3"
    target_restricted "$SUBSYSTEM_A" "$HOSTNQN_A"
    target_namespace "$SUBSYSTEM_A" 1 /dev/laba "$UUID_A" "$NGUID_A"
    target_restricted "$SUBSYSTEM_B" "$HOSTNQN_B"
    target_namespace "$SUBSYSTEM_B" 1 /dev/labb "$UUID_B" "$NGUID_B"
}

target_restricted() { # target_restricted SUBSYSTEM HOSTNQN
    mkdir "$NVMET/subsystems/$1" "$NVMET/hosts/$2"
    echo 0 >"$NVMET/subsystems/$1/attr_allow_any_host"
    ln -s "$NVMET/hosts/$2" "$NVMET/subsystems/$1/allowed_hosts/"
}

target_namespace() { # target_namespace SUBSYSTEM NSID DEVICE UUID NGUID
    local dir=$NVMET/subsystems/$1/namespaces/$2
    mkdir "$dir"
    echo "$3" >"$dir/device_path"
    echo "$4" >"$dir/device_uuid"
    echo "$5" >"$dir/device_nguid"
    echo 1 >"$dir/enable"
}

target_runs() { [ -e "$NVMET/ports/1" ]; }

target_start() {
    link_up
    target_runs && return 0
    mkdir "$NVMET/ports/1"
    echo "$TRTYPE" >"$NVMET/ports/1/addr_trtype"
    echo ipv4 >"$NVMET/ports/1/addr_adrfam"
    echo "$TARGET_ADDRESS" >"$NVMET/ports/1/addr_traddr"
    echo 4420 >"$NVMET/ports/1/addr_trsvcid"
    local subsystem
    for subsystem in "$SUBSYSTEM" "$SUBSYSTEM_A" "$SUBSYSTEM_B"; do
        ln -s "$NVMET/subsystems/$subsystem" "$NVMET/ports/1/subsystems/"
    done
}

target_stop() {
    target_runs || return 0
    rm -f "$NVMET"/ports/1/subsystems/*
    rmdir "$NVMET/ports/1"
}

target_kill() {
    case $LINK in
        siw*)
            # shellcheck disable=SC2086 # a command and its arguments, or nothing
            $IN_NETNS ss -K dport = 4420 >/dev/null
            link_down
            ;;
        *) target_stop ;;
    esac
}

target_add_namespace() { target_namespace "$SUBSYSTEM" 5 /dev/lab5 "$UUID_5" "$NGUID_5"; }

target_remove_namespace() {
    echo 0 >"$NVMET/subsystems/$SUBSYSTEM/namespaces/5/enable"
    rmdir "$NVMET/subsystems/$SUBSYSTEM/namespaces/5"
}

target_doctor() { :; }

target_log_mark() { dmesg | wc -l >"$RUN/target.log.mark"; }
target_log_since() { dmesg | tail -n "+$(($(cat "$RUN/target.log.mark") + 1))"; }

target_is_well() {
    target_runs && return 0
    echo "the port of nvmet is gone"
    return 1
}
