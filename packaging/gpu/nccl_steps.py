"""NCCL itself over our plugin, two ranks on one GPU: nccl_steps.py PLUGIN BYTES.

Each rank has its own NCCL_HOSTID, so NCCL takes them for two machines and uses its network. The same runs over NCCL's own sockets,
for its bus bandwidth beside ours.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 2
ROUNDS = 5


def skip(reason: str):
    print(reason)
    sys.exit(77)


def rank(number: int, port: int, count: int) -> None:
    """One process: all-reduce and all-gather of known values, every element checked."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    # The first rank's plugin listens at the wire, once NCCL has loaded it there.
    wire = re.fullmatch(r"user:unix:(.*):[^:]*", os.environ["DEVMEM_TCP_DEVICES"])
    store = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=store, rank=number, world_size=RANKS)
    elements = count // 4
    base = torch.arange(elements, dtype=torch.float32, device="cuda") % 1024
    seconds = []
    until = time.monotonic() + 20
    while wire and not os.path.exists(wire[1]) and time.monotonic() < until:
        time.sleep(0.05)
    for _ in range(ROUNDS):
        vector = base * (number + 1)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        dist.all_reduce(vector)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        # Whole numbers below 2^24: every sum is exact.
        if not torch.equal(vector, base * sum(range(1, RANKS + 1))):
            sys.exit(f"rank {number}: a wrong sum")
    parts = [torch.empty_like(base) for _ in range(RANKS)]
    dist.all_gather(parts, base + number)
    if not all(torch.equal(part, base + at) for at, part in enumerate(parts)):
        sys.exit(f"rank {number}: a wrong part")
    dist.destroy_process_group()
    best = min(seconds)
    print(json.dumps({"busbw_gb_per_s": count / best / 1e9 * 2 * (RANKS - 1) / RANKS, "nccl": list(torch.cuda.nccl.version())}))


def play(settings: dict[str, str], devices: list[str], count: int, folder: Path, name: str) -> dict:
    """Runs both ranks, each with its devices; returns the figures of the first and what NCCL's log says of the network."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs = [folder / f"{name}-{number}.log" for number in range(RANKS)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(number), str(port), str(count)],
            env={
                **os.environ,
                "NCCL_HOSTID": f"devmem-{number}",
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,NET",
                "NCCL_DEBUG_FILE": str(log),
                # The loopback interface is NCCL's way to find the other rank, and that of its sockets.
                "NCCL_SOCKET_IFNAME": "lo",
                "DEVMEM_TCP_DEVICES": devices[number],
                **settings,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, log in enumerate(logs)
    ]
    complaint = None
    try:
        ended = [process.communicate(timeout=30) for process in processes]
    except subprocess.TimeoutExpired:
        complaint = "it did not end in 30 s"
    finally:
        for process in processes:
            process.kill()
    log = "\n".join(path.read_text(errors="replace") for path in logs if path.exists())
    if complaint is None and any(process.returncode for process in processes):
        complaint = "\n".join(error[-700:] for _, error in ended)
    if complaint is not None:
        told = "\n".join(line for line in log.splitlines() if "WARN" in line or "devmem" in line.lower())
        return {"failed": f"{complaint}\n{told[-1200:]}\n[…]{log[-600:]}"}
    networks = sorted(set(re.findall(r"Using network (\S+)", log)))
    moved = re.findall(r"NET/Devmem: a communicator is closed: (.*)", log)[-1:]
    figures = json.loads(ended[0][0].strip().splitlines()[-1])
    return {**figures, "network": networks, "direct": "GDRDMA" in log or "GPU Direct RDMA Enabled" in log, "moved": moved}


def main() -> None:
    plugin, count = sys.argv[1], int(sys.argv[2])
    try:
        import torch
    except ImportError:
        skip("there is no torch, which brings NCCL")
    if not torch.cuda.is_available():
        skip("torch finds no CUDA here")
    with tempfile.TemporaryDirectory() as folder:
        wire = f"{folder}/wire"
        stack = [f"user:unix-listen:{wire}:10.77.0.1/24", f"user:unix:{wire}:10.77.0.2/24"]
        # Memory of GPUs needs a pool on the GPU, and lines that nobody polls while they are written.
        gpu = {"NCCL_PROTO": "^LL128", "NCCL_DEVMEM_POOL": str(64 << 20)}
        kernel = ["kernel:lo"] * RANKS
        figures = {}
        for name, devices, settings in (("gpu_memory", stack, gpu), ("stack", stack, {}), ("kernel", kernel, {})):
            wanted = {"NCCL_NET_PLUGIN": plugin, "NCCL_NET": "Devmem", **settings}
            figures[name] = play(wanted, devices, count, Path(folder), name)
        nothing = {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
        figures["sockets"] = play(nothing, [""] * RANKS, count, Path(folder), "sockets")
    failed = {name: run["failed"] for name, run in figures.items() if "failed" in run}
    if failed:
        # What did work is told, too: each of the runs is another way.
        worked = {name: run for name, run in figures.items() if name not in failed}
        sys.exit("\n".join([*(f"{name}: {text}" for name, text in failed.items()), json.dumps(worked)]))
    networks = {name: run["network"] for name, run in figures.items() if name != "sockets"}
    if any(network != ["Devmem"] for network in networks.values()):
        sys.exit(f"NCCL used {networks}, not our plugin")
    if not figures["gpu_memory"]["direct"]:
        sys.exit("NCCL did not give memory of the GPU to the plugin")
    print(json.dumps(figures))


if sys.argv[1] == "--rank":
    rank(*map(int, sys.argv[2:]))
else:
    main()
