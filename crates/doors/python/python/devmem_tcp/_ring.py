"""A ring of chunks in bound memory: fill, send, reuse when complete."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    # `typing` and `types` take longer to import than the rest of the package.
    from types import TracebackType

    from ._native import BoundTx, Buffer, Sent, Stream, Tensor


class SendRing:
    """Sends a stream of chunks from bound memory. A chunk is reused only when its send is complete.

    `next()` waits for a free chunk and returns it as a tensor; `send()` sends the first bytes of it. The part of the memory
    is `start` to `stop`, all of it by default.
    """

    def __init__(self, stream: Stream, tx: BoundTx, chunk: int, start: int = 0, stop: int | None = None) -> None:
        size = tx.memory.nbytes
        stop = size if stop is None else stop
        if chunk <= 0 or not 0 <= start <= stop <= size or stop - start < chunk:
            raise ValueError(f"chunks of {chunk} bytes do not fit into bytes {start} to {stop} of {size}")
        self._stream = stream
        self._tx = tx
        self._chunk = chunk
        self._start = start
        self._count = (stop - start) // chunk
        self._at = 0
        self._in_flight: deque[Sent] = deque()

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return self._count

    @property
    def in_flight(self) -> int:
        """The number of chunks that are not free."""
        return len(self._in_flight)

    def next(self) -> Tensor:
        """Waits until the next chunk is free, and returns it as a tensor of uint8."""
        while len(self._in_flight) >= self._count:
            self._in_flight[0].wait(self._stream.gettimeout())
            self._in_flight.popleft()
        start = self._start + self._at * self._chunk
        return self._tx.memory[start : start + self._chunk]

    def send(self, nbytes: int | None = None) -> Sent:
        """Sends the first `nbytes` of the chunk that `next` has returned; all of it by default."""
        nbytes = self._chunk if nbytes is None else nbytes
        if not 0 <= nbytes <= self._chunk:
            raise ValueError(f"{nbytes} bytes are not part of a chunk of {self._chunk}")
        if len(self._in_flight) >= self._count:
            raise ValueError("no chunk is free: call next() first")
        start = self._start + self._at * self._chunk
        sent = self._stream.send(self._tx, (start, start + nbytes))
        self._in_flight.append(sent)
        self._at = (self._at + 1) % self._count
        return sent

    def write(self, data: Buffer) -> None:
        """Copies a buffer through the chunks, and sends it."""
        view = memoryview(data).cast("B")
        for at in range(0, len(view), self._chunk):
            part = view[at : at + self._chunk]
            self.next()[: len(part)].copy_from(part)
            self.send(len(part))

    def finish(self) -> None:
        """Waits until all sends are complete: the memory is free."""
        while self._in_flight:
            self._in_flight[0].wait(self._stream.gettimeout())
            self._in_flight.popleft()

    def __enter__(self) -> SendRing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.finish()
