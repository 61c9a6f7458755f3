#!/bin/sh
# Installs the Debian package in a fresh Debian system, made in a temporary folder, and runs what it installed.
#
#   packaging/test-deb.sh FILE.deb
#
# Needs root, Debian, mmdebstrap, and the package sources of this machine. Exit status 3: one of these is missing.
set -eu
deb=$(realpath "${1:?usage: packaging/test-deb.sh FILE.deb}")
. /etc/os-release
[ "$(id -u)" = 0 ] || { echo "root is needed to install a package in a fresh system" >&2; exit 3; }
[ "$ID" = debian ] || { echo "the fresh system is Debian, this machine is $ID" >&2; exit 3; }
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is not here: apt-get install mmdebstrap" >&2; exit 3; }
sources=/etc/apt/sources.list
[ -e "$sources" ] || sources=/etc/apt/sources.list.d/debian.sources

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM
# gcc and pkg-config compile a C program against what was installed.
mmdebstrap --quiet --variant=minbase --include=gcc,libc6-dev,pkg-config "$VERSION_CODENAME" "$folder/root" "$sources"
cp "$deb" "$folder/root/tmp/package.deb"
cat >"$folder/root/tmp/inside" <<'INSIDE'
set -eu
# Man pages are left out of small systems by a setting of dpkg; here they are a part of what is tested.
rm -f /etc/dpkg/dpkg.cfg.d/*
dpkg --install /tmp/package.deb
devmem-tcp --version
devmem-tcp demo --bytes 64M
devmem-tcp bench pool --reps 1
devmem-tcp lab selftests --tree /nowhere 2>&1 | grep -q "^devmem-lab: .*/nowhere"
pkg-config --modversion devmemtcp
cat >/tmp/open.c <<'C'
#include <devmem_tcp.h>
int main(void)
{
	dmt_stack *stack = dmt_open("mem:package", "address=10.0.0.2/24");
	return !stack || dmt_stack_close(stack) < 0;
}
C
cc /tmp/open.c $(pkg-config --cflags --libs devmemtcp) -o /tmp/open
/tmp/open
for page in man1/devmem-tcp.1 man1/devmem-tcp-recv.1 man1/devmem-bench.1 man1/devmem-lab.1 man3/devmemtcp.3; do
    gzip -dc "/usr/share/man/$page.gz" | grep -q '^\.TH'
done
# The tests of the tool run the completions of all shells; here the installed file of the shell that every Debian has.
bash -c '. /usr/share/bash-completion/completions/devmem-tcp
    COMP_WORDS=(devmem-tcp recv --lis) COMP_CWORD=2
    _devmem__tcp devmem-tcp --lis recv && test "${COMPREPLY[*]}" = --listen'
test -s /usr/share/zsh/vendor-completions/_devmem-tcp
test -s /usr/share/fish/vendor_completions.d/devmem-tcp.fish
dpkg --remove devmem-tcp
test ! -e /usr/bin/devmem-tcp
INSIDE
# A mount namespace, so that nothing is left mounted whatever happens.
# shellcheck disable=SC2016 # the inner shell expands
unshare --mount sh -c '
    mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && mount -t sysfs sysfs "$0/sys" &&
    exec chroot "$0" sh /tmp/inside' "$folder/root"
echo "installed, run and removed: $(basename "$deb")"
