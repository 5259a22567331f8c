# shellcheck shell=bash
# Nobody names a provider: where an RDMA device reaches the address it is taken, but siw's, and one
# line says what and why.
capstan -v discover -a "$TARGET_ADDRESS" -w "$HOST_ADDRESS" "${AS_HOST[@]}" --provider auto >found 2>said
cat said
matches "what was found" "$(cat found)" "$SUBSYSTEM"
case $LINK in
    rxe) matches "what capstan says" "$(cat said)" 'using the verbs provider: RDMA device rxe[01] has or reaches' ;;
    *) matches "what capstan says" "$(cat said)" 'using the iwarp provider: RDMA device siw0 is siw' ;;
esac
