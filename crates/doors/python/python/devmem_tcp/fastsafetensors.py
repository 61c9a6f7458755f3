"""A copier and a loader for fastsafetensors, whose files are on HTTP servers and in S3-compatible stores.

    loader = devmem_tcp.fastsafetensors.loader_class()(None, framework="pytorch")
    loader.add_filenames({0: ["s3://models/llama/model-1.safetensors"]})
    tensor = loader.copy_files_to_device().get_tensor("lm_head.weight")

It fills host memory: the device is "cpu". The bytes come through libstreamer.so (see `devmem_tcp.runai`), from several files at the same time.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from . import runai

__all__ = ["loader_class", "register"]

_TYPE = "devmem"
#: Longest header (that of the format).
_MAX_HEADER = 100_000_000
#: Bytes of a range.
_RANGE = 64 << 20


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("ordinal", ctypes.c_int)]


class _Reader:
    """Reads ranges to addresses, with libstreamer.so. One thread waits at a time."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ.get("STREAMER_LIBRARY") or str(runai.library()))
        self._library.runai_file_streamer_response_str.restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p()
        self._check("start a streamer", self._library.runai_file_streamer_start(ctypes.byref(self._handle)))
        #: Of each submission, its ranges that were not answered, and the code of one that has failed.
        self._left: dict[int, int] = {}
        self._failed: dict[int, int] = {}

    def _check(self, what: str, code: int) -> None:
        if code != 0:
            text = self._library.runai_file_streamer_response_str(code).decode()
            raise OSError(f"{what}: {text}")

    def submit(self, path: str, ranges: Sequence[tuple[int, int, int]]) -> int:
        """Begins to read: offset, length and address of each range."""
        many = len(ranges)
        submission = ctypes.c_uint64()
        code = self._library.runai_file_streamer_request(
            self._handle,
            ctypes.byref(submission),
            1,
            (ctypes.c_char_p * 1)(path.encode()),
            (ctypes.c_uint32 * 1)(many),
            (ctypes.c_size_t * many)(*[at for at, _len, _to in ranges]),
            (ctypes.c_size_t * many)(*[length for _at, length, _to in ranges]),
            (ctypes.c_void_p * many)(*[to for _at, _len, to in ranges]),
            _Device(0, 0),
        )
        self._check(path, code)
        if many:
            self._left[submission.value] = many
        return submission.value

    def wait(self, path: str, submission: int) -> None:
        """Waits until all ranges of a submission are answered."""
        while submission in self._left:
            answered, file, index, done = ctypes.c_uint64(), ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int()
            places = (ctypes.byref(one) for one in (answered, file, index, done))
            code = self._library.runai_file_streamer_response(self._handle, *places, ctypes.c_uint(0))
            number = answered.value
            if number not in self._left:
                self._check(path, code)
            if code != 0:
                self._failed.setdefault(number, code)
            self._left[number] -= 1
            if self._left[number] == 0:
                del self._left[number]
        self._check(path, self._failed.pop(submission, 0))

    def read(self, path: str, start: int, length: int) -> bytes:
        buffer = ctypes.create_string_buffer(max(length, 1))
        self.wait(path, self.submit(path, [(start, length, ctypes.addressof(buffer))]))
        return buffer.raw[:length]

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.runai_file_streamer_end(self._handle)


def _metadata(reader: _Reader, path: str, framework: Any) -> Any:
    """Reads the header of a file."""
    common: Any = import_module("fastsafetensors.common")
    length = int.from_bytes(reader.read(path, 0, 8), "little")
    if length > _MAX_HEADER:
        raise ValueError(f"{path} is no safetensors file: its header has {length} bytes")
    text = reader.read(path, 8, length).decode()
    made = common.SafeTensorsMetadata(text, 8 + length, _end_of(text, 8 + length), framework, src=path)
    return made


def _end_of(text: str, header: int) -> int:
    import json

    entries = json.loads(text)
    ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
    return header + max(ends, default=0)


@functools.cache
def register() -> None:
    """Registers the copier "devmem". It may be called again."""
    copiers: Any = import_module("fastsafetensors.copier")
    base: Any = import_module("fastsafetensors.copier.base")

    class DevmemCopier(base.CopierInterface):  # type: ignore[misc]
        """Reads the tensors of one file."""

        def __init__(self, metadata: Any, device: Any, framework: Any, reader: _Reader) -> None:
            self.metadata = metadata
            self._device = device
            self._framework = framework
            self._reader = reader
            self._ranges: list[tuple[int, int]] | None = None
            self._submission = 0

        def set_byte_ranges(self, byte_ranges: list[tuple[int, int]] | None) -> None:
            self._ranges = base.validated_byte_ranges(self.metadata, byte_ranges)

        def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
            start, end = self.metadata.header_length, self.metadata.size_bytes
            memory = self._framework.alloc_tensor_memory(end - start, self._device)
            runs = [(start, end)] if self._ranges is None else self._ranges
            longest = min(_RANGE, max_copy_block_size) if max_copy_block_size > 0 else _RANGE
            ranges = [
                (at, min(longest, last - at), memory.get_base_address() + at - start)
                for first, last in runs
                for at in range(first, last, longest)
            ]
            self._submission = self._reader.submit(self.metadata.src, ranges)
            return memory

        def finish_io(self) -> None:
            self._reader.wait(self.metadata.src, self._submission)

        def wait_io(self, gbuf: Any, dtype: Any = None, noalign: bool = False, owner: Any = None) -> Any:
            self.finish_io()
            start = self.metadata.header_length
            given = {} if dtype is None else {"dtype": dtype}
            return self.metadata.get_tensors(gbuf, self._device, start, owner=owner, **given)

    def construct(device: Any, reader: _Reader | None = None, **_options: Any) -> Any:
        if device.type.value != "cpu":
            raise ValueError(f"the copier devmem fills host memory: device='cpu', not {device.type.value!r}")
        own = reader or _Reader()
        return lambda metadata, device, framework: DevmemCopier(metadata, device, framework, own)

    copiers.register_copier_constructor(_TYPE, DevmemCopier)(construct)


@functools.cache
def loader_class() -> type[Any]:
    """Returns the class of a loader, whose file names may be http:// and s3:// URLs. It is made here because its base is that of fastsafetensors."""
    register()
    base: Any = import_module("fastsafetensors.loader")
    frameworks: Any = import_module("fastsafetensors.frameworks")

    class DevmemFileLoader(base.BaseSafeTensorsFileLoader):  # type: ignore[misc]
        """Loads safetensors files of HTTP servers and S3-compatible stores into host memory."""

        def __init__(self, pg: Any = None, framework: str = "pytorch", disable_cache: bool = True) -> None:
            self.reader = _Reader()
            made = frameworks.get_framework_op(framework)
            device = made.get_device("cpu", made.get_process_group(pg))
            super().__init__(
                pg, device, _TYPE, set_numa=False, disable_cache=disable_cache, framework=framework, reader=self.reader
            )

        def add_filenames(self, filenames: Mapping[int, list[str]]) -> None:
            """Adds the files of each rank, and reads their headers."""
            names = [name for of_rank in filenames.values() for name in of_rank]
            self._set_metadata_cache({name: _metadata(self.reader, name, self.framework) for name in names})
            super().add_filenames(filenames)

    return DevmemFileLoader
