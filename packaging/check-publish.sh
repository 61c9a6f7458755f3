#!/bin/sh
# Tries the upload to crates.io of the library and of the crates that it needs, in the order of their dependencies, without
# uploading: each is packaged and built from its package. Options are passed on (--offline, --allow-dirty).
set -eu
cd "$(dirname "$0")/.."
# The packages of an earlier run, which cargo keeps by version: it would build the new ones against them.
rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/devmem-* "${CARGO_HOME:-$HOME/.cargo}"/registry/cache/-*/devmem-*
# And what was built from them.
rm -rf "${CARGO_TARGET_DIR:-target}"/package "${CARGO_TARGET_DIR:-target}"/*/.fingerprint/devmem-*
# A package that must not be published says publish = false; cargo takes the others, and knows their order.
cargo publish --workspace --dry-run --locked "$@"
