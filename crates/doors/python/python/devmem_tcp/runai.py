"""libstreamer.so for Run:ai's model streamer: where it is.

    STREAMER_LIBRARY=$(python -m devmem_tcp.runai) vllm serve s3://BUCKET/MODEL --load-format runai_streamer

The package `runai-model-streamer` opens the library that STREAMER_LIBRARY names in place of its own. The guide is docs/src/guides/vllm.md of the repository.
"""

from __future__ import annotations

import pathlib
import sys

__all__ = ["library"]

_FILE = "libstreamer.so"


def library() -> pathlib.Path:
    """Returns the path of the library. Raises FileNotFoundError if this package was built without it."""
    path = pathlib.Path(__file__).parent / "runai_library" / _FILE
    if not path.exists():
        raise FileNotFoundError(
            f"this package has no {_FILE}: it was not built by packaging/wheel.sh; build the library by cargo build --release -p devmem-streamer"
        )
    return path


def main() -> int:
    """Prints the path, and returns the exit status."""
    try:
        print(library())
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
