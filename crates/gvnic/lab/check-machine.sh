#!/usr/bin/env bash
# Starts one guest with every option for its machine, and compares what the guest sees with what was asked for.
#
# Usage: check-machine.sh [OPTIONS of `lab run`]    DEVMEM_TCP: the program; PORT: a free port for the debugger
set -euo pipefail

tool=${DEVMEM_TCP:-${CARGO_TARGET_DIR:-target}/release/devmem-tcp} port=${PORT:-41234}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkdir "$folder/share"
echo "from this machine" >"$folder/share/in"
truncate -s 1M "$folder/raw"
printf 'first' | dd of="$folder/raw" conv=notrunc status=none
# A raw disk that a guest has given the first bytes of another format.
printf 'QFI\xfb' >"$folder/forged"
truncate -s 1M "$folder/forged"

is() {
    [ "$2" = "$3" ] && return
    echo "$1: $2, expected $3"
    exit 1
}

# Each line: what it is, what the guest has, what was asked for.
cat >"$folder/guest.sh" <<'GUEST'
is() {
    [ "$2" = "$3" ] && return
    echo "in the guest: $1: $2, expected $3"
    failed=1
}
failed=0
is processors "$(grep -c ^processor /proc/cpuinfo)" 3
is NICs "$(cd /sys/class/net && echo eth*)" "eth1 eth2 eth3"
is "NICs of the peer" "$(ip netns exec peer ls /sys/class/net)" "$(printf 'eth0\nlo')"
is queues "$(ls /sys/class/net/eth3/queues | grep -c ^rx)" 8
is parameters "$(grep -o 'page_owner=on lab_word=1' /proc/cmdline)" "page_owner=on lab_word=1"
is "a shared file" "$(cat /mnt/share/in)" "from this machine"
echo "from the guest" >/mnt/share/out
is "a disk" "$(head -c 5 /dev/vda)" first
printf second >/dev/vda
is "a disk that is read only" "$(cat /sys/block/vda/ro /sys/block/vdb/ro)" "$(printf '0\n1')"
is "a disk's bytes" "$(head -c 3 /dev/vdb)" QFI
exit $failed
GUEST

# The debugger: QEMU's answer to "why did you stop" while the guest waits, then "detach", which starts the guest.
debug() {
    local reply
    for _ in {1..600}; do
        sleep 0.1
        { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null && break
    done
    printf '+$?#3f' >&3
    read -r -N 5 -t 20 reply <&3
    # shellcheck disable=SC2016 # a dollar sign begins a message to gdb's server
    printf '+$D#44' >&3
    echo "$reply"
}
debug >"$folder/debugger" &

"$tool" lab run --share "$folder/share:/mnt/share" --disk "$folder/raw" --disk "$folder/forged,ro,format=raw" \
    --gdb="$port" --gdb-wait --cpus 3 --nics 4 --queues 8 --append 'page_owner=on lab_word=1' \
    --limit 300 --put "$folder/guest.sh" "$@" -- sh /guest.sh
wait
is "what the guest wrote to the shared folder" "$(cat "$folder/share/out")" "from the guest"
is "what the guest wrote to its disk" "$(head -c 6 "$folder/raw")" second
# shellcheck disable=SC2016 # as above
is "what the debugger was told" "$(cat "$folder/debugger")" '+$T05'
echo "shared folder, disks, debugger, processors, NICs, queues and parameters are those that were asked for"
