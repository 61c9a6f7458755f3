"""Broadcasts the parameters of a model from one process to others, each with its own connection.

    python broadcast.py          # over UNIX sockets between NICs in user space: needs nothing
    python broadcast.py --tap    # over TAPs, from the sockets of Python, as from any TCP peer: needs root

Each worker receives into device memory that is bound to its NIC.
"""

import json
import multiprocessing
import socket
import sys
import tempfile
from multiprocessing.context import SpawnProcess

import numpy as np

from devmem_tcp import Dmabuf, Listener, Netdev

WORKERS = 3
PORT = 5201
PARAMETERS: dict[str, np.ndarray] = {
    "embedding": np.arange(64_000, dtype=np.float32).reshape(1000, 64),
    "bias": np.full(1000, 0.5, np.float64),
    "steps": np.array([7], np.int64),
}


def parameters_message() -> bytes:
    """A header of JSON with its length, then the bytes of all arrays."""
    described = {name: (array.dtype.name, array.shape) for name, array in PARAMETERS.items()}
    header = json.dumps(described).encode()
    arrays = b"".join(array.tobytes() for array in PARAMETERS.values())
    return len(header).to_bytes(4, "big") + header + arrays


def sender_of(number: int) -> str:
    return f"10.79.{number}.1"


def receiver_of(number: int) -> str:
    return f"10.79.{number}.2"


def worker(number: int, link: str) -> None:
    """Receives the parameters into device memory, and checks them there."""
    nic = Netdev.user(link, f"{receiver_of(number)}/24")
    source = (receiver_of(number), PORT)
    bound = nic.plan_receive(source).bind(Dmabuf.anonymous(16 << 20))
    stream = nic.connect((sender_of(number), PORT), timeout=10, source=source)

    length = bytearray(4)
    stream.recv_into(length)
    header = bytearray(int.from_bytes(length, "big"))
    stream.recv_into(header)
    described = {name: (np.dtype(dtype), shape) for name, (dtype, shape) in json.loads(header).items()}
    sizes = {name: dtype.itemsize * int(np.prod(shape)) for name, (dtype, shape) in described.items()}

    pages = -(-sum(sizes.values()) // 4096) * 4096
    memory = Dmabuf.anonymous(pages)  # Dmabuf.cuda(pages) where there is a GPU
    stream.recv_into(memory[: sum(sizes.values())])
    at = 0
    for name, (dtype, shape) in described.items():
        # A view of the memory; torch.from_dlpack takes it, too.
        tensor = memory[at : at + sizes[name]].view(dtype, shape)
        assert (tensor.numpy() == PARAMETERS[name]).all(), name
        at += sizes[name]
    stats = stream.stats
    print(f"worker {number}: {len(described)} arrays, {stats['device_bytes']} bytes received in device memory")
    bound.close()


def send_from_sockets(message: bytes) -> None:
    """Sends to workers behind TAPs, whose ends in the kernel have the addresses of the sender."""
    with socket.create_server(("", PORT)) as server:
        workers = start([f"tap:dmbc{number},{sender_of(number)}/24" for number in range(WORKERS)])
        for _ in workers:
            connection, _peer = server.accept()
            with connection:
                connection.sendall(message)
        join(workers)


def send_from_nics(message: bytes) -> None:
    """Sends to workers at the other ends of UNIX sockets, from a NIC for each of them."""
    with tempfile.TemporaryDirectory() as folder:
        listeners: list[Listener] = []
        for number in range(WORKERS):
            nic = Netdev.user(f"unix-listen:{folder}/{number}", f"{sender_of(number)}/24")
            listeners.append(nic.listen((sender_of(number), PORT)))
        workers = start([f"unix:{folder}/{number}" for number in range(WORKERS)])
        for listener in listeners:
            stream, _peer = listener.accept()
            with stream:
                stream.sendall(message)
        join(workers)


def start(links: list[str]) -> list[SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=worker, args=(number, link)) for number, link in enumerate(links)]
    for process in workers:
        process.start()
    return workers


def join(workers: list[SpawnProcess]) -> None:
    for process in workers:
        process.join()
    assert all(process.exitcode == 0 for process in workers)
    print(f"{len(workers)} workers have all parameters")


if __name__ == "__main__":
    send = send_from_sockets if "--tap" in sys.argv[1:] else send_from_nics
    send(parameters_message())
