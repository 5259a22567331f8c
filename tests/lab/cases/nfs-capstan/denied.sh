# shellcheck shell=bash
# A client whose address is in no network of any export: mounting says at once that the server
# denies access, by every version, and the log names the address once a minute at most. A reload
# that adds its network lets it in, and one that takes the last export away leaves the server
# running.
of_networks() { # of_networks SED_COMMAND
    target_configuration | sed "$1" >"$RUN/target.toml"
    target_reload
}
by_second() { # by_second VERSION
    # shellcheck disable=SC2016 # They are the inner shell's.
    nsenter --net=/run/netns/second unshare --uts bash -c 'hostname second && timeout 20 mount -t nfs -o "retry=0,$1" "$2" "$3"' mount \
        "$(options_of "$1" tcp)" "$TARGET_ADDRESS:$(export_path "$1")" "$SECOND"
}

mkdir -p "$SECOND"
all_networks() { of_networks ''; }
# shellcheck disable=SC2034 # case.sh runs it.
AT_THE_END=all_networks
of_networks 's|, "10.10.0.0/24"||'
for version in 4.2 4.1 3; do
    refused 'access denied by server' by_second "$version"
done
equal "lines of the log with the address" "$(grep -c 'WARN no network of any export has 10.10.0.2; add one' "$TARGET_LOG")" 1
of_networks ''
by_second 4.2 || fail "a client whose network was added is refused"
equal "lines of the log for one mount" "$(grep -c '10\.10\.0\.2 has come: NFS 4\.2, owner ' "$TARGET_LOG")" 1
umount "$SECOND"
refused 'No such file or directory' nsenter --net=/run/netns/second mount -t nfs -o "retry=0,$(options_of 4.2 tcp)" "$TARGET_ADDRESS:/none" "$SECOND"
matches "the log" "$(cat "$TARGET_LOG")" '10\.10\.0\.2 finds no /none: there is no such path; for it there is /'
# shellcheck disable=SC2016 # The last line of sed.
of_networks '/^\[\[export\]\]/,$d'
refused 'access denied by server' by_second 4.2
target_runs || fail "the target has ended with its last export"
