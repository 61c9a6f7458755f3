#!/bin/sh
# Builds the Debian package: tool, benchmarks, C library with header and pkg-config file, man pages, completions.
#
#   packaging/deb.sh            writes target/debian/devmem-tcp_VERSION_ARCH.deb and prints its path
#
# Needs cargo, cc and cargo-deb (cargo install cargo-deb). What the package has: [package.metadata.deb] of
# bin/devmem-tcp/Cargo.toml; what is no program of that package is put together in target/package first.
set -eu
cd "$(dirname "$0")/.."
command -v cargo-deb >/dev/null || { echo "cargo-deb is not here: cargo install --locked cargo-deb" >&2; exit 3; }
stage=$PWD/target/package
rm -rf "$stage"
mkdir -p "$stage"

cargo build --release --package devmem-tcp-cli --package devmem-bench --package devmem-lab-tests --package devmem-tcp-c --features devmem-tcp-cli/watch,devmem-tcp-cli/vulkan,devmem-tcp-c/vulkan
cargo run --quiet --package devmem-tcp-cli --example dist "$stage"
cp packaging/*.1 "$stage/man/"
DESTDIR=$stage/c crates/doors/capi/install.sh /usr
cargo deb --quiet --package devmem-tcp-cli --no-build --strip
ls target/debian/devmem-tcp_*.deb
