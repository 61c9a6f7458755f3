"""Steps of the GPU bundle that use the Python package: torch_steps.py adopt|receive|safetensors|engine|edges BYTES.

Without torch the memory is the package's own, and what only torch can show is left out and named under `without`.
"""

from __future__ import annotations

import errno
import http.server
import json
import os
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

SENDER, RECEIVER = "10.77.0.1", "10.77.0.2"
ADDRESS = f"{RECEIVER}:5201"
PATIENCE = 30.0


def skip(reason: str):
    print(reason)
    sys.exit(77)


try:
    import devmem_tcp
    from devmem_tcp import Dmabuf, Netdev
except ImportError as error:
    if Path(__file__).with_name("python").joinpath("devmem_tcp").exists():
        sys.exit(f"the package of the bundle does not load: {error}")
    skip("the bundle has no Python package")
try:
    import torch
except ImportError:
    torch = None
if torch is not None and not torch.cuda.is_available():
    # It was built for CPUs, or finds no driver of NVIDIA.
    torch = None
WITHOUT = {} if torch is not None else {"without": "torch with CUDA"}


def pattern(count: int) -> bytes:
    """Bytes of which no two neighbouring blocks of 4 KiB are the same."""
    block = bytes((at * 131 + (at >> 8) * 17) & 0xFF for at in range(4096))
    return b"".join(struct.pack("<Q", number) + block[8:] for number in range(count // 4096))


def expect(got: object, wanted: object, what: str) -> None:
    if got != wanted:
        sys.exit(f"{what}: {got!r}, not {wanted!r}"[:1000])


class Wire:
    """A sender and a receiver on a wire in memory, with `memory` bound to the receiver."""

    def __init__(self, memory: Dmabuf) -> None:
        link = f"mem:gpu-run-{os.getpid()}"
        self.sender = Netdev.user(link, f"{SENDER}/24")
        self.receiver = Netdev.user(link, f"{RECEIVER}/24")
        self.bound = self.receiver.plan_receive(ADDRESS).bind(memory)
        self.listener = self.receiver.listen(ADDRESS)

    def connect(self):
        out = self.sender.connect(ADDRESS, timeout=PATIENCE)
        into, _ = self.listener.accept()
        for stream in (out, into):
            stream.settimeout(PATIENCE)
        return out, into

    def close(self) -> None:
        for handle in (self.listener, self.bound, self.sender, self.receiver):
            handle.close()


def send_in_thread(stream, data: bytes) -> threading.Thread:
    thread = threading.Thread(target=lambda: (stream.sendall(data), stream.shutdown()), daemon=True)
    thread.start()
    return thread


def device_memory(count: int) -> Dmabuf:
    """Memory of the GPU that torch has allocated, or the package's own without torch."""
    if torch is None:
        return Dmabuf.cuda(count)
    return Dmabuf.adopt(torch.zeros(count, dtype=torch.uint8, device="cuda"))


def adopt(count: int) -> dict:
    data = pattern(count)
    figures = dict(WITHOUT)
    if torch is not None:
        tensor = torch.zeros(count, dtype=torch.uint8, device="cuda")
        memory = Dmabuf.adopt(tensor)
        expect(memory.data_ptr, tensor.data_ptr(), "address of the adopted tensor")
        memory.copy_from(data)
        expect(bytes(tensor.cpu().numpy()) == data, True, "bytes that torch sees after our copy")
        tensor.add_(1)
        expect(memory.tobytes() == bytes(tensor.cpu().numpy()), True, "bytes that we see after torch's work")
        tensor.sub_(1)
        back = torch.from_dlpack(memory)
        expect(back.data_ptr(), tensor.data_ptr(), "address by DLPack")
    else:
        memory = Dmabuf.cuda(count)
        memory.copy_from(data)
    begun = time.perf_counter()
    expect(memory.tobytes() == data, True, "bytes on their way in and out")
    figures["copy_out_gb_per_s"] = count / (time.perf_counter() - begun) / 1e9
    begun = time.perf_counter()
    memory.copy_from(data)
    figures["copy_in_gb_per_s"] = count / (time.perf_counter() - begun) / 1e9
    try:
        figures["dmabuf"] = f"descriptor {memory.fileno()}"
    except OSError as error:
        figures["dmabuf"] = str(error)
    return figures


def receive(count: int) -> dict:
    data = pattern(count)
    memory = device_memory(16 << 20)
    wire = Wire(memory)
    figures = dict(WITHOUT)

    # Batches, seen where they lie.
    out, into = wire.connect()
    sender, seen, begun = send_in_thread(out, data), bytearray(), time.perf_counter()
    for batch in into:
        for tensor in batch.tensors():
            expect(tensor.device, "cuda:0", "device of a part")
            part = bytes(torch.from_dlpack(tensor).cpu().numpy()) if torch is not None else tensor.tobytes()
            seen += part
    sender.join()
    expect(bytes(seen) == data, True, f"{len(seen)} bytes of batches")
    figures["batches_gbit_per_s"] = count * 8e-9 / (time.perf_counter() - begun)

    # Exactly the bytes of a tensor, gathered by the GPU.
    target = torch.zeros(count, dtype=torch.uint8, device="cuda") if torch is not None else Dmabuf.cuda(count)
    out, into = wire.connect()
    sender, begun = send_in_thread(out, data), time.perf_counter()
    expect(into.recv_into(target), count, "length of recv_into")
    figures["recv_into_gbit_per_s"] = count * 8e-9 / (time.perf_counter() - begun)
    sender.join()
    got = bytes(target.cpu().numpy()) if torch is not None else target.tobytes()
    expect(got == data, True, "bytes of recv_into")

    if torch is not None:
        # Work of a stream of torch on gathered bytes is ordered behind the gather, without a wait of the program.
        out, into = wire.connect()
        send_in_thread(out, data[: 1 << 20])
        batch = into.recv()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            gathered = torch.from_dlpack(batch.gather())
            total = gathered.to(torch.int64).sum()
        stream.synchronize()
        expect(int(total), sum(data[: gathered.numel()]), "sum on a stream of torch")
        # Sent from a tensor.
        source = torch.arange(1 << 20, dtype=torch.int32, device="cuda")
        sending = Dmabuf.adopt(source)
        tx = wire.sender.bind_tx(sending)
        out, into = wire.connect()
        sent = out.send(tx, sending[:])
        back = torch.zeros_like(source)
        into.recv_into(back)
        sent.wait(PATIENCE)
        expect(bool((back == source).all()), True, "tensor sent from the GPU")
    wire.close()
    return figures


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files with ranges, and no log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.translate_path(self.path)
        total = os.path.getsize(path)
        first, last = 0, total - 1
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            begin, _, end = asked[6:].partition("-")
            first, last = int(begin), min(int(end or last), last)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        with open(path, "rb") as file:
            file.seek(first)
            left = last - first + 1
            while left:
                part = file.read(min(left, 1 << 20))
                self.wfile.write(part)
                left -= len(part)


class Checkpoint:
    """A file of 16 tensors, and a server for it in this process."""

    def __init__(self, folder: str, count: int) -> None:
        self.names = [f"layer.{number}.weight" for number in range(16)]
        self.path = Path(folder, "model.safetensors")
        each = count // len(self.names) // 4
        self.header = {
            name: {"dtype": "F32", "shape": [each], "data_offsets": [4 * each * at, 4 * each * (at + 1)]}
            for at, name in enumerate(self.names)
        }
        text = json.dumps(self.header).encode()
        text += b" " * (-len(text) % 8)
        self.begin = 8 + len(text)
        with self.path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for at in range(len(self.names)):
                file.write(pattern(4 * each // 4096 * 4096)[at * 8 :].ljust(4 * each, bytes([at])))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *words: Quiet(*words, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}/{self.path.name}"

    def of_safetensors(self):
        """The tensors as the package of safetensors loads them to the GPU, and its seconds; None where it or CUDA is not there."""
        try:
            from safetensors.torch import load_file
        except ImportError:
            return None
        if torch is None:
            return None
        begun = time.perf_counter()
        loaded = load_file(self.path, device="cuda")
        torch.cuda.synchronize()
        return loaded, time.perf_counter() - begun

    def bytes_of(self, name: str) -> bytes:
        begin, end = self.header[name]["data_offsets"]
        with self.path.open("rb") as file:
            file.seek(self.begin + begin)
            return file.read(end - begin)


def safetensors(count: int) -> dict:
    figures = dict(WITHOUT)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(folder, count)
        begun = time.perf_counter()
        loaded = devmem_tcp.load_safetensors(checkpoint.url, device="cuda:0")
        figures["ours_s"] = time.perf_counter() - begun
        expect(sorted(loaded), sorted(checkpoint.names), "names")
        theirs = checkpoint.of_safetensors()
        if theirs is None:
            figures["without"] = "safetensors.torch with CUDA"
            for name in checkpoint.names:
                expect(loaded[name].tobytes() == checkpoint.bytes_of(name), True, name)
            return figures
        tensors, figures["load_file_s"] = theirs
        for name in checkpoint.names:
            equal = torch.equal(torch.from_dlpack(loaded[name]).view(torch.uint8), tensors[name].view(torch.uint8))
            expect(equal, True, name)
    return figures


def engine(count: int) -> dict:
    """The way of the load format for vLLM and SGLang: each tensor is copied into the model when it comes."""
    from devmem_tcp import _engines

    if torch is None:
        skip("torch with CUDA is not there, and the tensors of the load format are torch's")
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(folder, count)
        each = checkpoint.header[checkpoint.names[0]]["shape"][0]
        for device in ("cuda", "cpu"):
            model = {name: torch.zeros(each, device="cuda") for name in checkpoint.names}
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for name, weight in _engines.weights({"url": checkpoint.url, "device": device}):
                model[name].copy_(weight)
            torch.cuda.synchronize()
            figures[f"{device}_s"] = time.perf_counter() - begun
            for name, parameter in model.items():
                expect(bytes(parameter.cpu().numpy()) == checkpoint.bytes_of(name), True, f"{name} by way of {device}")
    return figures


def edges(_count: int) -> dict:
    figures: dict = {}
    for name, (nbytes, device), wanted in [
        ("no_device", (4096, 99), errno.ENODEV),
        ("too_much", (1 << 50, 0), errno.ENOMEM),
    ]:
        try:
            Dmabuf.cuda(nbytes, device)
            sys.exit(f"{name}: no error")
        except devmem_tcp.DevmemError as error:
            expect(error.errno, wanted, f"{name}: {error}")
            figures[name] = str(error)
    memory = Dmabuf.cuda(1 << 20)
    child = os.fork()
    if child == 0:
        try:
            memory.copy_from(bytes(1 << 20))
            os._exit(1)
        except devmem_tcp.ForkedError:
            os._exit(0)
        finally:
            os._exit(2)
    expect(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "status of a forked child that uses the GPU")
    memory.copy_from(bytes(range(256)) * 4096)
    expect(memory.tobytes() == bytes(range(256)) * 4096, True, "bytes in the parent after the fork")
    return figures


if __name__ == "__main__":
    steps = {"adopt": adopt, "receive": receive, "safetensors": safetensors, "engine": engine, "edges": edges}
    print(json.dumps(steps[sys.argv[1]](int(sys.argv[2]))))
