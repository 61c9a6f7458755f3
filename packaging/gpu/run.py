"""Runs every step of the GPU bundle that this machine allows, the most telling first, and writes one JSON file.

    python3 run.py [--list] [--only STEP,STEP] [--budget SECONDS] [--json FILE]

A step passes, fails, or is skipped with the reason; after a failure the next one runs. Each has a time limit, and the whole run a budget:
steps that it leaves no time for are skipped and named. Exit status: 0 if no step failed, 1 if one did, 2 for wrong arguments.
With DEVMEM_LIBCUDA naming a stand-in for the driver, the same steps run without a GPU: DEVMEM_GPU_RUN=stand-in makes small transfers of them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOL = HERE / "bin/devmem-tcp"
#: Longest text of one error in the JSON: the whole file is to be read in one answer.
TEXT = 1500
STAND_IN = os.environ.get("DEVMEM_GPU_RUN") == "stand-in"


class Skip(Exception):
    """Something that this machine lacks."""


class Failed(Exception):
    """What a step expected, and what it found."""


@dataclass
class Step:
    name: str
    limit: int
    shows: str
    work: Callable[[Run], dict]


@dataclass
class Result:
    name: str
    result: str
    seconds: float
    figures: dict = field(default_factory=dict)
    text: str = ""


STEPS: list[Step] = []


def step(name: str, limit: int, shows: str):
    """Registers a step that takes at most `limit` seconds."""

    def register(work: Callable[[Run], dict]) -> Callable[[Run], dict]:
        STEPS.append(Step(name, limit, shows, work))
        return work

    return register


def size(real: int, stand_in: int) -> int:
    """Bytes of a transfer: many on a GPU, and few where the CPU plays it."""
    return stand_in if STAND_IN else real


def tail(text: str, limit: int = TEXT) -> str:
    """The end of a text, where errors are."""
    text = text.strip()
    return text if len(text) <= limit else "[…] " + text[-limit:]


class Run:
    """Commands of one step, which end when its time is over."""

    def __init__(self, until: float) -> None:
        self.until = until

    def command(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end. Its process group is killed when the time is over: a demo has children."""
        left = self.until - time.monotonic()
        process = subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=max(left, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise Failed(f"{words[0]} did not end in time; it said:\n{tail(out + err)}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def good(self, *words: object, **variables: str) -> str:
        """Runs a command that must succeed; returns what it printed on stdout."""
        done = self.command(*words, **variables)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, words))}: status {done.returncode}\n{tail(done.stderr or done.stdout)}")
        return done.stdout

    def tool(self, *words: object) -> dict:
        """Runs the tool with --json; returns its report."""
        return json.loads(self.good(TOOL, *words, "--json"))

    def python(self, script: str, *words: object, **variables: str) -> dict:
        """Runs a script of this folder in a process of its own. Its last line is JSON; status 77 is a skip with the reason."""
        path = os.pathsep.join([str(HERE / "python"), os.environ.get("PYTHONPATH", "")])
        done = self.command(sys.executable, HERE / script, *words, PYTHONPATH=path, **variables)
        if done.returncode == 77:
            raise Skip(done.stdout.strip().splitlines()[-1])
        if done.returncode != 0:
            raise Failed(tail(done.stderr or done.stdout))
        return json.loads(done.stdout.strip().splitlines()[-1])


