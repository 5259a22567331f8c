# shellcheck shell=bash
# The conformance suite of the providers on this one, against the real device and its driver.
[ -x "$LAB/conformance_verbs" ] || fail "no conformance suite beside capstan: cargo build -p capstan-rdma --example conformance_verbs"
ulimit -l unlimited
interface=$(ip -o addr show to "$TARGET_ADDRESS" | awk '{ print $2 }')
# Cases connect by IPv6, too.
ip addr replace fd09::1/64 dev "$interface" nodad
"$LAB/conformance_verbs" "$TARGET_ADDRESS" fd09::1 >said 2>&1 || failed=1
cat said
[ -z "${failed:-}" ] || fail "$(grep -m1 -A 30 '^failures:' said || tail -5 said)"
matches "what it says" "$(cat said)" 'test result: ok\. [1-9][0-9]+ passed; 0 failed'
ip addr del fd09::1/64 dev "$interface"
