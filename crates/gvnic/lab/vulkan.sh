#!/usr/bin/env bash
# Runs test programs in a guest with Mesa's software driver of Vulkan, which makes its memory a dma-buf by /dev/udmabuf: the NIC of
# the guest's kernel receives into it and sends from it, and the driver copies it.
#
# Usage: vulkan.sh PROGRAM[:FILTER]...    DEVMEM_TCP: the tool. Exit status 3: the packages of the driver cannot be fetched
#
# The packages are those of a Debian release whose driver exports dma-bufs (Mesa 24.1 or newer), with its C library: the programs
# are started by its dynamic loader. They stay in vulkan-guest of cargo's target folder.
set -euo pipefail
cd "$(dirname "$0")/../../.."

tool=${DEVMEM_TCP:-${CARGO_TARGET_DIR:-target}/release/devmem-tcp} folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/vulkan-guest

fetch() {
    rm -rf "$folder"
    mkdir -p "$folder"/{lists/partial,archives/partial,root}
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg archive
    # The archive from which this machine gets its own release has the others, too.
    # shellcheck disable=SC2016 # apt expands
    archive=$(apt-get -o "Dir::State::Lists=$folder/lists" indextargets --no-release-info \
        --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v own="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" '$1 == own && $2 == "main" && !n++ { print $3 }')
    [ -n "$archive" ] || { echo "apt on this machine has no source for its own release" >&2 && return 1; }
    echo "deb [signed-by=$keys] $archive trixie main" >"$folder/sources"
    : >"$folder/status"
    local private=(-qq -o "Dir::State::Lists=$folder/lists" -o "Dir::State::status=$folder/status"
        -o "Dir::Cache::Archives=$folder/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
        -o "Dir::Etc::sourcelist=$folder/sources" -o Dir::Etc::sourceparts=/dev/null
        -o APT::Update::Error-Mode=any -o APT::Install-Recommends=false -o APT::Sandbox::User= -o Debug::NoLocking=true)
    timeout 120 apt-get "${private[@]}" update &&
        timeout 300 apt-get "${private[@]}" install --yes --download-only mesa-vulkan-drivers libvulkan1 libc6 || return
    local package
    for package in "$folder"/archives/*.deb; do dpkg-deb --extract "$package" "$folder/root" || return; done
    rm -rf "$folder"/{archives,lists,root/usr/share/doc}
    touch "$folder/complete"
}

if ! [ -e "$folder/complete" ] && ! fetch; then
    echo "the packages of Mesa's driver cannot be fetched: see the messages of apt-get above" >&2
    exit 3
fi

cat >"$folder/guest.sh" <<'GUEST'
libraries=$(echo /vulkan/root/usr/lib/*-linux-gnu)
export DEVMEM_LIBVULKAN=$libraries/libvulkan.so.1 DEVMEM_REQUIRE=vulkan
export VK_DRIVER_FILES=/vulkan/root/usr/share/vulkan/icd.d/lvp_icd.json
failed=0
for test in "$@"; do
    filter=${test#*:}
    [ "$filter" != "$test" ] || filter=
    echo "=== in the guest, with Vulkan: ${test%%:*}"
    "$libraries"/ld-linux-*.so.* --library-path "$libraries" "/${test%%:*}" --test-threads=1 $filter || failed=1
done
exit $failed
GUEST

put=() names=()
for test in "$@"; do
    program=${test%%:*}
    name=$(basename "$program")
    put+=(--put "$program:/$name")
    names+=("$name${test#"$program"}")
done
exec "$tool" lab run --share "$folder:/vulkan" "${put[@]}" -- sh /vulkan/guest.sh "${names[@]}"
