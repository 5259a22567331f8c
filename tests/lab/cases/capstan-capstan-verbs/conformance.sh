# shellcheck shell=bash
# The conformance suite of the providers, and those of queues over it (the controller's side and the
# host's), against the real device and its driver.
ulimit -l unlimited
interface=$(ip -o addr show to "$TARGET_ADDRESS" | awk '{ print $2 }')

passes() { # passes PROGRAM PACKAGE ADDRESS...
    local program=$1 package=$2 failed=
    shift 2
    [ -x "$LAB/$program" ] || fail "no $program beside capstan: cargo build -p $package --features verbs --example $program"
    "$LAB/$program" "$@" >said 2>&1 || failed=1
    cat said
    [ -z "$failed" ] || fail "$program: $(grep -m1 -A 30 '^failures:' said || tail -5 said)"
    matches "what $program says" "$(cat said)" 'test result: ok\. [1-9][0-9]+ passed; 0 failed'
}

# Cases of the providers connect by IPv6, too.
ip addr replace fd09::1/64 dev "$interface" nodad
passes conformance_verbs capstan-rdma "$TARGET_ADDRESS" fd09::1
passes conformance_queue capstan-transport "$TARGET_ADDRESS"
ip addr del fd09::1/64 dev "$interface"
