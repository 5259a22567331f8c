# shellcheck shell=bash
# Fifty times, five at once: connect, ask for the namespaces, disconnect; every time the same
# answer.
for ((round = 1; round <= 10; round++)); do
    for at in 1 2 3 4 5; do
        begin "$at" capstan_to list-ns
    done
    for at in 1 2 3 4 5; do
        finish $at >>lists
    done
done
equal "lists with NSIDs 1 and 3" "$(sed 's/.*://' lists | sort | uniq -c | awk '{ print $1, $2 }')" "50 0x1
50 0x3"
random data 4096
capstan_to write -N 3 -z 4096 -d data
capstan_to read -N 3 -z 4096 -d back
same "the first block after that" back data
