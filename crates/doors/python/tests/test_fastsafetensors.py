"""The loader for fastsafetensors, with the package itself. Skips where it, torch or libstreamer.so is not there."""

from __future__ import annotations

import numpy as np
import pytest
from test_iter import LARGE, large, server  # noqa: F401
from test_load import no_proxy  # noqa: F401
from test_runai import library  # noqa: F401

import devmem_tcp.fastsafetensors


def test_files_of_a_server_are_loaded(library, large, monkeypatch):  # noqa: F811
    for name in ["torch", "fastsafetensors"]:
        pytest.importorskip(name, reason=f"SKIP {name} is not installed: pip install fastsafetensors torch")
    monkeypatch.setenv("STREAMER_LIBRARY", str(library))
    loader = devmem_tcp.fastsafetensors.loader_class()(None)
    loader.add_filenames({0: [large]})
    buffer = loader.copy_files_to_device()
    for name, array in LARGE.items():
        assert np.array_equal(buffer.get_tensor(name).numpy(), array), name
    buffer.close()
    with pytest.raises(OSError, match="cannot be read"):
        loader.add_filenames({0: [large + ".none"]})
    loader.close()
