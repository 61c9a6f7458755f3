"""Wires in memory: each test has its own, with a sender on one end and a receiver on the other."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable

import pytest

from devmem_tcp import BoundRx, DevmemError, Dmabuf, Listener, Netdev, Stream

SENDER, RECEIVER = "10.77.0.1", "10.77.0.2"
ADDRESS = "10.77.0.2:5201"
#: Far longer than anything here takes: a test that waits this long has failed.
PATIENCE = 60.0

_numbers = itertools.count()


class Wire:
    """Two NICs in user space, and device memory of the receiver."""

    def __init__(self, memory: Dmabuf | None = None, nbytes: int = 4 << 20) -> None:
        link = f"mem:py-{os.getpid()}-{next(_numbers)}"
        self.sender = Netdev.user(link, f"{SENDER}/24")
        self.receiver = Netdev.user(link, f"{RECEIVER}/24")
        self.memory = memory if memory is not None else Dmabuf.anonymous(nbytes)
        self.bound: BoundRx = self.receiver.plan_receive(ADDRESS).bind(self.memory)
        self.listener: Listener = self.receiver.listen(ADDRESS)
        self.listener.settimeout(PATIENCE)

    def connect(self) -> tuple[Stream, Stream]:
        """Returns the sending and the receiving end of a connection."""
        sender = self.sender.connect(ADDRESS, timeout=PATIENCE)
        receiver, _peer = self.listener.accept()
        for stream in (sender, receiver):
            stream.settimeout(PATIENCE)
        return sender, receiver

    def close(self) -> None:
        for handle in (self.listener, self.bound, self.sender, self.receiver):
            handle.close()


@pytest.fixture
def vulkan() -> int:
    """The number of a Vulkan device; skips where there is none. DEVMEM_REQUIRE=vulkan makes that a failure."""
    try:
        Dmabuf.vulkan(4096)
    except DevmemError as error:
        if "vulkan" in os.environ.get("DEVMEM_REQUIRE", ""):
            raise
        pytest.skip(f"SKIP no Vulkan device: {error.strerror}")
    return 0


@pytest.fixture
def wire():
    wire = Wire()
    yield wire
    wire.close()


def listening_last(name: str) -> tuple[Netdev, Listener, int]:
    """Returns the loopback interface, and a listener on the last address of `name`, on a port that is free on the others."""
    nic = Netdev.kernel("lo")
    found = list(dict.fromkeys(info[4][0] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    if len(found) < 2:
        pytest.skip(f"SKIP {name} has one address: {found}")
    listener = nic.listen((found[-1], 0))
    listener.settimeout(PATIENCE)
    return nic, listener, listener.getsockname()[1]


def pattern(length: int, seed: int = 0) -> bytes:
    """Bytes of which no two neighbouring kilobytes are the same."""
    import numpy as np

    numbers = np.arange(seed, seed + (length + 7) // 8, dtype="<u8") * np.uint64(0x9E3779B97F4A7C15)
    return numbers.tobytes()[:length]


def send_in_thread(stream: Stream, data: bytes) -> threading.Thread:
    """Sends all bytes and ends the direction."""

    def send() -> None:
        stream.sendall(data)
        stream.shutdown()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def use_device_memory(alloc: Callable[[int], Dmabuf]) -> None:
    """Receives into memory of a device, gathers there, and sends from it."""
    import numpy as np

    wire = Wire(alloc(4 << 20))
    out, stream = wire.connect()
    numbers = np.arange(250, dtype="f4")
    data = numbers.tobytes()
    device = wire.memory.device

    out.sendall(numbers)
    batch = stream.recv()
    assert batch.device_bytes == len(data)
    [tensor] = batch.tensors()
    gathered = batch.gather()
    assert tensor.device == gathered.device == device
    assert tensor.tobytes() == gathered.tobytes() == batch.tobytes() == data
    target, host = alloc(4096), np.zeros(250, "f4")
    assert batch.gather(out=target[4:]) == batch.gather(out=host) == len(data)
    assert target[4:1004].tobytes() == host.tobytes() == data

    out.sendall(numbers)
    assert stream.recv_into(target[8:1008]) == len(data)
    assert target[8:1008].tobytes() == data
    target.copy_from(bytes(range(256)) * 16)
    tx = wire.sender.bind_tx(target)
    sent = out.send(tx, target[10:20])
    assert stream.recv().tobytes() == bytes(range(10, 20))
    sent.wait(PATIENCE)
    wire.close()
