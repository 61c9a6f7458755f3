"""Tensors one after the other, in bounded memory, and only the bytes that are asked for."""

import asyncio
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import devmem_tcp
from devmem_tcp import Netdev, Progress, _shared, aio, iter_safetensors
from test_load import ARRAYS, check, checkpoint, no_proxy  # noqa: F401
from test_waits import interrupted

DTYPES = {"f4": "F32", "u1": "U8", "f2": "F16", "i4": "I32"}


def safetensors(arrays):
    header, at = {}, 0
    for name, array in arrays.items():
        kind = DTYPES[array.dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values())


class Ranges(http.server.BaseHTTPRequestHandler):
    """A server of files in memory, with ranges, that keeps connections and remembers what was asked for."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def do_GET(self):
        body = self.server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(asked[1]), min(int(asked[2]) + 1, len(body))) if asked else (0, len(body))
        self.server.asked.append((self.path, start, end))
        self.send_response(206 if asked else 200)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        self.server.before_body(self.path, start)
        self.wfile.write(body[start:end])


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        server.daemon_threads = True
        server.files, server.asked = {}, []
        server.before_body = lambda _path, _start: None
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


#: More than the first request for a file brings.
LARGE = {
    "a": np.arange(400_000, dtype="f4").reshape(1000, 400),
    "b": np.arange(300_000, dtype="i4").reshape(300, 1000),
    "small": np.arange(10, dtype="u1"),
    "c": np.arange(500_000, dtype="f4")[::-1].copy().reshape(500, 1000),
}


@pytest.fixture
def large(server):
    server.files["/m.safetensors"] = safetensors(LARGE)
    return f"{server.url}/m.safetensors"


def same(tensor, array):
    assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype.name)
    assert tensor.tobytes() == array.tobytes()


def test_all_tensors_come_once_and_are_those_of_the_file(server):
    server.files["/model.safetensors"] = checkpoint()
    tensors = iter_safetensors(f"{server.url}/model.safetensors", Netdev.kernel("lo"))
    metadata, entries = tensors.metadata, tensors.entries
    found = list(tensors)
    assert len(found) == len(dict(found)) == len(entries)
    result = devmem_tcp.Tensors(dict(found), metadata, entries)
    check(result)
    assert next(tensors, None) is None


def test_the_shards_of_an_index_come_as_one(server):
    server.files["/m-1.safetensors"] = safetensors({name: LARGE[name] for name in ["a", "small"]})
    server.files["/m-2.safetensors"] = safetensors({name: LARGE[name] for name in ["b", "c"]})
    where = {"a": "m-1", "small": "m-1", "b": "m-2", "c": "m-2"}
    index = {"weight_map": {name: f"{file}.safetensors" for name, file in where.items()}}
    server.files["/m.safetensors.index.json"] = json.dumps(index).encode()
    found = dict(iter_safetensors(f"{server.url}/m.safetensors.index.json", connections=2))
    for name, array in LARGE.items():
        same(found.pop(name), array)
    assert not found


def test_a_tensor_comes_before_the_load_is_at_its_end(server, large):
    """The last tensor is held back until the first one was taken."""
    taken = threading.Event()
    last = len(server.files["/m.safetensors"]) - LARGE["c"].nbytes

    def before_body(_path, start):
        if start >= last:
            assert taken.wait(60)

    server.before_body = before_body
    # Windows of 2 MB: "a" is in another one than "c".
    tensors = iter_safetensors(large, memory_limit=8_000_000)
    name, tensor = next(tensors)
    same(tensor, LARGE[name])
    assert name != "c"
    taken.set()
    assert {name for name, _tensor in tensors} == set(LARGE) - {name}


def test_names_choose_tensors_and_only_their_bytes_are_requested(server, large):
    found = dict(iter_safetensors(large, names=["c", "small"]))
    same(found["c"], LARGE["c"])
    assert set(found) == {"c", "small"}
    whole = len(server.files["/m.safetensors"])
    start = whole - LARGE["c"].nbytes - LARGE["small"].nbytes
    # All but the first request, which reads the header.
    assert all(at >= start for _path, at, _end in server.asked[1:]), server.asked
    found = dict(iter_safetensors(large, names=lambda name: name < "b"))
    assert set(found) == {"a"}
    with pytest.raises(ValueError, match="has no tensor 'x'"):
        iter_safetensors(large, names=["a", "x"])
    with pytest.raises(TypeError, match="one text"):
        iter_safetensors(large, names="a")


def requested(server):
    """Returns the ranges of all but the first request, joined."""
    ranges = sorted((start, end) for _path, start, end in server.asked[1:])
    joined = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def test_rows_are_requested_and_nothing_else(server, large):
    found = dict(iter_safetensors(large, names=["c"], slices={"c": slice(100, 200)}))
    same(found["c"], LARGE["c"][100:200])
    at = len(server.files["/m.safetensors"]) - LARGE["c"].nbytes
    assert requested(server) == [(at + 100 * 4000, at + 200 * 4000)]


def test_columns_are_merged_where_a_request_costs_more_than_the_gap(server, large):
    part = (slice(450, None), slice(200, 500))
    at = len(server.files["/m.safetensors"]) - LARGE["c"].nbytes
    rows = range(450, 500)
    for merge_gap in [2800, 2799]:
        server.asked.clear()
        found = dict(iter_safetensors(large, names=["c"], slices={"c": part}, merge_gap=merge_gap))
        same(found["c"], LARGE["c"][part])
        runs = [(at + row * 4000 + 800, at + row * 4000 + 2000) for row in rows]
        assert requested(server) == (runs if merge_gap == 2799 else [(runs[0][0], runs[-1][1])])


def test_slices_may_be_a_function_and_what_is_no_part_is_refused(large):
    def halves(name, shape):
        return (slice(None), slice(shape[1] // 2, None)) if len(shape) == 2 else None

    found = dict(iter_safetensors(large, slices=halves))
    for name, array in LARGE.items():
        same(found[name], array[:, array.shape[1] // 2 :] if array.ndim == 2 else array)
    same(dict(iter_safetensors(large, names=["a"], slices={"a": slice(-1, -5)}))["a"], LARGE["a"][:0])
    for wrong, error in [
        ({"a": slice(0, 9, 2)}, ValueError),
        ({"a": 3}, TypeError),
        ({"a": (slice(1), slice(1), slice(1))}, ValueError),
        ({"x": slice(1)}, ValueError),
    ]:
        with pytest.raises(error):
            iter_safetensors(large, slices=wrong)


def test_the_name_of_a_tensor_is_escaped_in_an_error(server):
    server.files["/odd.safetensors"] = safetensors({"a\x1b[2J": np.zeros((4, 4), dtype="f4")})
    for part in [slice(0, 2, 2), (slice(1),) * 3, 3]:
        with pytest.raises((ValueError, TypeError), match=r"the part of 'a\\x1b\[2J' (has|is)"):
            iter_safetensors(f"{server.url}/odd.safetensors", slices={"a\x1b[2J": part})


def test_tensors_that_are_held_count(large):
    limit = 3_000_000
    tensors = iter_safetensors(large, memory_limit=limit, idle_limit=2)
    held = {}
    with pytest.raises(devmem_tcp.OutOfResourcesError, match="the limit is 3000000") as raised:
        for name, tensor in tensors:
            held[name] = tensor
            assert sum(tensor.nbytes for tensor in held.values()) <= limit
            del tensor
    assert raised.value.remedy == "drop tensors, or raise memory_limit="
    # A view keeps the memory, too.
    views = {name: np.from_dlpack(tensor) for name, tensor in held.items()}
    held.clear()
    with pytest.raises(devmem_tcp.OutOfResourcesError):
        next(tensors)
    for name, view in views.items():
        assert view.tobytes() == LARGE[name].tobytes()
    seen = set(views)
    del views, view
    for name, tensor in tensors:
        same(tensor, LARGE[name])
        seen.add(name)
        del tensor
    assert seen == set(LARGE)


def test_a_tensor_that_exceeds_the_limit_is_named(large):
    with pytest.raises(devmem_tcp.OutOfResourcesError, match='"c" needs 20'):
        iter_safetensors(large, memory_limit=1_999_999)
    found = dict(iter_safetensors(large, names=["c"], slices={"c": slice(0, 10)}, memory_limit=100_000))
    same(found["c"], LARGE["c"][:10])
    for wrong in [{"memory_limit": 0}, {"merge_gap": -1}, {"ranks": 2}, {"shared": "@"}, {"shared": "@x", "ranks": 0}]:
        with pytest.raises(ValueError):
            iter_safetensors(large, **wrong)
    with pytest.raises(TypeError):
        iter_safetensors(large, progress=3)


def test_progress_is_told_and_ends_with_all_bytes(large, capfd):
    told = []
    dict(iter_safetensors(large, progress=told.append))
    total = sum(array.nbytes for array in LARGE.values())
    assert isinstance(told[-1], Progress)
    assert (told[-1].nbytes, told[-1].total_nbytes, told[-1].taken) == (total, total, len(LARGE))
    assert [one.nbytes for one in told] == sorted(one.nbytes for one in told)
    dict(iter_safetensors(large, progress=True))
    lines = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"100 %: 0\.00 of 0\.00 GB, .* GB/s, 4 tensors", lines[-1]), lines
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_a_bar_is_shown(large):
    leader, follower = os.openpty()
    program = f"import devmem_tcp; dict(devmem_tcp.iter_safetensors({large!r}, progress=True))"
    subprocess.run([sys.executable, "-c", program], check=True, stderr=follower, timeout=120)
    os.close(follower)
    shown = os.read(leader, 65536).decode()
    os.close(leader)
    assert "[==============================] 100%" in shown and shown.endswith("\r\n"), shown


def test_errors_of_the_server_come_out_of_the_iterator(server, large):
    with pytest.raises(FileNotFoundError, match="404"):
        iter_safetensors(f"{server.url}/nothing.safetensors")
    tensors = iter_safetensors(large, memory_limit=8_000_000)
    next(tensors)
    tensors.close()
    tensors.close()
    assert next(tensors, None) is None
    # The file is another one before the second window.
    server.before_body = lambda _path, start: start and server.files.clear()
    with pytest.raises(devmem_tcp.DevmemError):
        for _name, tensor in iter_safetensors(large, memory_limit=8_000_000):
            del tensor


def test_a_signal_ends_the_wait(server, large):
    stop = threading.Event()
    server.before_body = lambda _path, start: start and stop.wait(60)
    tensors = iter_safetensors(large)

    def drain():
        for _ in tensors:
            pass

    interrupted(drain)
    tensors.close()
    stop.set()


def test_asyncio_iterates_and_a_cancelled_wait_loses_nothing(server, large):
    stop = threading.Event()
    server.before_body = lambda _path, start: start and stop.wait(60)

    async def main():
        found = {}
        async with aio.iter_safetensors(large, memory_limit=8_000_000) as tensors:
            with pytest.raises(TimeoutError):
                while True:
                    name, tensor = await asyncio.wait_for(anext(tensors), 1)
                    found[name] = tensor
            stop.set()
            async for name, tensor in tensors:
                assert name not in found
                found[name] = tensor
        with pytest.raises(FileNotFoundError):
            async for _ in aio.iter_safetensors(f"{server.url}/none"):
                pass
        async with aio.iter_safetensors(large) as closed:
            await anext(closed)
        return found

    found = asyncio.run(asyncio.wait_for(main(), 60))
    assert set(found) == set(LARGE)
    for name, tensor in found.items():
        same(tensor, LARGE[name])


def test_tasks_take_turns_and_a_tensor_that_has_come_outlives_a_cancelled_task():
    async def main():
        tensors = aio.TensorIterator(lambda: iter(enumerate("abcd")))
        task = asyncio.create_task(tensors.__anext__())
        while tensors._step is None or not tensors._step.done():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await anext(tensors) == (0, "a")
        several = await asyncio.gather(*(tensors.__anext__() for _ in range(3)))
        assert sorted(several) == [(1, "b"), (2, "c"), (3, "d")]
        with pytest.raises(StopAsyncIteration):
            await anext(tensors)

    asyncio.run(asyncio.wait_for(main(), 60))


RANK = """
import hashlib, json, sys
from devmem_tcp import iter_safetensors
url, options = json.loads(sys.argv[1])
rank = options.pop("rank")
stop = options.pop("stop", None)
if "rows" in options:
    rows = options.pop("rows")
    options["slices"] = lambda name, shape: slice(*rows) if len(shape) == 2 else None
