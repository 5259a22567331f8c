#!/usr/bin/env bash
# In the guest: is the lab alive? Loads siw and shows its device.
set -euo pipefail
uname -a
# shellcheck source=tests/lab/guest/rdma-siw.sh
. "$LAB/rdma-siw.sh"
rdma link
ibv_devinfo