def alternately(repeats: int, **cases: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Runs all cases in turn, so that a slow moment of the machine meets each of them."""
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            seen[name].append(case())
    return {
        name: {"min": min(values), "median": statistics.median(values), "max": max(values)}
        for name, values in seen.items()
    }


def whole(report: dict, count: int) -> dict:
    """Asserts that every byte arrived once and was right, and that all memory came back."""
    wanted = {"bytes": count, "verified_bytes": count, "bad_bytes": 0, "broken": 0}
    got = {name: report[name] for name in wanted}
    if got != wanted or report["net_iovs_home"] != report["net_iovs_total"]:
        raise Failed(f"{json.dumps(report)}, not {wanted}")
    return report


@step("doctor", 30, "what the tool says of the GPU, its driver, dma-bufs, and the way to the NICs")
def doctor(run: Run) -> dict:
    done = run.command(TOOL, "doctor", "--json")
    # Its status tells about the NICs: few machines with a GPU have one that the kernel can use.
    if not done.stdout:
        raise Failed(tail(done.stderr))
    devices = json.loads(done.stdout)["devices"]
    if not any((device["name"], device["state"]) == ("cuda", "good") for device in devices):
        raise Failed(f"no GPU of NVIDIA is good: {json.dumps(devices)}")
    return {"devices": devices}


@step("real", 120, "the tests of the engine on this GPU: copies, gathers, sums, checksums, exports, adopted memory")
def real(run: Run) -> dict:
    words = ["real::", "rates::", "--test-threads=1", "--nocapture"]
    # It computes over 1 GiB, which the stand-in interprets an instruction at a time.
    words += ["--skip", "checksums_of_the_gpu"] if STAND_IN else []
    done = run.command(HERE / "tests/gpu", *words, DEVMEM_REQUIRE="cuda", RUST_BACKTRACE="0")
    text = done.stdout + done.stderr
    closing = re.search(r"test result: .*? (\d+) passed; (\d+) failed", text)
    if not closing:
        raise Failed(tail(text))
    figures = dict(re.findall(r"FIGURE (\S+) (\S+)$", text, re.MULTILINE))
    counts = {"passed": int(closing[1]), "failed": int(closing[2]), **{name: float(it) for name, it in figures.items()}}
    if done.returncode != 0 or counts["passed"] == 0:
        raise Failed(f"{counts}\n{tail(text, 4000)}")
    return counts


@step("adopt", 60, "a tensor of torch is adopted without a copy, exported as a dma-buf, and every byte survives both ways")
def adopt(run: Run) -> dict:
    return run.python("torch_steps.py", "adopt", size(64 << 20, 1 << 20))


@step("refused", 30, "binding the GPU's dma-buf to a NIC that cannot: who refuses, with which text")
def refused(run: Run) -> dict:
    # NVIDIA's module takes whatever attaches to its dma-bufs for a PCI device, so only a NIC that is one is asked.
    nics = [path for path in Path("/sys/class/net").iterdir() if (path / "device/subsystem").exists()]
    nics = [path for path in nics if (path / "device/subsystem").resolve().name == "pci"]
    # The loopback interface has no device at all: since Linux 6.17 the kernel says so before anything attaches.
    if tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2]) >= (6, 17):
        nics.append(Path("/sys/class/net/lo"))
    if not nics:
        raise Skip("no NIC of this machine is a PCI device")
    said = {}
    for nic in nics:
        done = run.command(TOOL, "recv", "--backend", "kernel", "--if", nic.name, "--memory", "cuda:0", "--json")
        said[nic.name] = {"status": done.returncode, "text": tail(done.stderr)}
        if done.returncode == 0:
            raise Failed(f"{nic.name}: a receiver ended without a connection")
    return said


@step("receive", 100, "a stream received into cuda:0, every byte checked there, against host memory in the same run (goal 0.8)")
def receive(run: Run) -> dict:
    count = size(4 << 30, 64 << 20)

    def rate(memory: str) -> Callable[[], float]:
        return lambda: whole(run.tool("demo", "--bytes", count, "--memory", memory), count)["gbit_per_s"]

    rates = alternately(size(3, 1), cuda=rate("cuda:0"), anonymous=rate("anonymous"))
    link = run.tool("demo", "--bytes", "1M", "--memory", "cuda:0")["link"]
    return {"link": link, "gbit_per_s": rates, "ratio": rates["cuda"]["median"] / rates["anonymous"]["median"]}


@step("send", 60, "a stream sent from cuda:0, checked by the receiver, against host memory in the same run")
def send(run: Run) -> dict:
    count = size(2 << 30, 64 << 20)

    def rate(memory: str) -> Callable[[], float]:
        def once() -> float:
            report = run.tool("demo", "--direction", "tx", "--bytes", count, "--memory", memory)
            if (report["bytes"], report["verified_bytes"], report["bad_bytes"]) != (count, count, 0):
                raise Failed(json.dumps(report))
            return report["gbit_per_s"]

        return once

    rates = alternately(size(3, 1), cuda=rate("cuda:0"), anonymous=rate("anonymous"))
    return {"gbit_per_s": rates, "ratio": rates["cuda"]["median"] / rates["anonymous"]["median"]}


@step("exchange", 60, "all-reduce and all-gather of four processes with vectors in cuda:0, added by the GPU")
def exchange(run: Run) -> dict:
    report = run.tool("demo", "--exchange", "--bytes", size(64 << 20, 1 << 20), "--memory", "cuda:0")
    return {name: report[name] for name in ("memory", "reduction") if name in report}


@step("load", 90, "a file of python3 -m http.server, of our NVMe target and of our NBD server loaded into cuda:0, with its CRC-32C computed there")
def load(run: Run) -> dict:
    count = size(512 << 20, 4 << 20)
    figures = {}
    for name, server in (("http", "python"), ("nvme", "nvme")):
        report = run.tool("demo", f"--load={server}", "--bytes", count, "--memory", "cuda:0")
        if report["bytes"] != count:
            raise Failed(json.dumps(report))
        figures[f"{name}_gbit_per_s"] = report["gbit_per_s"]
    return {**figures, **run.python("load_steps.py", TOOL, count)}


@step("python", 60, "the Python package with torch: DLPack, recv_into, adopt, streams")
def python(run: Run) -> dict:
    return run.python("torch_steps.py", "receive", size(64 << 20, 1 << 20))


@step("safetensors", 90, "load_safetensors(device='cuda:0') gives the tensors of safetensors.torch.load_file(device='cuda')")
def safetensors(run: Run) -> dict:
    return run.python("torch_steps.py", "safetensors", size(512 << 20, 1 << 20))


@step("engine", 60, "the load format of vLLM and SGLang fills a model on the GPU, by way of it and of host memory")
def engine(run: Run) -> dict:
    return run.python("torch_steps.py", "engine", size(512 << 20, 1 << 20))


@step("judge", 60, "our judge of the plugin moves memory of the GPU in every version of the interface")
def judge(run: Run) -> dict:
    test = "gpu::every_version_moves_memory_of_gpus"
    done = run.command(HERE / "tests/judge", test, NCCL_JUDGE_REAL_GPU="1", RUST_BACKTRACE="0")
    closing = re.search(r"test result: .*? (\d+) passed; (\d+) failed", done.stdout)
    if done.returncode != 0 or not closing or closing[1] != "1":
        raise Failed(tail(done.stdout + done.stderr, 4000))
    return {"passed": int(closing[1])}


@step("nccl", 130, "NCCL itself: two ranks on one GPU over our plugin, with its buffers on the GPU and in the host; right sums, and the rate of its own sockets")
def nccl(run: Run) -> dict:
    return run.python("nccl_steps.py", HERE / "tests/libnccl_net_devmem.so", size(256 << 20, 1 << 20))


@step("nixl", 60, "our tests of the backend for NIXL move memory of the GPU from and to another process")
def nixl(run: Run) -> dict:
    # Without a name the tests take the stand-in.
    library = os.environ.get("DEVMEM_LIBCUDA", "libcuda.so.1")
    done = run.command(HERE / "tests/nixl", "gpu::", "--test-threads=1", DEVMEM_LIBCUDA=library, RUST_BACKTRACE="0")
    closing = re.search(r"test result: .*? (\d+) passed; (\d+) failed", done.stdout)
    if done.returncode != 0 or not closing or closing[1] == "0":
        raise Failed(tail(done.stdout + done.stderr, 4000))
    return {"passed": int(closing[1])}


@step("agents", 60, "NIXL itself over our backend: two agents with tensors on one GPU, and the rate beside its own backend over TCP")
def agents(run: Run) -> dict:
    return run.python("nixl_steps.py", HERE / "tests/libplugin_DEVMEM.so", size(256 << 20, 1 << 20))


@step("bench", 60, "the benchmark's own rows over a TAP with cuda:0 and with host memory")
def bench(run: Run) -> dict:
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise Skip("no /dev/net/tun")
    words = [HERE / "bin/devmem-bench", "rx", "--only", "ours", "--reps", size(3, 1), "--json"]
    rates = {}
    for memory in ("cuda:0", "anonymous"):
        [row] = json.loads(run.good(*words, "--memory", memory))["rows"]
        rates[memory] = row
    return rates


@step("edges", 40, "a fork, more memory than there is, and a device that is not there have their errors")
def edges(run: Run) -> dict:
    return run.python("torch_steps.py", "edges", 0)


@step("sanitizer", 120, "compute-sanitizer over the tests of the engine")
def sanitizer(run: Run) -> dict:
    program = next((path for path in candidates("compute-sanitizer") if path.exists()), None)
    if not program:
        raise Skip("there is no compute-sanitizer")
    done = run.command(
        # A driver that does not export memory says so by an error of the call, which the tests expect.
        program, "--error-exitcode", 9, "--report-api-errors", "no", HERE / "tests/gpu", "real::", "--test-threads=1", DEVMEM_REQUIRE="cuda"
    )
    text = done.stdout + done.stderr
    if done.returncode != 0:
        raise Failed(tail(text, 4000))
    return {"summary": tail(text, 300)}


def candidates(program: str) -> list[Path]:
    """Where a program may be: on the path, or in an installation of the toolkit."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted(Path("/usr/local").glob("cuda*/bin")) + sorted(Path("/usr/local").glob("cuda*/compute-sanitizer"))
    return [folder / program for folder in folders]


def first_line(*words: str) -> str:
    """The first line that a program prints, or why it prints none."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ((done.stdout or done.stderr).strip().splitlines() or [""])[0]


def driver_version() -> str:
    """What the CUDA library says of itself."""
    try:
        library = ctypes.CDLL(os.environ.get("DEVMEM_LIBCUDA", "libcuda.so.1"))
        number = ctypes.c_int()
        status = library.cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return str(error)
    return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}" if status == 0 else f"error {status}"


def package(name: str) -> str:
    """The version of an installed Python package, without an import: torch takes seconds."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def machine() -> dict:
    """The GPU, the driver and all versions."""
    module = Path("/proc/driver/nvidia/version")
    query = "--query-gpu=name,driver_version,pci.bus_id,memory.total,pcie.link.gen.current,pcie.link.width.current"
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "stand_in": STAND_IN,
        "gpu": first_line("nvidia-smi", query, "--format=csv,noheader"),
        "driver": driver_version(),
        "module": module.read_text().splitlines()[0] if module.exists() else "absent",
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": os.cpu_count(),
        "tun": os.access("/dev/net/tun", os.R_OK | os.W_OK),
        "root": os.geteuid() == 0,
        "tool": first_line(str(TOOL), "--version"),
        "python": platform.python_version(),
        **{name: package(name) for name in ("torch", "cupy-cuda12x", "cupy-cuda13x", "jax", "numpy", "safetensors", "nixl")},
    }