if "columns" in options:
    columns = options.pop("columns")
    options["slices"] = lambda name, shape: (slice(None), slice(*columns)) if len(shape) == 2 else None
found = {}
for name, tensor in iter_safetensors(url, shared_timeout=60, **options):
    found[name] = [list(tensor.shape), hashlib.sha256(tensor.tobytes()).hexdigest()]
    if stop:
        print("stopped", flush=True)
        sys.stdin.read()
    del tensor
print(json.dumps(found))
"""


def ranks(url, *options, name=None):
    """Starts processes that share a load."""
    shared = {"shared": name or f"@devmem-test-{os.getpid()}-{time.monotonic_ns()}", "ranks": len(options)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps([url, {"rank": rank, **shared, **of}])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        for rank, of in enumerate(options)
    ]


def digest(array):
    import hashlib

    return [list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def outcome(process):
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return json.loads(out)


def test_ranks_share_one_load_and_each_gets_its_part(server, large, tmp_path):
    for name in [None, str(tmp_path / "load.sock")]:
        server.asked.clear()
        all_ranks = ranks(
            large,
            {"memory_limit": 9_000_000},
            {"memory_limit": 9_000_000, "rows": [10, 20]},
            {"memory_limit": 9_000_000, "columns": [100, 300]},
            {"memory_limit": 9_000_000, "names": ["b"]},
            name=name,
        )
        whole, rows, columns, one = map(outcome, all_ranks)
        assert whole == {name: digest(array) for name, array in LARGE.items()}
        parts = {name: array[10:20] if array.ndim == 2 else array for name, array in LARGE.items()}
        assert rows == {name: digest(array) for name, array in parts.items()}
        parts = {name: array[:, 100:300] if array.ndim == 2 else array for name, array in LARGE.items()}
        assert columns == {name: digest(array) for name, array in parts.items()}
        assert one == {"b": digest(LARGE["b"])}
        # Each byte was requested once: the first request for the file brings 256 KiB.
        assert sum(end - start for _path, start, end in server.asked) <= len(server.files["/m.safetensors"])
    assert not (tmp_path / "load.sock").exists()


def wait_until_stopped(all_ranks):
    """Waits until all of these ranks, which stop with a tensor, have done so."""
    for rank in all_ranks:
        if rank.stdout.readline() != "stopped\n":
            rank.kill()
            pytest.fail(rank.communicate(timeout=60)[1])


def test_processes_that_read_one_list_do_not_disturb_each_other():
    """A descriptor that is passed is another name of one open file, whose position they share."""
    fd = _shared._file_of(["a", "b"])
    os.lseek(fd, 5, os.SEEK_SET)
    assert _shared._value_of([os.dup(fd)]) == ["a", "b"]
    assert os.lseek(fd, 0, os.SEEK_CUR) == 5
    os.close(fd)


def test_messages_that_were_sent_before_the_end_arrive():
    """The other process ends without having read what this one sent: which memories are free."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.send(b"the end of the load")
    ours.send(bytes(8))
    theirs.close()
    assert _shared._received(ours) == (b"the end of the load", [])
    assert _shared._received(ours) == (b"", [])
    ours.close()


