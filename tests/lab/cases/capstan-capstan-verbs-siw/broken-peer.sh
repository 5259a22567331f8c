# shellcheck shell=bash
# A peer breaks the rules: it numbers its messages wrongly, or begins one in the middle. The device
# breaks the queue pair (an asynchronous event, "QP fatal"); the target ends that connection, says
# why and whose it was, and serves the others. The receive that fails with it may be seen before the
# event.
why="the device broke the queue pair \(QP fatal\)|Recv with $HOST_ADDRESS:[0-9]+ failed: general error; the device failed"
for question in send_msn_9 send_offset_4; do
    python3 "$LAB/probe_siw.py" "$TARGET_ADDRESS" 4420 nqn.2014-08.org.nvmexpress:uuid:cccccccc-1111-2222-3333-444444444444 \
        "$SUBSYSTEM" "$question" | tee "$question"
    matches "$question" "$(cat "$question")" "connected, controller"
    matches "$question" "$(cat "$question")" "TERMINATE"
done
within 10 "the target says what became of both" target_said "disconnected: ($why).* peer=$HOST_ADDRESS" 2
verify -N 1 --bs 4k --iodepth 4 --size 256k
