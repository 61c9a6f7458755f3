"""Broadcasts the parameters of a model from one process to others, each with its own connection.

    python broadcast.py          # over the loopback interface of the kernel: needs nothing
    python broadcast.py --tap    # each worker has a NIC in user space and receives into device memory: needs root

The process that sends uses the sockets of Python: any TCP peer works.
"""

import json
import multiprocessing
import socket
import sys

import numpy as np

from devmem_tcp import BoundRx, Dmabuf, Netdev

WORKERS = 3
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


def worker(number: int, port: int, tap: bool) -> None:
    """Receives the parameters into device memory, and checks them there."""
    bound: BoundRx | None = None
    if tap:
        nic = Netdev.user(f"tap:dmbc{number},10.79.{number}.1/24", f"10.79.{number}.2/24")
        source = (f"10.79.{number}.2", 5201)
        queue_memory = Dmabuf.anonymous(16 << 20)
        bound = nic.plan_receive(source).bind(queue_memory)
        stream = nic.connect((f"10.79.{number}.1", port), timeout=10, source=source)
    else:
        nic = Netdev.kernel("lo")
        stream = nic.connect(("127.0.0.1", port), timeout=10)

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
    if bound is not None:
        bound.close()


def main() -> None:
    tap = "--tap" in sys.argv[1:]
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        workers = [context.Process(target=worker, args=(number, port, tap)) for number in range(WORKERS)]
        for process in workers:
            process.start()
        message = parameters_message()
        for _ in workers:
            connection, _peer = server.accept()
            with connection:
                connection.sendall(message)
        for process in workers:
            process.join()
    assert all(process.exitcode == 0 for process in workers)
    print(f"{WORKERS} workers have all parameters")


if __name__ == "__main__":
    main()
