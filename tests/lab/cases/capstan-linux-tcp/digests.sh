# shellcheck shell=bash
# Header and data digests on the Linux target, which computes and checks its own.
# shellcheck source=tests/lab/cases/capstan-capstan-tcp/digests.sh
. "$LAB/cases/capstan-capstan-tcp/digests.sh"
