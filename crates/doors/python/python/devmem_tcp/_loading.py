"""Tensors of checkpoints, one after the other as they come."""

from __future__ import annotations

import errno

from . import _native
from ._errors import make
from ._progress import Reporter

TYPE_CHECKING = False
if TYPE_CHECKING:
    # `typing` and `types` take longer to import than the rest of the package.
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike
    from types import TracebackType
    from typing import Any, Protocol

    from ._native import Netdev, Tensor
    from ._progress import Progress

    #: A part of a tensor: of its first dimension, or of several.
    Part = slice | tuple[slice, ...]
    Headers = Mapping[str, str] | Sequence[tuple[str, str]]
    #: For each name the name of its type, and its shape.
    Entries = dict[str, tuple[str, tuple[int, ...]]]
    #: Names, and of each the bounds of its first dimensions.
    Wanted = list[tuple[str, list[tuple[int, int]]]]

    class Feed(Protocol):
        """Where an iterator takes tensors from."""

        entries: Entries
        metadata: dict[str, str]

        def take(self, timeout: float) -> tuple[str, Tensor] | bool | None:
            """Takes the next: True at the end, None if none has come in `timeout` seconds."""

        def progress(self) -> tuple[int, int]: ...
        def close(self) -> None: ...


#: Seconds between two looks at the progress while nothing comes.
_INTERVAL = 0.1


def iter_safetensors(
    url: str,
    nic: Netdev | None = None,
    *,
    device: str = "cpu",
    names: Iterable[str] | Callable[[str], bool] | None = None,
    slices: Mapping[str, Part] | Callable[[str, tuple[int, ...]], Part | None] | None = None,
    memory_limit: int | None = None,
    merge_gap: int = 32 << 10,
    progress: Callable[[Progress], object] | bool | None = None,
    shared: str | None = None,
    ranks: int = 1,
    shared_timeout: float = 60.0,
    bind: int | None = None,
    connections: int | None = None,
    idle_limit: float = 30.0,
    headers: Headers | None = None,
    headers_file: str | PathLike[str] | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | PathLike[str] | None = None,
    cacert: str | PathLike[str] | None = None,
    cert: str | PathLike[str] | None = None,
    key: str | PathLike[str] | None = None,
    verify: bool = True,
    checksums: bool = False,
) -> TensorIterator:
    """Loads tensors as `load_safetensors` does, and returns an iterator over them: pairs of name and tensor, in the order in which they come.

    `names` chooses tensors: a list, or a function of the name. `slices` chooses parts: a slice of the first dimension, or a tuple of slices, for each name, or
    a function of name and shape that returns one or None. Only the bytes of the parts are requested. Pieces of a part that are at most `merge_gap`
    bytes apart, such as the parts of rows that make columns, are requested together with what is between them, which is thrown away.

    `memory_limit`, in bytes, bounds the memory of tensors: those that are requested, those that wait to be taken, and those that the program holds, also by
    arrays and views over them: the variable of a loop holds one. Tensors below 1 MiB that are loaded together share one memory, which counts until the last of them is dropped. When the
    program holds so much that the next tensors do not fit, the iterator waits `idle_limit` seconds for other threads to drop some, and then raises
    OutOfResourcesError; it goes on when it is called again. Without `memory_limit` what was taken does not count, and 1 GiB, or the largest
    tensor, is loaded ahead.

    `progress` is called with a `Progress` about every 100 ms while the program is in a call of the iterator; True shows a bar on a terminal, and elsewhere, as in a
    notebook, a line for each tenth.

    `shared` is the name of a load that `ranks` processes of this machine share, "@NAME", or a path for a UNIX socket: each calls with the same URL, one of
    them loads, and the others map the same memory. Each has its own `names`, `slices` and `device`; whole tensors are loaded, all of the names that any of them wants. `memory_limit` is that
    of the process that loads, and all tensors that are loaded together share one memory. Do not write to these tensors. The calls wait
    `shared_timeout` seconds for each other.

    `checksums=True` is refused: tensors are given out before all bytes of their files have come. `load_safetensors` compares them.

    The other arguments are those of `load_safetensors`.
    """
    options = {
        "nic": nic,
        "device": device,
        "bind": bind,
        "connections": connections,
        "idle_limit": idle_limit,
        "headers": headers,
        "headers_file": headers_file,
        "user": user,
        "password": password,
        "password_file": password_file,
        "cacert": cacert,
        "cert": cert,
        "key": key,
        "verify": verify,
    }
    if checksums:
        raise _invalid(
            "checksums=True: tensors are given out before all bytes of their files have come, and of slices or names only some come",
            "load_safetensors(URL, checksums=True) compares the checksums of whole files",
        )
    if memory_limit is not None and memory_limit <= 0:
        raise ValueError(f"memory_limit={memory_limit}: a positive number of bytes is needed")
    if merge_gap < 0:
        raise ValueError(f"merge_gap={merge_gap}: it is a number of bytes")
    choice, reporter = Choice(names, slices), Reporter(progress)
    feed: Feed
    if shared is None:
        if ranks != 1:
            raise ValueError(f"ranks={ranks} needs the name of the load: shared='@NAME'")
        feed = _Direct(url, options, choice, memory_limit, merge_gap)
    else:
        from . import _shared

        feed = _shared.join(shared, ranks, shared_timeout, url, options, choice, memory_limit)
    return TensorIterator(feed, reporter)


