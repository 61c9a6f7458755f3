"""Each example is a program that checks itself."""

import pathlib
import re
import subprocess
import sys

import pytest

DOOR = pathlib.Path(__file__).parent.parent
EXAMPLES = sorted((DOOR / "examples").glob("*.py"))
GUIDE = DOOR.parent.parent.parent / "docs/src/guides/python.md"


def output_of(example):
    run = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    return run.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example):
    assert output_of(example)


def test_the_broadcast_is_received_in_device_memory():
    counts = re.findall(r"(\d+) bytes received in device memory", output_of(DOOR / "examples" / "broadcast.py"))
    assert len(counts) == 3 and all(int(count) > 200_000 for count in counts), counts


def test_the_sample_in_the_guide_is_what_the_example_prints():
    sample = re.search("```text\n(.*)\n```", GUIDE.read_text())[1]
    start, end = sample.split("...")
    printed = output_of(DOOR / "examples" / "receive_array.py").rstrip()
    assert printed.startswith(start) and printed.endswith(end), printed
