# shellcheck shell=bash
# cpuset.cpus: a core outside of it is refused by number, and more reactors than cores are told of;
# both run under load on what there is.
# shellcheck source=tests/lab/guest/limits.sh
. "$LAB/limits.sh"
in_group cpuset.cpus=1
target_configuration | sed 's/^reactors = 2/reactors = [0]/' >"$RUN/target.toml"
target_refused 'core 0 is not one this process may run on' 'allowed: 1'
target_configuration with-5 >"$RUN/target.toml"
target_accepted
matches "what check says" "$(cat check)" '2 reactor\(s\) on 1 core\(s\)'
matches "what check says" "$(cat check)" 'AllowedCPUs='
runs_under_load 16m
for status in /proc/"$(cat "$RUN/target.pid")"/task/*/status; do
    equal "cores of a thread" "$(awk '/^Cpus_allowed_list:/ { print $2 }' "$status")" 1
done
out_of_group