def test_a_rank_that_dies_does_not_hold_the_others_up(large):
    # All of them stop with one tensor, and with so little memory nobody goes on before the others do.
    options = {"memory_limit": 2_100_000, "stop": True}
    all_ranks = ranks(large, options, options, options)
    wait_until_stopped(all_ranks)
    # Which one loads is not known: one that another one waits for is never the only one that is left.
    leader = leader_of(all_ranks)
    dying = next(rank for rank in all_ranks if rank is not leader)
    dying.send_signal(signal.SIGKILL)
    dying.communicate(timeout=60)
    for rank in all_ranks:
        if rank is not dying:
            rank.stdin.close()
    for rank in all_ranks:
        if rank is not dying:
            lines = rank.stdout.read().splitlines()
            assert rank.wait(120) == 0, rank.stderr.read()
            assert set(json.loads(lines[-1])) == set(LARGE)


def test_the_end_of_the_rank_that_loads_is_an_error_of_the_others(large):
    options = {"memory_limit": 2_100_000, "stop": True}
    all_ranks = ranks(large, options, options)
    wait_until_stopped(all_ranks)
    leader = leader_of(all_ranks)
    leader.send_signal(signal.SIGKILL)
    leader.communicate(timeout=60)
    [other] = [rank for rank in all_ranks if rank is not leader]
    _out, error = other.communicate("", timeout=120)
    assert other.returncode == 1
    assert f"the process that loads ({leader.pid}) has ended" in error, error


