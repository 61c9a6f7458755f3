#!/bin/sh
# Links libstreamer.so with versions of its symbols, and without others.
#
#   cargo build --release -p devmem-streamer
#   crates/doors/streamer/link.sh OUTPUT [FOLDER of libstreamer.a, release in cargo's target folder by default]
#
# It is linked here and not by cargo for the reason that crates/doors/capi/install.sh has: rustc hands the linker a version script of its own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?"usage: link.sh OUTPUT [FOLDER of libstreamer.a]"}
built=${2:-${CARGO_TARGET_DIR:-$here/../../../target}/release}
[ -e "$built/libstreamer.a" ] || {
	echo "no libstreamer.a in $built; build it first: cargo build --release -p devmem-streamer" >&2
	exit 1
}
${CC:-cc} -shared -s -o "$out" -Wl,-soname,libstreamer.so -Wl,--version-script="$here/streamer.map" -Wl,--gc-sections \
	-Wl,-u,runai_file_streamer_start -Wl,--whole-archive "$built/libstreamer.a" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
