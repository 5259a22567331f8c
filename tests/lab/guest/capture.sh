# shellcheck shell=bash
# Sourced in the guest after rdma-siw.sh: captures what goes over lo while commands run.

# start_capture FILE PORT: of a TCP port, into FILE.
start_capture() {
    CAPTURE=$1
    # A full capture is written in memory: the folder that the guest shares is slow.
    tcpdump -i lo -s 0 -B 65536 -U -Z root -w /tmp/capture "tcp port $2 or udp port 9" 2>"${1%.pcap}.tcpdump.log" &
    CAPTURE_PID=$!
    until [ -s /tmp/capture ]; do sleep 0.2; done
}

# Ends it. What tcpdump has not read by then would be lost: it has read all that came before this
# mark.
end_capture() {
    local try
    echo "the end of the capture" >/dev/udp/127.0.0.1/9
    for try in $(seq 300); do
        ! grep -qa "the end of the capture" /tmp/capture || break
        sleep 0.2
    done
    kill -INT "$CAPTURE_PID"
    wait "$CAPTURE_PID" || true
    grep -qa "the end of the capture" /tmp/capture || { echo "tcpdump is behind by more than $((try / 5)) s" >&2; return 1; }
    mv /tmp/capture "$CAPTURE"
}

# A command with its time and its status, which does not end the script.
run() {
    local status=0
    printf '\n%s $ %s\n' "$(date +%s.%N)" "$*"
    "$@" || status=$?
    printf '[status %d]\n' "$status"
}
