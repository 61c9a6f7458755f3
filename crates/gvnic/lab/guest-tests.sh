#!/usr/bin/env bash
# Runs in a guest the tests of the workspace that need what only a guest has: a NIC with device memory, a kernel with it,
# /dev/udmabuf. One boot for all programs; one failure hides no other. A test that is skipped there has failed.
#
# Usage: guest-tests.sh [--list] [PACKAGES as for cargo test; default: --workspace]    DEVMEM_TCP: the tool
#
# The programs are found in what is built: those that can say, outside of a guest, that a guest runs the test
# (devmem_linux::test_util::skip_outside_guest). Cargo.toml of a package may name the tests of a program that do; else all do.
# It may name others for two guests, each with one NIC at an end of a wire.
set -euo pipefail
cd "$(dirname "$0")/../../.."

tool=${DEVMEM_TCP:-${CARGO_TARGET_DIR:-target}/release/devmem-tcp} only_list=
if [ "${1:-}" = --list ]; then only_list=1 && shift; fi
[ $# -gt 0 ] || set -- --workspace
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mkdir -p "$target"
folder=$(mktemp -d) kept=$(mktemp -d "$target/guest-XXXXXX")
trap 'rm -rf "$folder" "$kept"' EXIT

# Each line: PACKAGE/PROGRAM or PACKAGE/example/PROGRAM, its path, and the names of its tests for the guest; those for two guests are in the
# file "pairs".
list() {
    cargo metadata --no-deps --format-version 1 >"$folder/metadata"
    # Its messages tell what is wrong if it fails; one that only says what it compiles is left out.
    cargo test "$@" --no-run --quiet --message-format json-render-diagnostics >"$folder/messages"
    python3 - "$folder" <<'PYTHON'
import json, sys

MARK = b"a guest of the lab runs this test: .ci/run --only lab"
folder = sys.argv[1]
metadata = json.load(open(f"{folder}/metadata"))
packages = {package["id"]: package for package in metadata["packages"]}


def words_of(kind):
    return {
        (package["name"], program): words
        for package in packages.values()
        for program, words in ((package["metadata"] or {}).get("lab") or {}).get(kind, {}).items()
    }


named, pairs = words_of("tests"), words_of("pairs")
built = set()
of_pairs = open(f"{folder}/pairs", "w")
for line in open(f"{folder}/messages"):
    message = json.loads(line) if line.startswith("{") else {}
    if not message.get("executable") or not message["profile"]["test"] or message["package_id"] not in packages:
        continue
    target = message["target"]
    # An example and a test may have the same name.
    place = "example/" if "example" in target["kind"] else ""
    key = packages[message["package_id"]]["name"], place + target["name"]
    if MARK in open(message["executable"], "rb").read():
        built.add(key)
        print("/".join(key), message["executable"], *named.get(key, []))
        if key in pairs:
            print("/".join(key), message["executable"], *pairs[key], file=of_pairs)
    elif key in named:
        sys.exit(f"{'/'.join(key)} has no test for a guest, and Cargo.toml names some")
compiled = {package for package, _ in built}
for key in (named.keys() | pairs.keys()) - built:
    if key[0] in compiled:
        sys.exit(f"Cargo.toml names tests of {'/'.join(key)} for a guest, and there is no such program")
if not built:
    sys.exit("no test program for a guest was built")
PYTHON
}

list "$@" >"$folder/list"
if [ -n "$only_list" ]; then
    cat "$folder/list"
    exit
fi

# Prints the libraries that a program of the list loads: what it judges, and the driver of its GPUs.
libraries_of() {
    case $1 in
    devmem-nccl/judge) echo libnccl_net_devmem.so libdevmem_gpu_stub.so ;;
    devmem-nixl/two_processes) echo libplugin_DEVMEM.so libdevmem_gpu_stub.so ;;
    esac
}

# Keeps the programs of a list, with their libraries: another build may link the same files anew.
keep() {
    local program path library
    while read -r program path _; do
        cp -lf "$path" "$kept/"
        for library in $(libraries_of "$program"); do
            cp -lf "${path%/*}/$library" "$kept/"
        done
    done <"$1"
    sed -i "s| /[^ ]*/| $kept/|" "$1"
}

keep "$folder/list"
keep "$folder/pairs"

# Runs programs of the list with options of `lab run`; each must have run a test, and none may be skipped or fail.
in_guest() {
    local list=$1 needs=$2 script='failed=0; ' put=() program path filters library count=0
    shift 2
    while read -r program path filters; do
        count=$((count + 1))
        local name=$count-${program##*/}
        put+=(--put "$path:/$name")
        for library in $(libraries_of "$program"); do put+=(--put "$kept/$library:/$library"); done
        # vulkan.sh runs those of Vulkan; the kept inputs of fuzz targets are files of this tree.
        script+="echo '=== in the guest: $program'; "
        script+="/$name --test-threads=1 --skip vulkan:: --skip fuzz_replay:: $filters || failed=1; "
    done <"$list"
    local status=0
    "$tool" lab run --memory 2G --env DEVMEM_TEST_TOOL=/bin/devmem-tcp --env "DEVMEM_REQUIRE=$needs" "${put[@]}" "$@" \
        -- sh -c "$script exit \$failed" | tee "$folder/log" || status=$?
    [ $status = 0 ] || return $status
    [ "$(grep -cE '^test result: ok\. [1-9]' "$folder/log")" -eq $count ] || {
        echo "a test program ran no test in the guest"
        return 1
    }
}

# nccl.sh runs the test with the released NCCL.
grep -v '^devmem-nccl/released ' "$folder/list" >"$folder/all"
in_guest "$folder/all" nic,kernel,udmabuf

# The first guest only serves the second one. The second time, the wire loses, reorders and duplicates packets.
if [ -s "$folder/pairs" ]; then
    in_guest "$folder/pairs" nic,kernel,udmabuf,pair --pair
    in_guest "$folder/pairs" nic,kernel,udmabuf,pair --pair --impair loss=1%,reorder=2%,dup=1%,seed=5
fi

# The tests of bytes that a NIC leaves with the headers: its other end adds the option that only they want.
printf '#!/bin/sh\nexec "%s" "$@" --linear 100\n' "$(realpath "$tool")" >"$folder/nic"
chmod +x "$folder/nic"
grep -E '^(devmem-tcp/kernel_nic|devmem-tcp-cli/lab_nic) ' "$folder/list" | sed 's/$/ bytes_left_with_the_headers linear_bytes/' >"$folder/linear" || exit 0
in_guest "$folder/linear" nic,linear --nic-program "$folder/nic" --env DEVMEM_TEST_LINEAR=1
