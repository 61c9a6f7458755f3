#!/bin/sh
# Tries the upload to crates.io of the library and of the crates that it needs, in the order of their dependencies, without
# uploading: each is packaged and built from its package. Options are passed on (--offline, --allow-dirty).
set -eu
cd "$(dirname "$0")/.."
# A package that must not be published says publish = false; cargo takes the others, and knows their order.
cargo publish --workspace --dry-run --locked "$@"
