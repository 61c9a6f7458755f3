"""One load for several processes of a machine.

The first process that comes to the socket loads, into memory with file descriptors. It sends the others a message for each tensor, and with the first one of a
memory its descriptor. They tell it which memories they have released. The end of a process is the end of its connection: the memory that it held is
free then, and the others go on; if it is the one that loads, they raise an exception.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import json
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import DevmemError, make

if TYPE_CHECKING:
    from ._loading import Choice, Entries, Feed, Wanted
    from ._native import Tensor

#: Longest message: names of tensors are in it.
_MESSAGE = 64 << 10
#: Longest list of tensors or names.
_LIST = 1 << 30
#: Seconds between two attempts to find the others.
_PAUSE = 0.01


def join(
    name: str,
    ranks: int,
    timeout: float,
    url: str,
    options: dict[str, Any],
    choice: Choice,
    memory_limit: int | None,
) -> Feed:
    """Joins the load `name` of `ranks` processes, as the one that loads or as another one."""
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: at least one is needed")
    if name in ("", "@"):
        raise ValueError("shared needs a name: '@NAME', or a path")
    hello = {"url": hashlib.sha256(url.encode()).hexdigest(), "ranks": ranks, "process": os.getpid()}
    deadline = time.monotonic() + timeout
    place = _Place(name)
    while True:
        listener = place.listen(ranks)
        if listener is not None:
            peers = _gather(place, listener, hello, deadline)
            return _Leader(peers, url, options, choice, memory_limit)
        connection = place.connect()
        if connection is not None:
            return _Follower(connection, hello, choice, options["device"])
        if time.monotonic() >= deadline:
            raise _timed_out(f"nobody answers at {name}: the process that loads did not come in time")
        time.sleep(_PAUSE)


class _Place:
    """The socket where processes meet: abstract, or a path with a lock beside it."""

    def __init__(self, name: str) -> None:
        self._path = None if name.startswith("@") else name
        self._address = "\0" + name[1:] if self._path is None else name
        self._lock: int | None = None

    def listen(self, ranks: int) -> socket.socket | None:
        """Returns the listening socket of the one that loads; None if that is another process."""
        if self._path is not None and not self._take_lock():
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(self._address)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                return None
            raise make("InvalidInput", error.errno or errno.EINVAL, f"bind the socket {self._address!r}: {error.strerror}", None)
        listener.listen(ranks)
        return listener

    def _take_lock(self) -> bool:
        """Whoever has the lock may replace a socket that a dead process has left."""
        assert self._path is not None
        lock = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
        return True

    def connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(self._address)
        except (ConnectionRefusedError, FileNotFoundError, BlockingIOError):
            connection.close()
            return None
        return connection

    def close(self) -> None:
        """Gives the place up: the next load may use it."""
        if self._path is not None:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _gather(place: _Place, listener: socket.socket, hello: dict[str, Any], deadline: float) -> list[_Peer]:
    """Waits until all have come."""
    peers: list[_Peer] = []
    try:
        while len(peers) < hello["ranks"] - 1:
            left = deadline - time.monotonic()
            listener.settimeout(max(left, 0.001))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                text = f"{len(peers) + 1} of {hello['ranks']} processes came in time"
                raise _timed_out(text) from None
            if _user_of(connection) != os.getuid():
                connection.close()
                continue
            peer = _Peer(connection)
            peers.append(peer)
            its, _fds = peer.receive(deadline)
            if its.get("ranks") != hello["ranks"] or its.get("url") != hello["url"]:
                raise make("InvalidInput", errno.EINVAL, "the processes of a shared load have different URLs or ranks", None)
    except BaseException as error:
        _tell_all(peers, error)
        raise
    finally:
        listener.close()
        place.close()
    return peers


def _user_of(connection: socket.socket) -> int:
    """Returns the user at the other end (unix(7), SO_PEERCRED: process, user, group)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user


