"""Device memory TCP for asyncio.

    from devmem_tcp import aio

    stream = await aio.connect(nic, "10.77.0.1:5201")
    async for batch in stream: ...

Nothing blocks: the event loop watches file descriptors of the library. Only the name of a host is resolved, and `iter_safetensors` waits, in a thread of the
event loop's executor. A call that is cancelled while it
waits has taken nothing from the queue of received bytes. One task may receive while another one sends. A NIC of `Netdev.pair` cannot be
used: in its virtual time only calls move the clock.
"""

from __future__ import annotations

import asyncio
import errno
import select
import weakref
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from . import _attempts, _loading, _native
from ._errors import NotSupportedError

if TYPE_CHECKING:
    from types import TracebackType

    from ._native import Address, Batch, BoundTx, Buffer, Netdev, Tensor

__all__ = ["Listener", "Sent", "Stream", "TensorIterator", "connect", "iter_safetensors", "listen"]

T = TypeVar("T")


class _Events:
    """Wakes tasks at the edges of file descriptors. An edge is an event also while the descriptor is readable, so that a task
    that waits for completions is not woken all the time by bytes that nobody receives."""

    def __init__(self, *fds: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._set = select.epoll()
        self._waiters: set[asyncio.Future[None]] = set()
        for fd in fds:
            # The sockets of the kernel also tell by EPOLLOUT when there is room.
            self._set.register(fd, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        self._loop.add_reader(self._set.fileno(), self.wake)

    def wake(self) -> None:
        """Has every waiting task try again."""
        if self._set.closed:
            return
        self._set.poll(0)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, attempt: Callable[[], T | None]) -> T:
        """Calls `attempt` until it returns something: at once, and after each edge."""
        while True:
            # Edges before the attempt do not matter: it sees what they were about.
            result = attempt()
            if result is not None:
                return result
            waiter = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def close(self) -> None:
        if not self._set.closed:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._set.fileno())
            self.wake()
            self._set.close()


def _check(handle: Stream | Listener | _native.Stream | _native.Listener | _native._Connecting) -> None:
    if handle.is_virtual:
        text = (
            "in virtual time only calls move the clock, and a task would wait for ever\n"
            '  use a wire in real time: Netdev.user("mem:NAME", ...)'
        )
        error = NotSupportedError(errno.EOPNOTSUPP, text)
        error.remedy = 'use a wire in real time: Netdev.user("mem:NAME", ...)'
        raise error


class Stream:
    """A stream for asyncio, made of one of `devmem_tcp`. Use one of these for a stream, in one event loop."""

    def __init__(self, stream: _native.Stream) -> None:
        _check(stream)
        self._stream = stream
        self._signal = stream.send_signal()
        self._events = _Events(stream.fileno(), self._signal.fileno())
        weakref.finalize(self, self._events.close).atexit = False

    @property
    def stream(self) -> _native.Stream:
        """The stream that waits in its calls."""
        return self._stream

    @property
    def is_virtual(self) -> bool:
        return False

    async def recv(self, max_bytes: int | None = None, *, batch: Batch | None = None) -> Batch:
        """Receives queued bytes. The batch is false at the end of the stream. `batch` is an earlier one to release first."""
        if batch is not None:
            batch.release()
        return await self._events.until(lambda: self._stream.try_recv(max_bytes))

    async def recv_into(self, out: Tensor | Buffer) -> int:
        """Receives until `out` is full or the stream ends; returns the number of bytes. If it is cancelled, `out` has the
        bytes that were received before."""
        target = out if isinstance(out, _native.Tensor) else memoryview(out).cast("B")
        done = 0
        while done < target.nbytes:
            with await self.recv(target.nbytes - done) as batch:
                if not batch:
                    break
                part = target.view("uint8")[done:] if isinstance(target, _native.Tensor) else target[done:]
                done += batch.gather(part)
        return done

    async def sendall(self, data: Buffer) -> None:
        """Copies all bytes of a buffer to the send queue."""
        done, total = 0, memoryview(data).nbytes
        while done < total:

            def attempt(at: int = done) -> int | None:
                self._signal.arm()
                return self._stream.try_write(data, at) or None

            done += await self._events.until(attempt)

    async def send(self, tx: BoundTx, start: int = 0, end: int | None = None) -> Sent:
        """Sends a range of bound memory without a copy. Its bytes must not change until `await sent.wait()`."""
        end = tx.memory.nbytes if end is None else end
        sent: _native.Sent | None = None
        while sent is None or start < end:

            def attempt(at: int = start) -> _native.Sent | None:
                self._signal.arm()
                return self._stream.try_send(tx, at, end)

            sent = await self._events.until(attempt)
            start += sent.nbytes
        return Sent(sent, self._events)

    def shutdown(self) -> None:
        """Ends the sending direction: a FIN follows the queued bytes."""
        self._stream.shutdown()

    def close(self) -> None:
        """Closes the stream."""
        self._events.close()
        self._stream.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        batch: Batch | None = None
        while True:
            # Released first: its memory may be all that there is.
            batch = await self.recv(batch=batch)
            if not batch:
                return
            yield batch


