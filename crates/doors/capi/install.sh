#!/bin/sh
# Installs the C library under PREFIX: a shared object with versioned symbols and without others, the static library, the
# header, the pkg-config file, the man page. With --uninstall, removes these files.
#
#   cargo build --release -p devmem-tcp-c
#   [DESTDIR=FOLDER] crates/doors/capi/install.sh PREFIX [FOLDER of libdevmemtcp.a, release in cargo's target folder by default]
#   [DESTDIR=FOLDER] crates/doors/capi/install.sh --uninstall PREFIX
#
# With DESTDIR everything is put below that folder and still says that it is in PREFIX, as packages are made.
#
# The shared object is linked here and not by cargo: rustc (1.95) hands the linker an anonymous version script of its own
# for every cdylib, before any argument of ours. GNU ld refuses a second one with names ("anonymous version tag cannot
# be combined with other version tags"); lld takes both, and gives every symbol the first that names it, which is
# rustc's: the library that cargo links has no versions either way. A version in a symbol's own name (.symver, name@@node)
# has to stand in the object file that defines it, and rustc chooses which that is.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
action=install
if [ "${1:-}" = --uninstall ]; then
	action=uninstall
	shift
fi
prefix=${1:?"usage: [DESTDIR=FOLDER] install.sh PREFIX [FOLDER of libdevmemtcp.a], or install.sh --uninstall PREFIX"}
built=${2:-${CARGO_TARGET_DIR:-$here/../../../target}/release}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../../../Cargo.toml")
soname=libdevmemtcp.so.0

case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
to=${DESTDIR:-}$prefix
if [ $action = uninstall ]; then
	rm -f "$to"/lib/libdevmemtcp.so "$to/lib/$soname" "$to"/lib/libdevmemtcp.so.*.*.* "$to/lib/libdevmemtcp.a" \
		"$to/include/devmem_tcp.h" "$to/lib/pkgconfig/devmemtcp.pc" "$to/share/man/man3/devmemtcp.3"
	exit
fi
[ -e "$built/libdevmemtcp.a" ] || {
	echo "no libdevmemtcp.a in $built; build it first: cargo build --release -p devmem-tcp-c" >&2
	exit 1
}
mkdir -p "$to/lib/pkgconfig" "$to/include" "$to/share/man/man3"
${CC:-cc} -shared -s -o "$to/lib/libdevmemtcp.so.$version" \
	-Wl,-soname,$soname -Wl,--version-script="$here/devmemtcp.map" -Wl,--gc-sections \
	-Wl,-u,dmt_open -Wl,--whole-archive "$built/libdevmemtcp.a" -Wl,--no-whole-archive \
	-lgcc_s -lpthread -lm -ldl -lc
ln -sf "libdevmemtcp.so.$version" "$to/lib/$soname"
ln -sf $soname "$to/lib/libdevmemtcp.so"
cp "$built/libdevmemtcp.a" "$to/lib/"
cp "$here/include/devmem_tcp.h" "$to/include/"
cp "$here/devmemtcp.3" "$to/share/man/man3/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/devmemtcp.pc.in" \
	> "$to/lib/pkgconfig/devmemtcp.pc"
