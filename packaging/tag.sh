#!/bin/sh
# Makes the tag of a release: v and the version of Cargo.toml, on the commit that is checked out, with the section of the changelog.
#
#   packaging/tag.sh            after `.ci/run --require-all`; `git push REMOTE vVERSION` publishes it
#
# Refuses what would not be a release: changes that are not committed, packages with different versions, a changelog without a
# dated section, a tagger whose address takes no mail (SECURITY.md sends reports there). Signed if git is set up to
# (tag.gpgSign).
set -eu
cd "$(dirname "$0")/.."
fail() {
    echo "no tag: $1" >&2
    exit 1
}
version_of() { sed -n '/^\[\(workspace.\)\{0,1\}package\]/,/^\[[a-z.]*\]$/s/^version = "\(.*\)"/\1/p' "$1"; }

version=$(version_of Cargo.toml)
tag=v$version
[ -n "$version" ] || fail "Cargo.toml has no version"
[ "$(version_of crates/doors/python/Cargo.toml)" = "$version" ] || fail "the Python package has another version than $version"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed"
! git rev-parse --quiet --verify "refs/tags/$tag" >/dev/null || fail "$tag exists"
section=$(awk -v head="## [$version] - " 'index($0, head) == 1 {found = 1} /^## / && index($0, head) != 1 {found = 0} found' CHANGELOG.md)
printf '%s\n' "$section" | head -n 1 | grep -qE ' - [0-9]{4}-[0-9]{2}-[0-9]{2}$' || fail "CHANGELOG.md has no section \"## [$version] - YYYY-MM-DD\""
address=$(git var GIT_COMMITTER_IDENT | sed 's/.*<\(.*\)>.*/\1/')
case $address in
*noreply* | *.example | *.invalid | *.local | *.localhost | "") fail "your address in git takes no mail: $address" ;;
esac
# Lines of the changelog that begin with # are headings, and no comments.
printf 'devmem-tcp %s\n\n%s\n' "$version" "$section" | git tag --annotate --cleanup=verbatim --file - "$tag"
echo "$tag: $(git rev-parse --short HEAD), reports of vulnerabilities go to $address"