def _tell_all(peers: list[_Peer], error: BaseException) -> None:
    for peer in peers:
        peer.send({"error": str(error)[: _MESSAGE // 8]})
        peer.flush()
        peer.close()


class _Peer:
    """A connection to another process."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.is_open = True
        self._waiting: deque[tuple[bytes, int | None]] = deque()
        #: What counts the memories that it has not released.
        self.shares: dict[int, object] = {}
        #: The memory whose file it got last.
        self.known = 0
        self.wanted: set[str] | None = None

    def receive(self, deadline: float | None) -> tuple[dict[str, Any], list[int]]:
        """Receives a message, with its descriptors. The end of the other process ends the wait, too."""
        self.connection.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))
        try:
            data, fds = _received(self.connection)
        except TimeoutError:
            raise _timed_out("another process of the load does not answer") from None
        except OSError:
            data, fds = b"", []
        if not data:
            raise make("ConnectionReset", errno.ECONNRESET, "another process of the load has ended", None)
        return _parsed(data), fds

    def send(self, message: dict[str, Any], fd: int | None = None) -> None:
        """Sends a message when there is room. The descriptor is duplicated."""
        data = json.dumps(message).encode()
        if len(data) > _MESSAGE:
            raise make("InvalidInput", errno.EINVAL, "a tensor has too long a name for a shared load", None)
        self._waiting.append((data, None if fd is None else os.dup(fd)))

    def flush(self) -> bool:
        """Sends what there is room for, and returns whether that is all."""
        self.connection.setblocking(False)
        while self._waiting and self.is_open:
            data, fd = self._waiting[0]
            try:
                socket.send_fds(self.connection, [data], [] if fd is None else [fd], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                self.close()
                return True
            self._waiting.popleft()
            if fd is not None:
                os.close(fd)
        return True

    def hear(self) -> None:
        """Takes the numbers of memories that it has released."""
        while self.is_open:
            try:
                data = self.connection.recv(8)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if len(data) != 8:
                self.close()
                return
            self.shares.pop(int.from_bytes(data, "little"), None)

    def close(self) -> None:
        self.is_open = False
        self.shares.clear()
        while self._waiting:
            _data, fd = self._waiting.popleft()
            if fd is not None:
                os.close(fd)
        self.connection.close()


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receives a message, with its descriptors; an empty one at the end."""
    try:
        data, fds, _flags, _address = socket.recv_fds(connection, _MESSAGE, 1)
    except ConnectionResetError:
        # Linux tells first, and once, that the other process has ended without having read everything. What it sent before is still there.
        data, fds, _flags, _address = socket.recv_fds(connection, _MESSAGE, 1)
    return data, fds


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise make("InvalidInput", errno.EPROTO, "what came from another process of the load is no message", None)
    if "error" in message:
        raise make("Other", errno.EIO, f"the process that loads says: {message['error']}", None)
    return message


def _file_of(value: object) -> int:
    """Writes a list to memory with a file descriptor, which the caller closes."""
    fd = os.memfd_create("devmem-tcp", os.MFD_CLOEXEC)
    data = memoryview(json.dumps(value).encode())
    while data:
        data = data[os.write(fd, data) :]
    return fd


def _value_of(fds: list[int]) -> Any:
    """Reads a list of another process, and closes the descriptors."""
    try:
        if len(fds) != 1 or (length := os.fstat(fds[0]).st_size) > _LIST:
            raise ValueError
        # Several processes read this file, and a descriptor that is passed shares its position with the others.
        return json.loads(os.pread(fds[0], length, 0))
    except ValueError:
        raise make("InvalidInput", errno.EPROTO, "what came from another process of the load is no list", None) from None
    finally:
        for fd in fds:
            os.close(fd)


def _timed_out(text: str) -> DevmemError:
    remedy = "all processes call with the same name and number of ranks; shared_timeout= is how long they wait for each other"
    return make("TimedOut", errno.ETIMEDOUT, f"{text}\n  {remedy}", remedy)


class _Part:
    """Gives a process its part of each tensor that is loaded."""

    def __init__(self, choice: Choice, entries: Entries, device: str) -> None:
        self.bounds = dict(choice.wanted(entries))
        self._entries = entries
        self._device = device

    def of(self, name: str, tensor: Tensor) -> Tensor:
        return _native._shared_part(tensor, self._entries[name][1], self.bounds[name], self._device)


class _Leader:
    """The process that loads: a thread takes the tensors and tells the others."""

    def __init__(
        self, peers: list[_Peer], url: str, options: dict[str, Any], choice: Choice, memory_limit: int | None
    ) -> None:
        self._peers = peers
        self._queue: deque[tuple[str, Tensor, object]] = deque()
        self._changed = threading.Condition()
        self._outcome: DevmemError | bool | None = None
        self._is_left = False
        self._progress = (0, 0)
        try:
            opened = _native._open_safetensors(url, {**options, "device": "cpu"})
            with opened as checkpoint:
                self.entries = checkpoint.entries
                self.metadata = checkpoint.metadata
                self._part = _Part(choice, self.entries, options["device"])
                wanted = self._ask(memory_limit)
                whole: Wanted = [(name, []) for name in self.entries if name in wanted]
                self._arrivals = checkpoint.start(whole, memory_limit, 0, True)
        except BaseException as error:
            _tell_all(peers, error)
            raise
        self._thread = threading.Thread(target=self._serve, name="devmem-shared", daemon=True)
        self._thread.start()
        # The others need it after this process has its tensors.
        atexit.register(self._finish)

    def _ask(self, memory_limit: int | None) -> set[str]:
        """Tells the others what there is, and returns what all want."""
        wanted = set(self._part.bounds)
        fd = _file_of([self.entries, self.metadata])
        try:
            for peer in self._peers:
                peer.send({"counts_held": memory_limit is not None, "process": os.getpid()}, fd)
                peer.flush()
        finally:
            os.close(fd)
        for peer in self._peers:
            try:
                _message, fds = peer.receive(None)
                peer.wanted = set(_value_of(fds)) & self.entries.keys()
                wanted |= peer.wanted
            except ConnectionResetError:
                peer.close()
        return wanted

    def _serve(self) -> None:
        outcome: DevmemError | bool = True
        try:
            self._serve_all()
        except Exception as error:
            outcome = error if isinstance(error, DevmemError) else make("Other", errno.EIO, repr(error), None)
            _tell_all([peer for peer in self._peers if peer.is_open], outcome)
        finally:
            for peer in self._peers:
                peer.close()
            with self._changed:
                self._outcome = outcome
                self._changed.notify_all()
            self._arrivals.close()
            atexit.unregister(self._finish)

    def _finish(self) -> None:
        """Waits, at the end of the program, until the others have what they want, or are gone."""
        self.close()
        self._thread.join()

    def _serve_all(self) -> None:
        is_over = False
        with selectors.DefaultSelector() as selector:
            bell = self._arrivals.fileno()
            selector.register(bell, selectors.EVENT_READ)
            for peer in self._peers:
                if peer.is_open:
                    selector.register(peer.connection, selectors.EVENT_READ, peer)
            while True:
                while not is_over and (is_end := self._pass_on()) is not None:
                    is_over = is_end
                is_flushed = self._flush(selector)
                is_alone = self._is_left and not any(peer.is_open for peer in self._peers)
                if (is_over and is_flushed) or is_alone:
                    return
                for key, _events in selector.select(0.1):
                    if key.data is None:
                        try:
                            os.read(bell, 8)
                        except BlockingIOError:
                            pass
                    else:
                        self._hear(selector, key.data)

    def _hear(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        connection = peer.connection
        descriptor = connection.fileno()
        peer.hear()
        if not peer.is_open:
            selector.unregister(descriptor)

    def _flush(self, selector: selectors.BaseSelector) -> bool:
        is_flushed = True
        for peer in self._peers:
            if not peer.is_open:
                continue
            descriptor = peer.connection.fileno()
            all_sent = peer.flush()
            is_flushed &= all_sent
            if not peer.is_open:
                selector.unregister(descriptor)
                continue
            events = selectors.EVENT_READ if all_sent else selectors.EVENT_READ | selectors.EVENT_WRITE
            if selector.get_key(descriptor).events != events:
                selector.modify(descriptor, events, peer)
        return is_flushed

    def _pass_on(self) -> bool | None:
        """Passes the next tensor on. Returns whether all have come; None if none has. Nothing here may hold one: it counts."""
        taken = self._arrivals.next(0)
        if taken is None:
            return None
        self._progress = self._arrivals.progress()
        progress = list(self._progress)
        peers = [peer for peer in self._peers if peer.is_open]
        if not isinstance(taken, tuple):
            for peer in peers:
                peer.send({"end": True, "progress": progress})
            return True
        name, tensor, number, share, is_last = taken
        fd, memory_bytes = _native._shared_tensor(tensor)
        message = {
            "name": name,
            "number": number,
            "memory_bytes": memory_bytes,
            "place": [tensor.offset, tensor.nbytes],
            "view": [tensor.dtype, list(tensor.shape)],
            "progress": progress,
        }
        for peer in peers:
            if peer.wanted is not None and name in peer.wanted:
                is_new = number != peer.known
                if is_new:
                    peer.known = number
                    peer.shares[number] = share
                peer.send({**message, "is_new": is_new}, fd if is_new else None)
            if is_last and peer.known == number:
                peer.send({"done": number, "progress": progress})
        if name in self._part.bounds and not self._is_left:
            with self._changed:
                self._queue.append((name, tensor, share))
                self._changed.notify_all()
        return False

    def take(self, timeout: float) -> tuple[str, Tensor] | bool | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._outcome is not None, timeout)
            if not self._queue:
                if isinstance(self._outcome, DevmemError):
                    error, self._outcome = self._outcome, True
                    raise error
                return self._outcome
            # What counts the memory is given up here.
            name, tensor, _share = self._queue.popleft()
        return name, self._part.of(name, tensor)

    def progress(self) -> tuple[int, int]:
        return self._progress

    def close(self) -> None:
        """Leaves. The thread goes on for the others."""
        self._is_left = True
        with self._changed:
            self._queue.clear()


class _Follower:
    """A process that gets what another one loads."""

    def __init__(self, connection: socket.socket, hello: dict[str, Any], choice: Choice, device: str) -> None:
        self._peer = _Peer(connection)
        self._memory: tuple[int, Tensor] | None = None
        self._progress = (0, 0)
        try:
            self._peer.send(hello)
            self._peer.flush()
            # It waits for others, as long as they may take, and opens the checkpoint.
            message, fds = self._peer.receive(None)
            entries, self.metadata = _value_of(fds)
            self.entries: Entries = {name: (kind, tuple(shape)) for name, (kind, shape) in entries.items()}
            self._counts_held = bool(message.get("counts_held"))
            self._process = message.get("process")
            self._part = _Part(choice, self.entries, device)
            fd = _file_of(list(self._part.bounds))
            self._peer.send({}, fd)
            self._peer.flush()
            os.close(fd)
        except BaseException:
            self._peer.close()
            raise

    def take(self, timeout: float) -> tuple[str, Tensor] | bool | None:
        self._peer.connection.settimeout(timeout)
        try:
            data, fds = _received(self._peer.connection)
        except TimeoutError:
            return None
        except OSError as error:
            data, fds = b"", []
            if error.errno == errno.EBADF:
                raise make("Closed", errno.EBADF, "the load is closed", None) from None
        try:
            if not data:
                text = f"the process that loads ({self._process}) has ended before the last tensor\n  load again"
                raise make("ConnectionReset", errno.ECONNRESET, text, "load again")
            message = _parsed(data)
            done, total = message["progress"]
            self._progress = (done, total)
            if "end" in message:
                return True
            if "done" in message:
                # The tensors over it hold it.
                self._memory = None
                return None
            return self._taken(message, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _taken(self, message: dict[str, Any], fds: list[int]) -> tuple[str, Tensor]:
        name, number = message["name"], message["number"]
        if message["is_new"]:
            tell = self._peer.connection if self._counts_held else None
            if len(fds) != 1:
                raise make("InvalidInput", errno.EPROTO, "a memory of the load came without its file", None)
            self._memory = (number, _native._shared_file(fds[0], message["memory_bytes"], number, tell))
            if tell is None:
                self._peer.connection.send(number.to_bytes(8, "little"), socket.MSG_NOSIGNAL)
        assert self._memory is not None and self._memory[0] == number
        (start, nbytes), (kind, shape) = message["place"], message["view"]
        tensor = self._memory[1][start : start + nbytes].view(kind, shape)
        return name, self._part.of(name, tensor)

    def progress(self) -> tuple[int, int]:
        return self._progress

    def close(self) -> None:
        self._memory = None
        self._peer.close()
