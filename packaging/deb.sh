#!/bin/sh
# Builds the Debian package: tool, benchmarks, tests in a guest, C library with header and pkg-config file, man pages, completions.
#
#   packaging/deb.sh            writes dist/devmem-tcp_VERSION_ARCH.deb, its bill of materials and checksums; prints the path
#
# Needs cargo and cc, and installs cargo-deb in the target folder where it is missing. DEBFULLNAME and DEBEMAIL name the maintainer, as for other
# tools of Debian. What the package has: [package.metadata.deb] of bin/devmem-tcp/Cargo.toml; what is no program of that package is
# put together in release/package of the target folder first.
set -eu
cd "$(dirname "$0")/.."
. packaging/common.sh
cargo_tool cargo-deb || { echo "cargo-deb is not here, and cargo cannot install it" >&2; exit 3; }
stage=$target/release/package
rm -rf "$stage" "$dist"/devmem-tcp_*.deb
mkdir -p "$stage"

cargo build --release --package devmem-tcp-cli --package devmem-bench --package devmem-lab-tests --package devmem-tcp-c \
    --features devmem-tcp-cli/watch,devmem-tcp-cli/vulkan,devmem-tcp-cli/dist,devmem-tcp-c/vulkan
"$target/release/devmem-tcp-dist" "$stage"
cp packaging/*.1 "$stage/man/"
# cargo-deb compresses no page of the target folder.
gzip -9n "$stage"/man/*.1
DESTDIR=$stage/c crates/doors/capi/install.sh /usr "$target/release"
set -- --package devmem-tcp-cli --no-build --strip --output "$dist"
[ -z "${DEBEMAIL:-}" ] || set -- "$@" --maintainer "${DEBFULLNAME:-The devmem-tcp contributors} <$DEBEMAIL>"
cargo deb --quiet "$@"
bill_of_materials bin/devmem-tcp/Cargo.toml devmem-tcp
checksums
ls "$dist"/devmem-tcp_*.deb
