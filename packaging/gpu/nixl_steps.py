"""NIXL itself over our backend, between two processes with tensors of torch on one GPU: nixl_steps.py PLUGIN BYTES.

The same runs with NIXL's own backend over TCP, UCX, for its rates beside ours.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 5
PATIENCE = 15.0


def skip(reason: str):
    print(reason)
    sys.exit(77)


def nixl():
    """NIXL's Python interface, by the names of its wheels."""
    for name in ("nixl_cu13", "nixl_cu12", "nixl"):
        try:
            return importlib.import_module(f"{name}._api")
        except ImportError:
            continue
    return None


class Agent:
    """An agent with a tensor on the GPU registered."""

    def __init__(self, name: str, backend: str, parameters: dict[str, str], count: int) -> None:
        import torch

        api = nixl()
        self.name, self.backend, self.count = name, backend, count
        self.agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=True, backends=[]))
        self.agent.create_backend(backend, parameters)
        self.tensor = torch.zeros(count, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        self.region = self.agent.register_memory([(self.tensor.data_ptr(), count, 0, "")], "VRAM", backends=[backend])

    def descriptors(self, base: int, pieces: int):
        each = self.count // pieces
        return self.agent.get_xfer_descs([(base + at * each, each, 0) for at in range(pieces)], "VRAM")

    def notified(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self.agent.get_new_notifs(backends=[self.backend]):
            if time.monotonic() > until:
                sys.exit(f"{self.backend}: no notification in {PATIENCE} s")

    def move(self, operation: str, base: int, pieces: int) -> float:
        """One transfer to its end, in Gbit/s: the best of some."""
        ours, theirs = self.descriptors(self.tensor.data_ptr(), pieces), self.descriptors(base, pieces)
        best = float("inf")
        for at in range(REPEATS):
            handle = self.agent.initialize_xfer(operation, ours, theirs, "target", b"done" if at == 0 else b"", backends=[self.backend])
            begun = time.monotonic()
            state = self.agent.transfer(handle)
            while state == "PROC" and time.monotonic() < begun + PATIENCE:
                state = self.agent.check_xfer_state(handle)
            if state != "DONE":
                sys.exit(f"{self.backend}: {operation} is {state}")
            best = min(best, time.monotonic() - begun)
            self.agent.release_xfer_handle(handle)
        return self.count * 8e-9 / best


def values(count: int, seed: int):
    import torch

    return (torch.arange(count, dtype=torch.int64, device="cuda") * seed % 251).to(torch.uint8)


def target(pipe, backend: str, parameters: dict[str, str], count: int) -> None:
    import torch

    it = Agent("target", backend, parameters, count)
    it.tensor.copy_(values(count, 7))
    torch.cuda.synchronize()
    pipe.send((it.agent.get_agent_metadata(), it.tensor.data_ptr()))
    it.agent.add_remote_agent(pipe.recv())
    # What was read is still there when its notification comes; what is written is there then.
    it.notified()
    it.notified()
    pipe.send(torch.equal(it.tensor, values(count, 11)))
    pipe.recv()


def initiator(result, *of_agent) -> None:
    """Sends the figures, or why there are none."""
    try:
        result.send(moved(*of_agent))
    except (Exception, SystemExit) as error:
        result.send(f"{type(error).__name__}: {error}")


def moved(pipe, backend: str, parameters: dict[str, str], count: int) -> dict:
    import torch

    it = Agent("initiator", backend, parameters, count)
    if not pipe.poll(60):
        sys.exit(f"{backend}: the other process said nothing in 60 s")
    metadata, base = pipe.recv()
    pipe.send(it.agent.get_agent_metadata())
    it.agent.add_remote_agent(metadata)
    figures = {"read_gbit_per_s": it.move("READ", base, 1)}
    if not torch.equal(it.tensor, values(count, 7)):
        sys.exit(f"{backend}: other bytes were read")
    it.tensor.copy_(values(count, 11))
    torch.cuda.synchronize()
    figures["write_gbit_per_s"] = it.move("WRITE", base, 256)
    if not pipe.poll(PATIENCE) or not pipe.recv():
        sys.exit(f"{backend}: other bytes were written")
    pipe.send("end")
    return figures


def play(backend: str, parameters: dict[str, str], count: int) -> dict | str:
    """Two processes, because one finds plugins once only."""
    (ours, theirs), (result, figures) = multiprocessing.Pipe(), multiprocessing.Pipe()
    peers = [
        multiprocessing.Process(target=target, args=(theirs, backend, parameters, count), daemon=True),
        multiprocessing.Process(target=initiator, args=(figures, ours, backend, parameters, count), daemon=True),
    ]
    for peer in peers:
        peer.start()
    said = result.recv() if result.poll(60) else f"{backend}: nothing in 60 s"
    for peer in peers:
        peer.join(PATIENCE)
        peer.kill()
    return said


def main() -> None:
    plugin, count = Path(sys.argv[1]), int(sys.argv[2])
    try:
        import torch
    except ImportError:
        skip("there is no torch")
    if not torch.cuda.is_available():
        skip("torch finds no CUDA here")
    if nixl() is None:
        skip("NIXL is not installed")
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(plugin, folder)
        os.environ["NIXL_PLUGIN_DIR"] = folder
        for name, parameters in (("sockets", {"way": "sockets", "address": "127.0.0.1"}), ("auto", {})):
            figures[name] = play("DEVMEM", parameters, count)
            if not isinstance(figures[name], dict):
                sys.exit(f"{name}: {figures[name]}")
        del os.environ["NIXL_PLUGIN_DIR"]
    # What NIXL's own backend cannot do here is no fault of ours.
    os.environ["UCX_TLS"] = "tcp,cuda_copy"
    figures["ucx"] = play("UCX", {}, count)
    print(json.dumps(figures))


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
