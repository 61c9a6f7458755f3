"""The rate of a receive loop in Python beside the same loop in Rust, and the time of the import.

    unshare -n python bench/figures.py          # a TAP in a network namespace; needs root

Both loops receive batches of at most 1 MiB on streams of the same NIC, in turn, from a sender that is a process with a socket of the
kernel. Prints one JSON object.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from devmem_tcp import Dmabuf, Netdev, Stream, _native

ADDRESS = ("10.77.0.2", 5201)
BATCH = 1 << 20
ROUNDS = 9
NBYTES = 1 << 30

SENDER = f"""
import socket
block = memoryview(bytes({BATCH}))
with socket.create_connection({ADDRESS!r}) as peer:
    for _ in range({NBYTES} // {BATCH}):
        peer.sendall(block)
"""


def python_loop(stream: Stream) -> int:
    nbytes, batch = 0, None
    while batch := stream.recv(BATCH, batch=batch):
        nbytes += batch.nbytes
    return nbytes


def rust_loop(stream: Stream) -> int:
    return _native._receive_all(stream, BATCH)


def measure(receive, listener) -> float:
    """Returns the rate in Gbit/s."""
    sender = subprocess.Popen([sys.executable, "-c", SENDER])
    stream, _peer = listener.accept()
    stream.peek(1)
    begun = time.perf_counter()
    nbytes = receive(stream)
    elapsed = time.perf_counter() - begun
    stream.close()
    sender.wait()
    assert nbytes == NBYTES, nbytes
    return nbytes * 8 / elapsed / 1e9


def import_times(name: str) -> list[float]:
    program = f"import time; begun = time.perf_counter(); import {name}; print(time.perf_counter() - begun)"
    run = [sys.executable, "-c", program]
    return [float(subprocess.check_output(run)) * 1000 for _ in range(15)]


def spread(values: list[float]) -> dict[str, float]:
    named = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 2) for name, value in named.items()}


def main() -> None:
    memory = Dmabuf.anonymous(256 << 20)
    with Netdev.user("tap:dmpy,10.77.0.1/24", "10.77.0.2/24") as nic:
        bound = nic.plan_receive(ADDRESS).bind(memory)
        listener = nic.listen(ADDRESS)
        measure(rust_loop, listener)
        rates: dict[str, list[float]] = {"python": [], "rust": []}
        for number in range(ROUNDS):
            loops = [("python", python_loop), ("rust", rust_loop)]
            for name, loop in loops if number % 2 == 0 else reversed(loops):
                rates[name].append(measure(loop, listener))
        bound.close()
    pairs = [ours / theirs for ours, theirs in zip(rates["python"], rates["rust"], strict=True)]
    figures = {
        "python_gbit_s": spread(rates["python"]),
        "rust_gbit_s": spread(rates["rust"]),
        "python_of_rust": spread(pairs),
        "import_ms": spread(import_times("devmem_tcp")),
        "load": os.getloadavg(),
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