def leader_of(all_ranks):
    """The one with a connection to the server: the others have only UNIX sockets."""

    def has_threads(rank):
        tasks = os.listdir(f"/proc/{rank.pid}/task")
        names = [open(f"/proc/{rank.pid}/task/{task}/comm").read().strip() for task in tasks]
        return "devmem-tensors" in names

    [leader] = [rank for rank in all_ranks if has_threads(rank)]
    return leader


def test_what_the_leader_cannot_load_is_an_error_of_all(server):
    for rank in ranks(f"{server.url}/none.safetensors", {}, {}):
        _out, error = rank.communicate(timeout=120)
        assert rank.returncode == 1 and "404" in error, error


def test_ranks_that_do_not_come_or_load_something_else_are_named(large):
    name = f"@devmem-test-{os.getpid()}-alone"
    with pytest.raises(TimeoutError, match="1 of 2 processes came in time"):
        iter_safetensors(large, shared=name, ranks=2, shared_timeout=0.2)
    # The name is free again.
    with pytest.raises(TimeoutError, match="1 of 3"):
        iter_safetensors(large, shared=name, ranks=3, shared_timeout=0.2)
    found = dict(iter_safetensors(large, shared=name, ranks=1))
    assert set(found) == set(LARGE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind("\0" + name[1:])
        with pytest.raises(TimeoutError, match="nobody answers"):
            iter_safetensors(large, shared=name, ranks=2, shared_timeout=0.2)
    first, second = ranks(large, {}, {"ranks": 3})
    _out, error = first.communicate(timeout=120)
    _out, other_error = second.communicate(timeout=120)
    assert "different URLs or ranks" in error + other_error, (error, other_error)


def test_a_checkpoint_is_iterated_over_a_nic_in_user_space():
    from test_load import serve

    link = f"mem:iter-{os.getpid()}"
    sender, client = Netdev.user(link, "10.77.0.1/24"), Netdev.user(link, "10.77.0.2/24")
    listener = sender.listen("10.77.0.1:80")
    threading.Thread(target=serve, args=(listener, safetensors(LARGE)), daemon=True).start()
    found = dict(iter_safetensors("http://10.77.0.1/m.safetensors", client))
    listener.close()
    client.close()
    for name, array in LARGE.items():
        same(found[name], array)
