"""The load format `devmem` for SGLang.

    python -m sglang.launch_server --model-path MODEL --load-format devmem \\
        --model-loader-extra-config '{"url": "http://HOST/model.safetensors.index.json"}'

SGLang calls `register` in each of its processes, through the entry point `sglang.srt.plugins`. In Python, `LoadConfig(load_format=loader_class())` needs no entry point.
The guide is docs/src/guides/sglang.md of the repository.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from . import _engines

__all__ = ["loader_class", "register"]

_FORMAT = "devmem"
_is_registered = False


def register() -> None:
    """Registers the load format. It may be called again."""
    global _is_registered
    if _is_registered:
        return
    hooks: Any = import_module("sglang.srt.plugins.hook_registry")
    choices: Any = import_module("sglang.srt.arg_groups.choices")
    choices.add_load_format_choices([_FORMAT])
    # SGLang knows its formats by an enumeration, but takes a class in place of one.
    verify = "sglang.srt.configs.load_config.LoadConfig._verify_load_format"
    hooks.HookRegistry.register(verify, _verified, hooks.HookType.AROUND)
    _is_registered = True


def _verified(original: Callable[[Any], None], config: Any) -> None:
    if isinstance(config.load_format, str) and config.load_format.lower() == _FORMAT:
        config.load_format = loader_class()
    else:
        original(config)


@functools.cache
def loader_class() -> type[Any]:
    """Returns the class of the loader, for `load_format`. It is made here because its base is SGLang's."""
    base: Any = import_module("sglang.srt.model_loader.loader")

    class DevmemModelLoader(base.DefaultModelLoader):  # type: ignore[misc]
        """Loads weights from HTTP servers and S3-compatible stores, with devmem_tcp."""

        def __init__(self, load_config: Any) -> None:
            self.options = _engines.checked(load_config.model_loader_extra_config)
            self.options.setdefault("memory_limit", _engines.MEMORY_LIMIT)
            # The base class knows other options, and refuses these.
            super().__init__(dataclasses.replace(load_config, model_loader_extra_config={}))

        def download_model(self, model_config: Any) -> None:
            """Does nothing: weights go from the server into the model."""

        def _get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
            return _engines.weights(self.options)

    return DevmemModelLoader
