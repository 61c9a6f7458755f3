"""A race of loaders: a sharded checkpoint from nginx, and from an S3 server, into host memory.

    unshare -n sh -c 'ip link set lo up; python bench/race.py [--gib 2] [--rounds 3] [--only NAME ...]'      # as root, for our own stack

Each loader runs as a process of its own, in turn, and holds all tensors at its end. Wall time and processor time are from after its imports to the last tensor; memory
is the most that was resident, less what was resident after the imports. The bytes of all tensors are compared afterwards.
A loader whose package is missing is named, with what is missing. Prints a table for people, and
with --json one JSON object on a line for each run.

Needs nginx; for S3 the packages moto[server] and boto3. nginx stands for a fast store, too: objects are files, and it looks at no signature. moto is a store with all of S3's requests, and in Python: it is what its clients wait for. Loaders: those of the table LOADERS, by the names
of their packages; any torch will do, such as Debian's:

    apt install python3-torch
    pip install numpy==1.26.4 safetensors huggingface_hub boto3 'moto[server]' safetensors-streaming humanize
    pip install --no-deps runai-model-streamer runai-model-streamer-s3 fastsafetensors s3torchconnector s3torchconnectorclient
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SHARDS = 8
TENSORS = 24
BUCKET = "models"

#: What each process does: `load` returns the tensors by name, and what must live as long as they do.
FRAME = """
import json, os, resource, sys, time, zlib
given = json.loads(sys.argv[1])
{imports}
def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime
{load}
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")
before, processor, start = status("VmRSS"), used(), time.monotonic()
tensors, kept = load()
seconds, processor = time.monotonic() - start, used() - processor
memory = status("VmHWM") - before
# Neither is the look at the bytes.
def sum_of(tensor):
    return zlib.crc32(memoryview(tensor.numpy() if hasattr(tensor, "numpy") else tensor).cast("B"))
sums = {{name: sum_of(tensor) for name, tensor in tensors.items()}}
print(json.dumps({{"seconds": seconds, "cpu": processor, "memory": memory, "sums": sums}}))
# Teardown is not part of it.
sys.stdout.flush()
os._exit(0)
"""

#: Of each loader: the modules that it needs, where it loads from, its imports, and the function.
LOADERS: dict[str, tuple[list[str], set[str], str, str]] = {
    "devmem-tcp, kernel sockets": (
        ["devmem_tcp"],
        {"http", "s3"},
        "import devmem_tcp",
        """
def load():
    kept = dict(devmem_tcp.iter_safetensors(given["index"]))
    return kept, None
""",
    ),
    "devmem-tcp, own stack": (
        ["devmem_tcp"],
        {"http"},
        "import devmem_tcp",
        """
def load():
    nic = devmem_tcp.Netdev.user("tap:race0,10.77.9.1/24", "10.77.9.2/24")
    kept = dict(devmem_tcp.iter_safetensors(given["tap_index"], nic))
    return kept, nic
""",
    ),
    "runai-model-streamer, its library": (
        ["runai_model_streamer", "runai_model_streamer_s3", "torch"],
        {"s3"},
        "from runai_model_streamer import SafetensorsStreamer",
        """
def load():
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(given["files"])
        kept = dict(streamer.get_tensors())
    return kept, None
""",
    ),
    "runai-model-streamer, our library": (
        ["runai_model_streamer", "torch"],
        {"s3"},
        "from runai_model_streamer import SafetensorsStreamer",
        """
def load():
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(given["files"])
        kept = dict(streamer.get_tensors())
    return kept, None
""",
    ),
    "safetensors-streaming": (
        ["safetensors_streaming", "numpy"],
        {"http", "s3"},
        "import safetensors_streaming, numpy",
        """
def load():
    kept = {}
    for url in given["files"]:
        kept.update(safetensors_streaming.load_file(url))
    return kept, None
""",
    ),
    "curl to a file system in memory, then fastsafetensors": (
        ["fastsafetensors", "torch"],
        {"http"},
        "import subprocess, fastsafetensors",
        """
def load():
    names = [os.path.join(given["scratch"], os.path.basename(url)) for url in given["files"]]
    fetch = [word for url, name in zip(given["files"], names) for word in ("-o", name, url)]
    subprocess.run(["curl", "-sfZ", *fetch], check=True)
    loader = fastsafetensors.SafeTensorsFileLoader(None, "cpu", nogds=True)
    loader.add_filenames({0: names})
    buffer = loader.copy_files_to_device()
    kept = {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}
    return kept, buffer
""",
    ),
    "huggingface_hub, then safetensors": (
        ["huggingface_hub", "safetensors", "numpy"],
        {"http"},
        "from huggingface_hub import hf_hub_download; from safetensors.numpy import load_file",
        """
