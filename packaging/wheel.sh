#!/bin/sh
# Builds the wheel of the Python package: for CPython 3.11 and all later versions (abi3), for Linux systems whose C library is as old
# as this machine's, or older if Zig is its linker.
#
#   packaging/wheel.sh          writes dist/devmem_tcp-VERSION-cp311-abi3-manylinux_*.whl, its bill of materials and checksums;
#                               prints the path. It carries the library for Run:ai's streamer and the backend for NIXL, which needs a compiler for C++20
#   packaging/wheel.sh --zig    without these two, for systems with glibc 2.28 or later (Debian 10, RHEL 8); fetches Zig from Python's index
#
# Zig has a C++ library of its own (libc++), and NIXL's class has members of libstdc++: a plugin that Zig has linked would not fit NIXL's. For both, older
# systems and these two, run packaging/wheel.sh without --zig on a system that is as old as the oldest one.
#
# Needs cargo and python3 with venv; maturin comes from Python's index, into a virtual environment in the target folder.
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh
maturin=maturin
[ "${1:-}" != --zig ] || { maturin='maturin[zig]' && set -- --zig --compatibility manylinux_2_28; }
venv=$target/packaging-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" || { echo "python3 cannot make a virtual environment: apt install python3-venv" >&2; exit 3; }
"$venv/bin/python" -m pip install --quiet "$maturin>=1.16,<2" || { echo "pip cannot install $maturin" >&2; exit 3; }
rm -f "$dist"/devmem_tcp-*.whl
# The library for Run:ai's streamer, with this machine's C library: not for older systems.
library=crates/doors/python/python/devmem_tcp/runai_library
rm -rf "$library"
if [ "$maturin" = maturin ]; then
    cargo build --quiet --release --locked --package devmem-streamer
    mkdir "$library"
    CARGO_TARGET_DIR=$target crates/doors/streamer/link.sh "$library/libstreamer.so"
fi
# The backend for NIXL, which the C++ library of this machine is part of: not for older systems.
plugin=crates/doors/python/python/devmem_tcp/nixl_plugin
rm -rf "$plugin"
if [ "$maturin" = maturin ]; then
    cargo build --quiet --release --locked --package devmem-nixl
    nm -D --defined-only "$target/release/libplugin_DEVMEM.so" | grep -q nixl_plugin_init ||
        { echo "the backend for NIXL lacks its C++ part: install a compiler for C++20 (apt install g++)" >&2; exit 3; }
    mkdir "$plugin"
    strip -o "$plugin/libplugin_DEVMEM.so" "$target/release/libplugin_DEVMEM.so"
fi
# Its own target folder: it is a workspace of its own, with other features of the same crates.
PATH=$venv/bin:$PATH CARGO_TARGET_DIR=$target/python maturin build --quiet --release --strip --locked \
    --manifest-path crates/doors/python/Cargo.toml --out "$dist" "$@"
# Maturin puts the bill of materials into the wheel.
"$venv/bin/python" - "$dist" "$maturin" <<'PYTHON'
import pathlib, sys, zipfile

dist = pathlib.Path(sys.argv[1])
(wheel,) = dist.glob("devmem_tcp-*.whl")
libraries = ["devmem_tcp/nixl_plugin/libplugin_DEVMEM.so", "devmem_tcp/runai_library/libstreamer.so"]
with zipfile.ZipFile(wheel) as files:
    (bill,) = (name for name in files.namelist() if name.endswith(".cyclonedx.json"))
    (dist / "devmem_tcp-python.cdx.json").write_bytes(files.read(bill))
    missing = [name for name in libraries if name not in files.namelist()]
if sys.argv[2] != "maturin":
    print(f"{wheel.name} is without {' and '.join(missing)}: Zig cannot link them; build without --zig for them", file=sys.stderr)
elif missing:
    sys.exit(f"{wheel.name} lacks {' and '.join(missing)}")
PYTHON
checksums
ls "$dist"/devmem_tcp-*.whl
