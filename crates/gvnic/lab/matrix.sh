#!/usr/bin/env bash
# Runs `devmem-tcp lab test` with the kernels of several Debian releases, and prints the results as a table in Markdown.
#
# Usage: matrix.sh [OPTIONS of `lab test`]    DEVMEM_TCP: the tool, beside devmem-lab; SUITES: the releases
set -euo pipefail

tool=${DEVMEM_TCP:-${CARGO_TARGET_DIR:-target}/release/devmem-tcp}
read -ra suites <<<"${SUITES:-bookworm trixie trixie,trixie-backports sid}"
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

for at in "${!suites[@]}"; do
    echo "=== ${suites[at]}" >&2
    # A failed row is a result; the table shows it.
    "$tool" lab test --kernel-suite "${suites[at]}" --json "$@" >"$results/$at.json" 2> >(tee "$results/$at.log" >&2) ||
        echo "exit code $?" >&2
done

python3 - "$results" "${suites[@]}" <<'PYTHON'
import json, pathlib, sys

folder, suites = pathlib.Path(sys.argv[1]), sys.argv[2:]
words = {"passed": "yes", "failed": "**fails**", "skipped": "no"}
heads, columns, rows, reasons = [], [], {}, []
for at, suite in enumerate(suites):
    text = (folder / f"{at}.json").read_text()
    if not text:
        log = (folder / f"{at}.log").read_text().strip().splitlines()
        reasons.append(f"{suite}: {log[-1] if log else 'no output'}")
        continue
    report = json.loads(text)
    column = {}
    for row in (row for group in report["groups"] for row in group["rows"]):
        column[row["row"]] = words[row["verdict"]]
        rows.setdefault(row["row"])
        if row["verdict"] != "passed":
            reasons.append(f"{report['kernel']}, {row['row']}: {row['detail']}")
    heads.append(report["kernel"])
    columns.append(column)
print("| row | " + " | ".join(heads) + " |")
print("|---|" + "---|" * len(heads))
for row in rows:
    print(f"| {row} | " + " | ".join(column.get(row, "") for column in columns) + " |")
print()
for reason in dict.fromkeys(reasons):
    print(f"- {reason}")
PYTHON