def load():
    kept = {}
    for url in given["files"]:
        path = hf_hub_download("race/model", os.path.basename(url), cache_dir=given["scratch"], endpoint=given["origin"])
        kept.update(load_file(path))
    return kept, None
""",
    ),
    "boto3, then safetensors": (
        ["boto3", "safetensors", "numpy"],
        {"s3"},
        "import io, boto3, safetensors.numpy",
        """
def load():
    client = boto3.client("s3", endpoint_url=given["origin"])
    kept = {}
    for url in given["files"]:
        body = io.BytesIO()
        client.download_fileobj(given["bucket"], os.path.basename(url), body)
        kept.update(safetensors.numpy.load(body.getvalue()))
    return kept, None
""",
    ),
    "s3torchconnector, then safetensors": (
        ["s3torchconnector", "safetensors", "torch"],
        {"s3"},
        "from s3torchconnector import S3MapDataset; import safetensors.torch",
        """
def load():
    kept = {}
    for file in S3MapDataset.from_objects(given["files"], region="us-east-1", endpoint=given["origin"]):
        kept.update(safetensors.torch.load(file.read()))
    return kept, None
""",
    ),
}


def make(folder: pathlib.Path, nbytes: int) -> tuple[int, dict[str, int]]:
    """Writes the shards and their index, and returns the bytes of the tensors, and the checksum of each: no two are the same."""
    rows = max(1, nbytes // (SHARDS * TENSORS * 8192))
    block = bytearray(os.urandom(rows * 8192))
    where: dict[str, str] = {}
    sums: dict[str, int] = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        names = [f"layers.{shard}.{number}.weight" for number in range(TENSORS)]
        where.update(dict.fromkeys(names, file))
        offsets = [[at * len(block), (at + 1) * len(block)] for at in range(TENSORS)]
        header: dict[str, Any] = {
            name: {"dtype": "F32", "shape": [rows, 2048], "data_offsets": offset} for name, offset in zip(names, offsets)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                block[:4] = len(sums).to_bytes(4, "little")
                sums[name] = zlib.crc32(block)
                out.write(block)
        # nginx makes the ETag of time and size, and huggingface_hub loads files with one ETag once.
        os.utime(folder / file, (shard, shard))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return len(block) * TENSORS * SHARDS, sums


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}")


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def nginx(folder: pathlib.Path, scratch: pathlib.Path) -> Iterator[int]:
    """The checkpoint at the root, in the layout of a hub, and as objects of a bucket."""
    port = free_port()
    config = scratch / "nginx.conf"
    config.write_text(
        f"""
daemon off; worker_processes 2; pid {scratch}/nginx.pid; error_log stderr crit;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on;
  client_body_temp_path {scratch}/t1; proxy_temp_path {scratch}/t2; fastcgi_temp_path {scratch}/t3; uwsgi_temp_path {scratch}/t4; scgi_temp_path {scratch}/t5;
  server {{
    listen 0.0.0.0:{port};
    root {folder};
    location /{BUCKET}/ {{ alias {folder}/; }}
    location /race/model/resolve/main/ {{ alias {folder}/; add_header X-Repo-Commit 0000000000000000000000000000000000000000; }}
  }}
}}
"""
    )
    # Its workers are of another user, if it is root.
    user = ["-g", "user root;"] if os.getuid() == 0 else []
    with running(["nginx", "-c", str(config), *user], port):
        yield port


@contextmanager
def store(folder: pathlib.Path) -> Iterator[int]:
    """An S3 server with the checkpoint in a bucket."""
    port = free_port()
    with running([sys.executable, "-m", "moto.server", "-p", str(port)], port):
        upload = """
import boto3, pathlib, sys
client = boto3.client("s3", endpoint_url=sys.argv[1])
client.create_bucket(Bucket=sys.argv[2])
for file in sorted(pathlib.Path(sys.argv[3]).iterdir()):
    client.upload_file(str(file), sys.argv[2], file.name)
"""
        where = [f"http://127.0.0.1:{port}", BUCKET, str(folder)]
        subprocess.run([sys.executable, "-c", upload, *where], check=True, env=environment(port), timeout=600)
        yield port


def environment(s3_port: int | None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    own |= {"AWS_ACCESS_KEY_ID": "race", "AWS_SECRET_ACCESS_KEY": "race", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    own |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    if s3_port is not None:
        own |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3_port}", "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0"}
    return own


def missing(modules: list[str]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def library() -> str | None:
    """Our library for Run:ai's streamer, if it was built."""
    named = os.environ.get("DEVMEM_STREAMER")
    if named is not None:
        return named
    from devmem_tcp import runai

    try:
        return str(runai.library())
    except FileNotFoundError:
        return None


