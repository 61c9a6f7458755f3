#!/bin/sh
# Renders docs/src/pictures/*.pikchr to SVG, with a font that every system has. Needs pikchr (https://pikchr.org), or fossil
# (`apt install fossil`), which contains it.
set -eu
cd "$(dirname "$0")/src/pictures"
if command -v pikchr >/dev/null; then
    render() { pikchr --svg-only "$1"; }
elif command -v fossil >/dev/null; then
    render() { fossil pikchr "$1" | sed '1s/ class="[^"]*"//'; }
else
    echo "neither pikchr nor fossil is here: apt install fossil" >&2
    exit 3
fi
for source in *.pikchr; do
    render "$source" | sed '1s/<svg /<svg font-family="sans-serif" /' > "${source%.pikchr}.svg"
done