def perform(step: Step, until: float) -> Result:
    begun = time.monotonic()
    left = until - begun
    if left < min(step.limit, 10):
        return Result(step.name, "skipped", 0, text="no time is left of the budget")
    try:
        figures = step.work(Run(begun + min(step.limit, left)))
        result = Result(step.name, "ok", 0, figures)
    except Skip as skip:
        result = Result(step.name, "skipped", 0, text=str(skip))
    except Failed as failed:
        result = Result(step.name, "failed", 0, text=str(failed))
    except Exception as error:  # A fault of a step must not hide what the others show.
        result = Result(step.name, "failed", 0, text=f"{type(error).__name__}: {error}")
    result.seconds = round(time.monotonic() - begun, 1)
    return result


def rounded(value: object) -> object:
    """Figures with at most four digits: the file is read by people."""
    if isinstance(value, dict):
        return {name: rounded(it) for name, it in value.items()}
    if isinstance(value, list):
        return [rounded(it) for it in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def line(result: Result) -> str:
    first = (result.text.splitlines() or [json.dumps(rounded(result.figures))])[0]
    return f"{result.result:8}{result.name:12}{result.seconds:7.1f} s  {first[:150]}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs what this machine allows of the GPU bundle.")
    parser.add_argument("--list", action="store_true", help="print the steps and what each shows")
    parser.add_argument("--only", help="steps to run, separated by commas")
    parser.add_argument("--budget", type=int, default=360, metavar="SECONDS", help="time of the whole run [default: 360]")
    parser.add_argument("--json", type=Path, default=Path("gpu-run.json"), metavar="FILE", help="result [default: gpu-run.json]")
    options = parser.parse_args()
    if options.list:
        for step in STEPS:
            print(f"{step.name:12}{step.limit:4} s  {step.shows}")
        return 0
    wanted = options.only.split(",") if options.only else [step.name for step in STEPS]
    unknown = set(wanted) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; --list prints them")
    until = time.monotonic() + options.budget
    report = {"machine": machine(), "steps": []}
    results = []
    for step in (step for step in STEPS if step.name in wanted):
        results.append(perform(step, until))
        print(line(results[-1]), file=sys.stderr, flush=True)
        report["steps"] = [rounded(asdict(result)) for result in results]
        # After each step: a machine that is taken away leaves what was seen.
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["machine"]), file=sys.stderr)
    failed = [result for result in results if result.result == "failed"]
    for result in failed:
        print(f"\n{result.name}:\n{result.text}", file=sys.stderr)
    counts = {kind: sum(result.result == kind for result in results) for kind in ("ok", "failed", "skipped")}
    print(f"{counts['ok']} ok, {counts['failed']} failed, {counts['skipped']} skipped; {options.json}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
