#!/usr/bin/env bash
# Runs the released NCCL in a guest, over the plugin on the guest's two NICs: its buffers are dma-bufs, which the guest's kernel sends from, and
# binds for receiving. The wire between the NICs loses, reorders and duplicates packets.
#
# Usage: nccl.sh PROGRAM FOLDER    DEVMEM_TCP: the tool
#
# PROGRAM is the test program `released` of devmem-nccl, as cargo has built it; FOLDER has VERSION/libnccl.so.2.
set -euo pipefail

tool=${DEVMEM_TCP:-${CARGO_TARGET_DIR:-target}/release/devmem-tcp}
program=$1 folder=$2 built=$(dirname "$1")

put=(--put "$program:/released")
for library in libnccl_net_devmem.so libdevmem_gpu_stub.so; do put+=(--put "$built/$library:/$library"); done
# What NCCL itself needs. It stays in the shared folder: a guest has no memory for hundreds of megabytes that nothing touches.
while read -r library; do put+=(--put "$library:$library"); done < <(
    ldd "$folder"/*/libnccl.so.2 | awk '$2 == "=>" && $3 ~ /^\// && !seen[$3]++ { print $3 }'
)

# NCCL asks for a file system in /dev/shm.
exec "$tool" lab run --memory 2G --impair loss=1%,reorder=2%,dup=1%,seed=5 --limit 540 \
    --share "$folder:/nccl" "${put[@]}" --env DEVMEM_TEST_NCCL=/nccl --env DEVMEM_REQUIRE=nic,kernel,udmabuf,nccl \
    -- sh -c 'mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm && exec /released kernel_nics'
