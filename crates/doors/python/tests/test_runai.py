"""libstreamer.so for Run:ai's model streamer: its functions by ctypes, and the tests of Run:ai's package with it. Skips where it was not built."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import subprocess
import sys
import threading

import pytest
from test_iter import Ranges, server  # noqa: F401
from test_load import no_proxy  # noqa: F401

from devmem_tcp import runai

#: The tests of the package that call the library.
JUDGES = ["libstreamer", "file_streamer", "safetensors_streamer", "distributed_streamer"]


@pytest.fixture
def library() -> pathlib.Path:
    """The library: the one that DEVMEM_STREAMER names, or that of the package."""
    named = os.environ.get("DEVMEM_STREAMER")
    if named is not None:
        return pathlib.Path(named)
    try:
        return runai.library()
    except FileNotFoundError as error:
        pytest.skip(f"SKIP {error}")


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("ordinal", ctypes.c_int)]


class Streamer:
    """A streamer, with the functions of 0.17."""

    def __init__(self, library: pathlib.Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.runai_file_streamer_response_str.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p()
        assert self.library.runai_file_streamer_start(ctypes.byref(self.handle)) == 0

    def set_credentials(self, **given: str) -> int:
        keys = (ctypes.c_char_p * len(given))(*[key.encode() for key in given])
        values = (ctypes.c_char_p * len(given))(*[value.encode() for value in given.values()])
        return self.library.runai_file_streamer_set_credentials(self.handle, keys, values, len(given))

    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[tuple[int, bytes]]:
        """Returns code and bytes of each range."""
        buffers = [ctypes.create_string_buffer(max(size, 1)) for _at, size in ranges]
        many = len(ranges)
        submission = ctypes.c_uint64()
        code = self.library.runai_file_streamer_request(
            self.handle,
            ctypes.byref(submission),
            1,
            (ctypes.c_char_p * 1)(path.encode()),
            (ctypes.c_uint32 * 1)(many),
            (ctypes.c_size_t * many)(*[at for at, _size in ranges]),
            (ctypes.c_size_t * many)(*[size for _at, size in ranges]),
            (ctypes.c_void_p * many)(*[ctypes.addressof(buffer) for buffer in buffers]),
            Device(0, 0),
        )
        assert code == 0, self.library.runai_file_streamer_response_str(code)
        codes: dict[int, int] = {}
        for number in range(many):
            file, index, done = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int()
            places = (submission, file, index, done)
            answer = self.library.runai_file_streamer_response(self.handle, *map(ctypes.byref, places), 60_000)
            assert bool(done.value) == (number == many - 1) and index.value not in codes
            codes[index.value] = answer
        return [(codes[at], buffers[at].raw[: ranges[at][1]]) for at in range(many)]

    def files(self, prefix: str, recursive: bool, *allowed: str) -> list[str]:
        found = []
        take = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
        patterns = (ctypes.c_char_p * len(allowed))(*[pattern.encode() for pattern in allowed])
        call = take(lambda path, size, _user: found.append(f"{path.decode()} {size}"))
        arguments = (prefix.encode(), int(recursive), patterns, len(allowed), None, 0, call, None)
        assert self.library.runai_file_streamer_list_files(self.handle, *arguments) == 0
        return found

    def end(self) -> None:
        self.library.runai_file_streamer_end(self.handle)


def test_without_a_library_the_command_says_what_to_build():
    run = subprocess.run([sys.executable, "-m", "devmem_tcp.runai"], capture_output=True, text=True, timeout=60)
    try:
        assert (run.returncode, run.stdout) == (0, f"{runai.library()}\n")
    except FileNotFoundError:
        assert run.returncode == 1 and "cargo build --release -p devmem-streamer" in run.stderr


def test_ranges_of_files_and_objects_are_read(library, server, tmp_path, capfd):  # noqa: F811
    body = bytes(range(251)) * 20_000
    (tmp_path / "file").write_bytes(body)
    server.files["/bucket/models/a%20b"] = body
    streamer = Streamer(library)
    assert streamer.set_credentials(endpoint=server.url, access_key_id="me", secret_access_key="s3cret") == 0
    assert streamer.set_credentials(endpoint="http://other") == 18
    ranges = [(4_000_000, 1_000_000), (0, 3), (17, 0), (2, 2)]
    for path in [str(tmp_path / "file"), "s3://bucket/models/a b"]:
        for code, (at, size), (found, data) in zip([0] * 4, ranges, streamer.read(path, ranges)):
            assert (found, data) == (code, body[at : at + size])
    [(code, _data)] = streamer.read("s3://bucket/models/none", [(0, 1)])
    assert code == 2
    streamer.end()
    said = capfd.readouterr().err
    assert "s3://bucket/models/none" in said and "404" in said and "s3cret" not in said


def test_files_are_listed_as_the_package_lists_them(library, tmp_path):
    for name in ["b.safetensors", "a.json", "sub/c.safetensors"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * len(name))
    streamer = Streamer(library)
    assert streamer.files(str(tmp_path), False) == [f"{tmp_path}/a.json 6", f"{tmp_path}/b.safetensors 13"]
    found = streamer.files(str(tmp_path), True, "*.safetensors")
    assert found == [f"{tmp_path}/b.safetensors 13", f"{tmp_path}/sub/c.safetensors 17"]
    streamer.end()


def test_the_end_of_a_streamer_ends_a_load_that_waits(library, server):  # noqa: F811
    stop = threading.Event()
    server.files["/file"] = bytes(3 << 20)
    server.before_body = lambda _path, start: start and stop.wait(60)
    streamer = Streamer(library)
    code = []
    buffer = ctypes.create_string_buffer(3 << 20)

    def read():
        try:
            code.extend(streamer.read(f"{server.url}/file", [(1, (3 << 20) - 1)]))
        except AssertionError:
            code.append("ended")

    thread = threading.Thread(target=read)
    thread.start()
    while len(server.asked) < 2:
        pass
    streamer.end()
    thread.join(60)
    stop.set()
    assert code and buffer.raw[0] == 0


@pytest.mark.parametrize("judge", JUDGES)
def test_the_tests_of_the_package_pass(judge, library, tmp_path):
    for name in ["runai_model_streamer", "torch", "humanize", "safetensors"]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"SKIP {name} is not installed: pip install runai-model-streamer safetensors")
    environment = {**os.environ, "STREAMER_LIBRARY": str(library)}
    # The files of test_mock are not in the wheel: it fails with the package's own library, too.
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not test_mock", "--pyargs", f"runai_model_streamer.{judge}.tests"]
    run = subprocess.run([sys.executable, *tests], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=600)
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout[-5000:] + run.stderr[-2000:]
