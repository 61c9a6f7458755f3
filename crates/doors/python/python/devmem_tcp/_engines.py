"""What the loaders for vLLM and SGLang have in common: options of the user, and weights as tensors of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._loading import iter_safetensors

if TYPE_CHECKING:
    from ._loading import TensorIterator

#: Arguments of `iter_safetensors` that `--model-loader-extra-config` may have.
OPTIONS = frozenset(
    {
        "bind",
        "cacert",
        "cert",
        "connections",
        "device",
        "headers",
        "headers_file",
        "idle_limit",
        "key",
        "memory_limit",
        "password",
        "password_file",
        "progress",
        "ranks",
        "shared",
        "shared_timeout",
        "url",
        "user",
        "verify",
    }
)
#: What waits to be copied into the model, unless the user sets another bound: the model itself is the place of its weights.
MEMORY_LIMIT = 4 << 30


def checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the options of a user, without those that are the engine's. Raises ValueError for others."""
    given = dict(options or {})
    unknown = sorted(given.keys() - OPTIONS)
    if unknown:
        known = ", ".join(sorted(OPTIONS))
        raise ValueError(f"--model-loader-extra-config has {', '.join(unknown)}, which is no option of devmem\n  its options are {known}")
    if not isinstance(given.get("url"), str):
        example = """--model-loader-extra-config '{"url": "s3://models/llama/model.safetensors.index.json"}'"""
        raise ValueError(f"the load format devmem needs the URL of the checkpoint\n  {example}")
    return given


def weights(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Loads a checkpoint, and yields its tensors as those of torch, in the order in which they come. One counts until it is dropped."""
    torch: Any = import_module("torch")
    given = dict(options)
    url = given.pop("url")
    if given.get("device") == "cuda":
        given["device"] = f"cuda:{torch.cuda.current_device()}"
    with iter_safetensors(url, **given) as tensors:
        yield from _as_torch(torch, tensors)


def _as_torch(torch: Any, tensors: TensorIterator) -> Iterator[tuple[str, Any]]:
    for name, tensor in tensors:
        kind, shape = tensors.entries[name]
        if tensor.shape != shape and tensor.dtype == "uint8":
            raise ValueError(f"{name} has the type {kind}, which torch has no name for here")
        if tensor.nbytes == 0:
            # DLPack of nothing has no address, which some versions of torch refuse.
            yield name, torch.empty(shape, dtype=getattr(torch, tensor.dtype))
        else:
            yield name, torch.from_dlpack(tensor)
        del tensor
