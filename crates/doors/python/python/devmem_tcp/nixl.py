"""The backend DEVMEM for NIXL: where it is, and what it has moved.

    python -m devmem_tcp.nixl             prints the plugin's folder, and the NIXL that is installed
    python -m devmem_tcp.nixl --install   links the plugin beside NIXL's own

The guide is docs/src/guides/nixl.md of the repository.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
from typing import Any

__all__ = ["folder", "install", "installed", "paths"]

#: File name of the plugin: NIXL makes it of the backend's name.
PLUGIN = "libplugin_DEVMEM.so"

#: Packages with NIXL's library, one for each version of CUDA.
_PACKAGES = ("nixl_cu12", "nixl_cu13")


class _Text(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_void_p), ("len", ctypes.c_size_t)]


_Put = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Text)


def folder() -> pathlib.Path:
    """Returns the folder with the plugin, for NIXL_PLUGIN_DIR. Raises FileNotFoundError if this package was built without it."""
    here = pathlib.Path(__file__).parent / "nixl_plugin"
    if not (here / PLUGIN).exists():
        raise FileNotFoundError(
            f"this package has no {PLUGIN}: it was not built by packaging/wheel.sh, or with its --zig, for older systems; build the plugin by "
            "cargo build --release -p devmem-nixl, and copy it beside NIXL's own"
        )
    return here


def installed() -> list[pathlib.Path]:
    """Returns the folders of the plugins of every NIXL that is installed."""
    found = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            plugins = pathlib.Path(spec.origin).parent.parent / f".{package}.mesonpy.libs" / "plugins"
            if plugins.is_dir():
                found.append(plugins)
    return found


def install() -> list[pathlib.Path]:
    """Links the plugin beside those of every NIXL that is installed, in place of an earlier link, and returns the links."""
    plugin = folder() / PLUGIN
    links = []
    for plugins in installed():
        link = plugins / PLUGIN
        link.unlink(missing_ok=True)
        link.symlink_to(plugin)
        links.append(link)
    return links


def _loaded() -> set[str]:
    """Returns the paths of the plugin in this process: more than one if copies of it were loaded."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if line.endswith("/" + PLUGIN)}


def paths() -> list[dict[str, Any]]:
    """Returns one entry for each agent with this backend in the process.

    `agent` is its name, `way` the parameter, `copies` how often the CPU copies each byte of a connection on this side, `sent_bytes` and
    `received_bytes` what went from and into registered memory by connections, `unix_bytes` what was copied from the memory of another process,
    `inline_bytes` what was short and copied once more on each side, `device_bytes` what the NIC moved from or to memory of a GPU, `staged_bytes` what
    went through host memory from or to a GPU, and `own_bytes` what was copied within the process. `pool_net_iovs` is the number of net_iovs of the
    pool that the NIC receives into, 0 without one, and `pool_home` how many of them are free. Empty if NIXL has not loaded the backend.
    """
    out = bytearray()

    def take(_: int | None, text: _Text) -> None:
        out.extend(ctypes.string_at(text.bytes, text.len) if text.len else b"")

    for path in sorted(_loaded()):
        library = ctypes.CDLL(path)
        library.devmem_nixl_paths.argtypes = [_Put, ctypes.c_void_p]
        library.devmem_nixl_paths.restype = ctypes.c_int
        library.devmem_nixl_paths(_Put(take), None)
    return [json.loads(line) for line in out.decode().splitlines()]


def _version(plugins: pathlib.Path) -> str:
    package = plugins.parent.name.split(".")[1]
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line, and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m devmem_tcp.nixl", description="The backend DEVMEM for NIXL.")
    parser.add_argument("--install", action="store_true", help="link the plugin beside NIXL's own")
    options = parser.parse_args(arguments)
    try:
        print(folder())
        found = installed()
        if not found:
            print("no NIXL is installed for this Python: pip install nixl", file=sys.stderr)
            return 1
        if options.install:
            for link in install():
                print(f"linked {link}")
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    for plugins in found:
        state = "has the backend DEVMEM" if (plugins / PLUGIN).exists() else "lacks the backend DEVMEM (--install links it)"
        print(f"{_version(plugins)}: {state}: {plugins}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
