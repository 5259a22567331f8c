# shellcheck shell=bash
# Sourced in the guest: what a case may have left behind. Each check says what it found on stdout,
# and fails.

# The Linux host's connections, whoever made them.
disconnect_all_hosts() {
    local controller
    for controller in /sys/class/nvme/nvme*; do
        [ -e "$controller/delete_controller" ] || continue
        bounded 20 bash -c "echo 1 >$controller/delete_controller" || return 1
    done
}

# Objects of every RDMA device: "siw0 qp 3", one line each. The kernel keeps the completion queues
# of its own users for the next connection and grows their number with use, so of those only
# programs' are counted.
rdma_objects() {
    rdma resource show | awk '{
        device = $2; sub(":", "", device)
        for (i = 3; i < NF; i += 2) if ($i != "cq") print device, $i, $(i + 1)
    }'
    rdma resource show cq | awk '!/comm \[/ { cqs[$2]++ } END { for (device in cqs) print device, "cq", cqs[device] }'
}

# Waits until no kind of object is more than it was; objects go some time after their connection.
no_more_rdma_objects_than() { # no_more_rdma_objects_than FILE
    local more began=$SECONDS
    while [ $((SECONDS - began)) -lt 10 ]; do
        more=$(rdma_objects | awk 'NR == FNR { before[$1 " " $2] = $3; next }
            $3 > before[$1 " " $2] + 0 { printf "%s%s %s: %d, were %d", sep, $1, $2, $3, before[$1 " " $2]; sep = "; " }' \
            "$1" -)
        [ -n "$more" ] || return 0
        sleep 0.25
    done
    echo "RDMA objects left after $((SECONDS - began)) s: $more"
    return 1
}

# Kernel messages since the case NAME began.
dmesg_of() { dmesg | sed -n "/lab: case $1\$/,\$p"; }

no_kernel_warning() { # no_kernel_warning NAME
    local warning
    warning=$(dmesg_of "$1" | grep -m1 -E \
        'WARNING:|BUG:|Oops|Call Trace|general protection|blocked for more than|refcount_t|use-after-free|UBSAN|KASAN|possible .* locking') ||
        return 0
    echo "kernel warning: $warning"
    return 1
}
