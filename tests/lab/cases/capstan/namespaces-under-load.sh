# shellcheck shell=bash
# A namespace is added and taken away while capstan writes to another: the target tells a host that
# is connected (AEN), and the I/O never fails.
# shellcheck disable=SC2086 # $IN_NETNS is a command and its arguments, or nothing
begin connected ${HOST_IN_NETNS-$IN_NETNS} "$LAB/capstan" -v serve-nbd "${PORTAL[@]}" "${AS_HOST[@]}" -n "$SUBSYSTEM" -N 3 --socket "$WORK/socket"
within 15 "a host is connected" [ -S socket ]
load load 6
told() { [ "$(grep -c 'namespaces changed' connected.out)" -ge "$1" ]; }
target_add_namespace
within 15 "the host hears of the new namespace" told 1
equal "namespaces" "$(capstan_to list-ns | sed 's/.*://' | tr '\n' ' ')" "0x1 0x3 0x5 "
random data 65536
capstan_to write -N 5 -z 65536 -d data
capstan_to read -N 5 -z 65536 -d back
same "what was written to NSID 5" back data
target_remove_namespace
within 15 "the host hears that the namespace went" told 2
equal "namespaces" "$(capstan_to list-ns | sed 's/.*://' | tr '\n' ' ')" "0x1 0x3 "
finish_load load
kill -TERM "$(cat connected.pid)"
finish connected
