"""The load format `devmem` for vLLM.

    vllm serve MODEL --load-format devmem --model-loader-extra-config '{"url": "http://HOST/model.safetensors.index.json"}'

vLLM calls `register` in each of its processes, through the entry point `vllm.general_plugins`. The guide is docs/src/guides/vllm.md of the repository.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from . import _engines

__all__ = ["register"]

_is_registered = False


def register() -> None:
    """Registers the load format. It may be called again."""
    global _is_registered
    if _is_registered:
        return
    loaders: Any = import_module("vllm.model_executor.model_loader")
    loaders.register_model_loader("devmem")(_loader_class())
    _is_registered = True


def _loader_class() -> type[Any]:
    """Returns the class, made here because its base is vLLM's."""
    base: Any = import_module("vllm.model_executor.model_loader.base_loader")

    class DevmemModelLoader(base.BaseModelLoader):  # type: ignore[misc]
        """Loads weights from HTTP servers and S3-compatible stores, with devmem_tcp."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            self.options = _engines.checked(load_config.model_loader_extra_config)
            # A model copies each weight at once, so that little has to wait.
            self.options.setdefault("memory_limit", _engines.MEMORY_LIMIT)

        def download_model(self, model_config: Any) -> None:
            """Does nothing: weights go from the server into the model."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            wanted = {name for name, _ in model.named_parameters()}
            loaded = model.load_weights(_engines.weights(self.options))
            if loaded is None or getattr(model_config, "quantization", None) is not None:
                return
            missing = sorted(wanted - set(loaded))
            if missing:
                text = f"the checkpoint at {self.options['url']} lacks {len(missing)} weights of the model, as {missing[0]}"
                raise ValueError(f"{text}\n  is it the checkpoint of this model?")

    return DevmemModelLoader
