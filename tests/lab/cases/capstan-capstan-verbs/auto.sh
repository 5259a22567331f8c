# shellcheck shell=bash
# No provider is named: an RDMA device that reaches the address is taken, except siw's, and one line
# says which provider and why.
capstan -v discover -a "$TARGET_ADDRESS" -w "$HOST_ADDRESS" "${AS_HOST[@]}" --provider auto >found 2>said
cat said
matches "what was found" "$(cat found)" "$SUBSYSTEM"
case $LINK in
    rxe) matches "what capstan says" "$(cat said)" 'using the verbs provider: RDMA device rxe[01] has or reaches' ;;
    *) matches "what capstan says" "$(cat said)" 'using the iwarp provider: RDMA device siw0 is siw' ;;
esac
