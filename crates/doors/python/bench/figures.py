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
from collections.abc import Callable

from devmem_tcp import Dmabuf, Listener, Netdev, Stream, _native

ADDRESS = ("10.77.0.2", 5201)
BATCH = 1 << 20
ROUNDS = 9
NBYTES = 1 << 30

SENDER = f"""
import socket
block = memoryview(bytes({BATCH}))
with socket.create_connection({ADDRESS!r}) as peer:
    # The machine may have chosen another.
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
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


def measure(receive: Callable[[Stream], int], listener: Listener) -> tuple[float, float, float]:
    """Returns the rate in Gbit/s, the processor time of this process in seconds per GB, and the mean batch in KiB."""
    sender = subprocess.Popen([sys.executable, "-c", SENDER])
    stream, _peer = listener.accept()
    stream.peek(1)
    begun, used = time.perf_counter(), time.process_time()
    nbytes = receive(stream)
    elapsed, used = time.perf_counter() - begun, time.process_time() - used
    batch = nbytes / stream.stats["receives"] / 1024
    stream.close()
    sender.wait()
    assert nbytes == NBYTES, nbytes
    return nbytes * 8 / elapsed / 1e9, used / nbytes * 1e9, batch


def import_times(name: str) -> list[float]:
    program = f"import time; begun = time.perf_counter(); import {name}; print(time.perf_counter() - begun)"
    run = [sys.executable, "-c", program]
    return [float(subprocess.check_output(run)) * 1000 for _ in range(15)]


def spread(values: list[float]) -> dict[str, float]:
    named = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 3) for name, value in named.items()}


def main() -> None:
    memory = Dmabuf.anonymous(256 << 20)
    with Netdev.user("tap:dmpy,10.77.0.1/24", "10.77.0.2/24") as nic:
        bound = nic.plan_receive(ADDRESS).bind(memory)
        listener = nic.listen(ADDRESS)
        measure(rust_loop, listener)
        measured: dict[str, list[tuple[float, float, float]]] = {"python": [], "rust": []}
        for number in range(ROUNDS):
            loops = [("python", python_loop), ("rust", rust_loop)]
            for name, loop in loops if number % 2 == 0 else reversed(loops):
                measured[name].append(measure(loop, listener))
        bound.close()
    figures: dict[str, object] = {}
    for at, what in enumerate(("gbit_s", "cpu_s_per_gb", "batch_kib")):
        ours, theirs = ([round_[at] for round_ in measured[name]] for name in ("python", "rust"))
        figures[f"python_{what}"], figures[f"rust_{what}"] = spread(ours), spread(theirs)
        figures[f"python_{what}_of_rust"] = spread([a / b for a, b in zip(ours, theirs, strict=True)])
    figures |= {
        "import_ms": spread(import_times("devmem_tcp")),
        "load": os.getloadavg(),
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
