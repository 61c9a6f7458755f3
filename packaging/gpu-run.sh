#!/usr/bin/env bash
# Proves on a machine with an NVIDIA GPU what the tests of this repository show on a stand-in for its driver.
#
#   packaging/gpu-run.sh build [--dev] [FOLDER]     the bundle, made here: no GPU is needed
#   FOLDER/gpu-run.sh run [OPTIONS OF run.py]       every step, there: only Python 3.11 and the driver are needed
#   FOLDER/gpu-run.sh stand-in LIBRARY [OPTIONS]    the same steps with the stand-in, LIBRARY (libdevmem_gpu_stub.so)
#
# FOLDER is gpu-run in the target folder. --dev bundles what `cargo build` and `cargo test` have built, without optimisation, for CI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# The oldest glibc of the packages (Debian 12); the machine with the GPU may be older than this one.
glibc=2.36
# Of the whole bundle: it is carried to the other machine.
most_mib=40

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$here/gpu-run.sh" >&2
    exit 2
}

# Prints the path of the test program $1 of package $2.
test_program() {
    local packages=(--release --package "$2")
    [ "$built" = release ] || packages=(--workspace)
    cargo test "${packages[@]}" --test "$1" --no-run --message-format json-render-diagnostics |
        python3 -c 'import json, sys
found = None
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        found = message["executable"]
print(found) if found else sys.exit("cargo has built no test program " + sys.argv[1])' "$1"
}

build() {
    local root built=release folder
    root=$(cd "$here/.." && pwd)
    cd "$root"
    local target=${CARGO_TARGET_DIR:-$root/target}
    if [ "${1:-}" = --dev ]; then
        shift
        built=debug
        # With the features of fewer packages, libraries would be linked anew under the tests that run beside this.
        cargo build --workspace --lib --bins --tests
    else
        cargo build --release --bin devmem-tcp
        cargo build --release --package devmem-nccl --package devmem-nixl --package devmem-bench
    fi
    folder=${1:-$target/gpu-run}
    local gpu judge nixl
    gpu=$(test_program gpu devmem-gpu-stub)
    judge=$(test_program judge devmem-nccl)
    nixl=$(test_program two_processes devmem-nixl)
    rm -rf "$folder"
    mkdir -p "$folder"/{bin,tests,python}
    cp "$target/$built/devmem-tcp" "$target/$built/devmem-bench" "$folder/bin/"
    # Beside the judge and the tests of NIXL's backend, which look for them there.
    cp "$target/$built"/{libnccl_net_devmem,libplugin_DEVMEM}.so "$folder/tests/"
    cp "$gpu" "$folder/tests/gpu"
    cp "$judge" "$folder/tests/judge"
    cp "$nixl" "$folder/tests/nixl"
    strip "$folder"/bin/* "$folder"/tests/*
    cp packaging/gpu/*.py packaging/gpu-run.sh "$folder/"
    python_package "$folder"
    check "$folder"
    # A quarter of its size; `run` unpacks it again.
    (cd "$folder" && python3 -m tarfile -c tests.tar.xz tests && rm -r tests)
    size "$folder"
    echo "$folder"
}

# Unpacks the wheel: the other machine needs no pip.
python_package() {
    local maturin=${MATURIN:-maturin} wheels
    command -v "$maturin" >/dev/null || {
        echo "the bundle has no Python package: there is no maturin (pip install maturin, or name it in MATURIN)" >&2
        return
    }
    wheels=$(mktemp -d)
    CARGO_TARGET_DIR=${PYTHON_TARGET_DIR:-$target/python} "$maturin" build --release --strip --quiet \
        --manifest-path crates/doors/python/Cargo.toml --out "$wheels"
    python3 -m zipfile -e "$wheels"/*.whl "$1/python"
    rm -r "$wheels"
}

# The bundle is small enough.
size() {
    local size
    size=$(du --apparent-size -sm "$1" | cut -f1)
    [ "$size" -lt $most_mib ] || { echo "the bundle has $size MiB, not less than $most_mib" >&2; [ "$built" = debug ] || exit 1; }
}

# Unpacks the test programs.
unpack() {
    [ -d "$here/tests" ] || python3 -m tarfile -e "$here/tests.tar.xz" "$here"
}

# No part of the bundle needs a newer C library.
check() {
    local needs
    needs=$(find "$1" -type f \( -perm -u+x -o -name '*.so*' \) ! -name '*.sh' -exec objdump -T {} + 2>/dev/null |
        grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
    [ "$(printf '%s\n' "GLIBC_$glibc" "$needs" | sort -V | tail -1)" = "GLIBC_$glibc" ] || {
        echo "the bundle needs $needs: build it on a machine with glibc $glibc (Debian 12)" >&2
        exit 1
    }
}

case ${1:-} in
build)
    shift
    build "$@"
    ;;
run)
    shift
    unpack
    exec python3 "$here/run.py" "$@"
    ;;
stand-in)
    [ -f "${2:-}" ] || usage
    DEVMEM_LIBCUDA=$(realpath "$2") DEVMEM_GPU_RUN=stand-in
    export DEVMEM_LIBCUDA DEVMEM_GPU_RUN STUB_GPU=${STUB_GPU:-polls=2}
    shift 2
    unpack
    exec python3 "$here/run.py" "$@"
    ;;
*) usage ;;
esac