class Sent:
    """A send from bound memory."""

    def __init__(self, sent: _native.Sent, events: _Events) -> None:
        self._sent = sent
        self._events = events

    def done(self) -> bool:
        """Returns whether the send is complete."""
        return self._sent.done()

    async def wait(self) -> None:
        """Waits until the bytes may change."""
        await self._events.until(lambda: self._sent.done() or None)
        # The completions of other sends were read with this one.
        self._events.wake()


class Listener:
    """A listener for asyncio, made of one of `devmem_tcp`."""

    def __init__(self, listener: _native.Listener) -> None:
        _check(listener)
        self._listener = listener
        self._events = _Events(listener.fileno())
        weakref.finalize(self, self._events.close).atexit = False

    @property
    def listener(self) -> _native.Listener:
        """The listener that waits in its calls."""
        return self._listener

    @property
    def is_virtual(self) -> bool:
        return False

    async def accept(self) -> tuple[Stream, tuple[str, int]]:
        """Waits for the next connection; returns its stream, and host and port of its peer."""
        stream, peer = await self._events.until(self._listener.try_accept)
        # More connections may wait, and one edge wakes all tasks once.
        self._events.wake()
        return Stream(stream), peer

    def close(self) -> None:
        """Closes it: further connections are refused."""
        self._events.close()
        self._listener.close()

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[tuple[Stream, tuple[str, int]]]:
        while True:
            yield await self.accept()


def listen(nic: Netdev, address: Address) -> Listener:
    """Listens for connections."""
    listener = nic.listen(address)
    try:
        return Listener(listener)
    except OSError:
        listener.close()
        raise


async def connect(nic: Netdev, address: Address, source: Address | None = None) -> Stream:
    """Connects. Of several addresses of a name, IPv6 and IPv4 are tried in turn: the next one when one has failed, or has not answered for
    250 ms (RFC 8305). Cancelling gives up."""
    found = await asyncio.to_thread(_native._resolve, address) if _attempts.is_name(address) else _native._resolve(address)
    return await _attempts.first_of(found, lambda to: _connect(nic, to, source))


async def _connect(nic: Netdev, address: str, source: Address | None) -> Stream:
    attempt = nic.begin_connect(address, source)
    _check(attempt)
    signal = attempt.signal()
    events = _Events(signal.fileno())

    def finish() -> _native.Stream | None:
        signal.arm()
        return attempt.try_finish()

    try:
        stream = await events.until(finish)
    finally:
        events.close()
        attempt.close()
    return Stream(stream)


class TensorIterator:
    """Tensors of a checkpoint in the order in which they come, for `async for`: pairs of name and tensor. `iter_safetensors` makes it."""

    def __init__(self, make: Callable[[], _loading.TensorIterator]) -> None:
        self._make = make
        self._iterator: _loading.TensorIterator | None = None
        self._step: asyncio.Future[tuple[str, Tensor] | None] | None = None
        # Tasks take turns: each gets a tensor of its own.
        self._turn = asyncio.Lock()

    @property
    def iterator(self) -> _loading.TensorIterator | None:
        """The iterator that waits in its calls; None before the first tensor was awaited."""
        return self._iterator

    def __aiter__(self) -> TensorIterator:
        return self

    def _next(self) -> tuple[str, Tensor] | None:
        if self._iterator is None:
            self._iterator = self._make()
        return next(self._iterator, None)

    async def __anext__(self) -> tuple[str, Tensor]:
        async with self._turn:
            if self._step is None:
                self._step = asyncio.get_running_loop().run_in_executor(None, self._next)
            step = self._step
            try:
                taken = await asyncio.shield(step)
            except asyncio.CancelledError:
                # If this task is cancelled, what comes is for the next call, also if it has come.
                if step.cancelled():
                    self._step = None
                raise
            except BaseException:
                self._step = None
                raise
            self._step = None
        if taken is None:
            raise StopAsyncIteration
        return taken

    async def aclose(self) -> None:
        """Ends the load. Tensors that were taken stay."""
        step, self._step = self._step, None
        if self._iterator is not None:
            await asyncio.to_thread(self._iterator.close)
        if step is not None:
            # It fails, because the load is closed, or was still being opened.
            await asyncio.wait([step])
            step.exception()
            if self._iterator is not None:
                self._iterator.close()

    async def __aenter__(self) -> TensorIterator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def iter_safetensors(url: str, nic: Netdev | None = None, **options: Any) -> TensorIterator:
    """Loads tensors as `devmem_tcp.iter_safetensors` does, with the same arguments, for `async for`. The checkpoint is opened when the first tensor is
    awaited. A function for the progress is called in another thread.
    """
    return TensorIterator(lambda: _loading.iter_safetensors(url, nic, **options))
