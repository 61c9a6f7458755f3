"""What `load_safetensors` returns."""

from __future__ import annotations

from ._native import Tensor


class Tensors(dict[str, Tensor]):
    """The tensors of a checkpoint, by name."""

    #: What the writers of its files have added to them, by name (`__metadata__`). Of a name that several files have, the text of the last one.
    metadata: dict[str, str]
    #: For each tensor the name of its type, such as "BF16" or "F4", and its shape, both as in the file.
    entries: dict[str, tuple[str, tuple[int, ...]]]

    def __init__(
        self,
        tensors: dict[str, Tensor],
        metadata: dict[str, str],
        entries: dict[str, tuple[str, tuple[int, ...]]],
    ) -> None:
        super().__init__(tensors)
        self.metadata = metadata
        self.entries = entries