class Choice:
    """Which tensors, and which parts of them."""

    def __init__(
        self,
        names: Iterable[str] | Callable[[str], bool] | None,
        slices: Mapping[str, Part] | Callable[[str, tuple[int, ...]], Part | None] | None,
    ) -> None:
        if isinstance(names, str):
            raise TypeError(f"names={names!r} is one text: write [{names!r}]")
        self._names = names if names is None or callable(names) else list(dict.fromkeys(names))
        self._slices = slices

    def wanted(self, entries: Entries) -> Wanted:
        """Returns the names, in the order of the checkpoint, and the bounds of each."""
        if self._names is None:
            names = list(entries)
        elif callable(self._names):
            wants = self._names
            names = [name for name in entries if wants(name)]
        else:
            _check_has(entries, self._names)
            chosen = set(self._names)
            names = [name for name in entries if name in chosen]
        if self._slices is not None and not callable(self._slices):
            _check_has(entries, self._slices)
        return [(name, self._bounds(name, entries[name][1])) for name in names]

    def _bounds(self, name: str, shape: tuple[int, ...]) -> list[tuple[int, int]]:
        if self._slices is None:
            return []
        part = self._slices(name, shape) if callable(self._slices) else self._slices.get(name)
        if part is None:
            return []
        parts = part if isinstance(part, tuple) else (part,)
        if len(parts) > len(shape):
            raise _invalid(f"the part of {name!r} has {len(parts)} dimensions, and the tensor {len(shape)}")
        bounds = []
        for one, extent in zip(parts, shape):
            if not isinstance(one, slice):
                raise TypeError(f"the part of {name!r} is {one!r}: it must be a slice")
            start, stop, step = one.indices(extent)
            if step != 1:
                raise _invalid(f"the part of {name!r} has the step {step}: it must be 1")
            bounds.append((start, max(start, stop)))
        return bounds


def _check_has(entries: Entries, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in entries]
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise _invalid(f"the checkpoint has no tensor {missing[0]!r}{more}", "iter_safetensors(...).entries lists what it has")


def _invalid(text: str, remedy: str | None = None) -> Exception:
    return make("InvalidInput", errno.EINVAL, text if remedy is None else f"{text}\n  {remedy}", remedy)


class _Direct:
    """Tensors that this process loads for itself."""

    def __init__(
        self, url: str, options: dict[str, Any], choice: Choice, memory_limit: int | None, merge_gap: int
    ) -> None:
        with _native._open_safetensors(url, options) as checkpoint:
            self.entries = checkpoint.entries
            self.metadata = checkpoint.metadata
            wanted = choice.wanted(self.entries)
            self._arrivals = checkpoint.start(wanted, memory_limit, merge_gap, False)

    def take(self, timeout: float) -> tuple[str, Tensor] | bool | None:
        taken = self._arrivals.next(timeout)
        return taken[:2] if isinstance(taken, tuple) else taken

    def progress(self) -> tuple[int, int]:
        return self._arrivals.progress()

    def close(self) -> None:
        self._arrivals.close()


class TensorIterator:
    """Tensors of a checkpoint in the order in which they come: pairs of name and tensor. `iter_safetensors` makes it; `close`, or the end of a `with` block, ends
    the load.
    """

    def __init__(self, feed: Feed, reporter: Reporter) -> None:
        self._feed = feed
        self._reporter = reporter
        self._taken = 0
        self._is_over = False

    @property
    def entries(self) -> Entries:
        """For each tensor of the checkpoint the name of its type and its shape, both as in the file."""
        return self._feed.entries

    @property
    def metadata(self) -> dict[str, str]:
        """What the writers of the files have added to them (`__metadata__`)."""
        return self._feed.metadata

    def __iter__(self) -> TensorIterator:
        return self

    def __next__(self) -> tuple[str, Tensor]:
        taken = None
        while taken is None:
            if self._is_over:
                raise StopIteration
            taken = self._feed.take(_INTERVAL)
            if isinstance(taken, tuple):
                self._taken += 1
            elif taken:
                self._is_over = True
            self._reporter.see(self._feed.progress, self._taken, self._is_over)
        if isinstance(taken, tuple):
            return taken
        self.close()
        raise StopIteration

    def __del__(self) -> None:
        self._feed.close()

    def close(self) -> None:
        """Ends the load. Tensors that were taken stay."""
        self._is_over = True
        self._reporter.close()
        self._feed.close()

    def __enter__(self) -> TensorIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