class Race:
    """Runs loaders against one kind of server."""

    def __init__(self, kind: str, server: str, port: int, folder: pathlib.Path, expected: int, sums: dict[str, int], rounds: int) -> None:
        self.kind = kind
        self.server = server
        self.port = port
        self.expected = expected
        self.sums = sums
        self.rounds = rounds
        self.files = sorted(file.name for file in folder.glob("*.safetensors"))

    def given(self, scratch: str) -> dict[str, Any]:
        origin = f"http://127.0.0.1:{self.port}"
        base = origin if self.kind == "http" else f"s3://{BUCKET}"
        return {
            "index": f"{base}/model.safetensors.index.json",
            "tap_index": f"http://10.77.9.1:{self.port}/model.safetensors.index.json",
            "files": [f"{base}/{name}" for name in self.files],
            "origin": origin,
            "bucket": BUCKET,
            "scratch": scratch,
        }

    def once(self, name: str) -> dict[str, float] | str:
        """Returns what a run has needed, or why there was none."""
        modules, kinds, imports, load = LOADERS[name]
        if self.kind not in kinds:
            return f"it does not load from {self.kind}"
        lacking = missing(modules)
        if lacking:
            return f"not installed: {', '.join(lacking)}"
        own = environment(self.port if self.kind == "s3" else None)
        if name.endswith("our library"):
            path = library()
            if path is None:
                return "libstreamer.so was not built: cargo build --release -p devmem-streamer, then DEVMEM_STREAMER=PATH"
            own["STREAMER_LIBRARY"] = path
        program = FRAME.format(imports=imports, load=load)
        # Of one file system in memory, so that no loader waits for a disk.
        with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
            command = [sys.executable, "-c", program, json.dumps(self.given(scratch))]
            try:
                run = subprocess.run(command, capture_output=True, text=True, env=own, timeout=900)
            except subprocess.TimeoutExpired:
                return "no end after 900 s"
        if run.returncode != 0:
            lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
            return f"failed: {lines[-1][:160] if lines else run.returncode}"
        found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        sums = found.pop("sums")
        wrong = sorted(name for name in self.sums if sums.get(name) != self.sums[name])
        if wrong or len(sums) != len(self.sums):
            return f"wrong: {len(wrong)} of {len(self.sums)} tensors, {len(sums)} were loaded"
        return found

    def run(self, names: list[str], as_json: bool) -> None:
        print(f"\n{self.expected / 1e9:.2f} GB in {len(self.files)} files over {self.kind} from {self.server}, medians of {self.rounds}:", file=sys.stderr)
        print(f"  {'loader':<56}{'wall s':>8}{'GB/s':>8}{'CPU s':>8}{'memory':>9}", file=sys.stderr)
        for name in names:
            runs = []
            for _ in range(self.rounds):
                outcome = self.once(name)
                if isinstance(outcome, str):
                    print(f"  {name:<56}  {outcome}", file=sys.stderr)
                    break
                runs.append(outcome)
                if as_json:
                    print(json.dumps({"over": self.kind, "from": self.server, "loader": name, **outcome}), flush=True)
            else:
                wall, cpu, memory = (statistics.median(run[key] for run in runs) for key in ("seconds", "cpu", "memory"))
                share = memory / self.expected
                print(f"  {name:<56}{wall:8.2f}{self.expected / wall / 1e9:8.2f}{cpu:8.2f}{share:8.2f}x", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description="A race of loaders of safetensors checkpoints.")
    parser.add_argument("--gib", type=float, default=2.0, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each loader")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="loaders whose names have one of these words")
    parser.add_argument("--json", action="store_true", help="a JSON object for each run, on standard output")
    options = parser.parse_args()
    if shutil.which("nginx") is None:
        print("nginx is not installed: apt install nginx-light", file=sys.stderr)
        return 3
    words = options.only or [""]
    names = [name for name in LOADERS if any(word in name for word in words)]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        folder = pathlib.Path(scratch) / "model"
        folder.mkdir()
        os.chmod(scratch, 0o755)
        expected, sums = make(folder, int(options.gib * (1 << 30)))
        with nginx(folder, pathlib.Path(scratch)) as port:
            for kind in ["http", "s3"]:
                Race(kind, "nginx", port, folder, expected, sums, options.rounds).run(names, options.json)
        lacking = missing(["moto", "boto3"])
        if lacking:
            print(f"\nover s3 from moto: not run: not installed: {', '.join(lacking)}", file=sys.stderr)
            return 0
        with store(folder) as port:
            Race("s3", "moto", port, folder, expected, sums, options.rounds).run(names, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
