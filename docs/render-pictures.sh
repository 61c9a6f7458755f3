#!/bin/sh
# Renders docs/src/pictures/*.pikchr to SVG, with a font that every system has. Needs pikchr (https://pikchr.org).
set -eu
cd "$(dirname "$0")/src/pictures"
command -v pikchr >/dev/null || { echo "pikchr is not here: build it from https://pikchr.org" >&2; exit 3; }
for source in *.pikchr; do
    pikchr --svg-only "$source" | sed '1s/<svg /<svg font-family="sans-serif" /' > "${source%.pikchr}.svg"
done
