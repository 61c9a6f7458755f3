# shellcheck shell=sh
# Sourced by the scripts of this folder, in the root of the repository.
#
# Builds go to $target, as cargo's do; what a release consists of goes to $dist, with its bill of materials and checksums.

target=${CARGO_TARGET_DIR:-target}
case $target in
/*) ;;
*) target=$PWD/$target ;;
esac
dist=$PWD/dist
mkdir -p "$dist"

# Finds a program that cargo installs, or installs it for these scripts alone; fails if cargo cannot.
cargo_tool() {
    PATH=$target/ci-tools/bin:$PATH
    command -v "$1" >/dev/null || cargo install --quiet --locked --debug --root "$target/ci-tools" "$1"
}

# Writes the bill of materials of the package with the manifest $1 to $dist/$2.cdx.json: every crate that is compiled into it.
bill_of_materials() {
    cargo_tool cargo-cyclonedx || {
        echo "no bill of materials: cargo-cyclonedx is not here, and cargo cannot install it" >&2
        return 0
    }
    # It writes beside the manifests of all packages of the workspace.
    bill=devmem-bill-of-materials
    cargo cyclonedx --quiet --manifest-path "$1" --format json --all-features --no-build-deps --override-filename $bill
    mv "$(dirname "$1")/$bill.json" "$dist/$2.cdx.json"
    find . -path ./target -prune -o -name $bill.json -exec rm {} +
}

# Writes the checksums of all files of the release: `sha256sum --check SHA256SUMS` in that folder checks them.
checksums() (
    cd "$dist" || exit
    rm -f SHA256SUMS
    sha256sum -- * >.sums
    mv .sums SHA256SUMS
)
