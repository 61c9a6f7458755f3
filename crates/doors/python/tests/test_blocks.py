"""Bytes of files, exports and namespaces: loaded, stored and listed, with our NVMe target and the server of Python."""

import contextlib
import functools
import http.server
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import pattern

import devmem_tcp
from devmem_tcp import Dmabuf, Netdev, list_subsystems, load, load_into, store

HERE = pathlib.Path(__file__).parent
NQN = "nqn.2014-08.org.example:python"
BYTES = 3 << 20


@contextlib.contextmanager
def serving(*words):
    """Our target. Yields its port."""
    program = os.environ.get("DEVMEM_NVME_TARGET")
    if program is None:
        pytest.skip("SKIP no NVMe target: DEVMEM_NVME_TARGET names the example `serve` of the crate devmem-nvme-target")
    command = [program, *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        try:
            yield int(target.stdout.readline())
        finally:
            target.stdin.close()


@pytest.fixture
def disk(tmp_path):
    """A file with bytes of which no two neighbouring kilobytes are the same."""
    path = tmp_path / "disk"
    path.write_bytes(pattern(BYTES))
    return path


def test_a_namespace_is_loaded_whole_and_in_parts(disk):
    with serving(NQN, disk) as port:
        url = f"nvme://127.0.0.1:{port}/{NQN}"
        whole = load(url)
        assert (whole.shape, whole.dtype, whole.device) == ((BYTES,), "uint8", "cpu")
        assert whole.tobytes() == pattern(BYTES)
        part = load(f"{url}?nsid=1&data-digest=1&hdr-digest=1", Netdev.kernel("lo"), at=8192, nbytes=1 << 20)
        assert part.tobytes() == pattern(BYTES)[8192 : 8192 + (1 << 20)]
        assert load(url, at=BYTES - 4096).tobytes() == pattern(BYTES)[-4096:]


def test_bytes_are_loaded_into_arrays_and_memory(disk):
    with serving(NQN, disk) as port:
        url = f"nvme://127.0.0.1:{port}/{NQN}"
        array = np.zeros((2, 256, 1024), "u1")
        assert load_into(array, url, at=4096) == array.nbytes
        assert array.tobytes() == pattern(BYTES)[4096 : 4096 + array.nbytes]
        memory = Dmabuf.anonymous(1 << 20)
        memory.fill(0xEE)
        assert load_into(memory[4096:12288], url, at=BYTES - 8192) == 8192
        assert memory.tobytes() == b"\xee" * 4096 + pattern(BYTES)[-8192:] + b"\xee" * ((1 << 20) - 12288)
        with pytest.raises(BufferError):
            load_into(bytes(4096), url)


def test_subsystems_are_listed_with_their_namespaces(disk, tmp_path):
    small = tmp_path / "small"
    small.write_bytes(bytes(1 << 20))
    with serving("--blocks", 512, "--read-only", NQN, disk, small) as port:
        [subsystem] = list_subsystems(f"nvme://127.0.0.1:{port}", Netdev.kernel("lo"))
        assert (subsystem.url, subsystem.problem) == (f"nvme://127.0.0.1:{port}/{NQN}", None)
        facts = [(it.nsid, it.nbytes, it.block_bytes, it.is_read_only) for it in subsystem.namespaces]
        assert facts == [(1, BYTES, 512, True), (2, 1 << 20, 512, True)]
        second = subsystem.namespaces[1]
        assert second.url == f"{subsystem.url}?nsid=2" and second.url in repr(second)
        assert load(second.url).tobytes() == bytes(1 << 20)
        with pytest.raises(devmem_tcp.DevmemError, match="has 2 namespaces: 1, 2") as raised:
            load(subsystem.url)
        assert raised.value.remedy == "name one of them with nsid="
        with pytest.raises(PermissionError, match="is read-only"):
            store(bytes(512), second.url, Netdev.kernel("lo"))


def test_what_cannot_be_loaded_or_stored_is_an_error_with_its_cause(disk):
    nic = Netdev.kernel("lo")
    with serving(NQN, disk) as port:
        url = f"nvme://127.0.0.1:{port}/{NQN}"
        for arguments, cause in [
            ({"at": 512}, "multiples of 4096"),
            ({"at": BYTES, "nbytes": 4096}, f"the source has {BYTES}"),
            ({"at": BYTES + 1}, f"the source has {BYTES} bytes"),
            ({"password": "x"}, "for http, https and s3"),
        ]:
            with pytest.raises(ValueError, match=cause):
                load(url, nic, **arguments)
        with pytest.raises(devmem_tcp.DevmemError, match="is not active"):
            load(f"{url}?nsid=9", nic)
        with pytest.raises(ValueError, match="durability"):
            store(bytes(4096), url, nic, durability="soon")
        with pytest.raises(ValueError, match="make the export larger"):
            store(bytes(4096), url, nic, at=BYTES)
        with pytest.raises(ValueError, match="takes no bytes"):
            store(bytes(4096), "http://127.0.0.1/x", nic)
        with pytest.raises(ValueError, match="is not nvme"):
            list_subsystems("nbd://127.0.0.1", nic)
        for other in ["http://me:s3cret@host/x?token=s3cret", "me:s3cret@host", "nbd://me:s3cret@host"]:
            with pytest.raises(ValueError, match="is not nvme") as refused:
                list_subsystems(other, nic)
            assert "s3cret" not in str(refused.value)
    with pytest.raises(ConnectionRefusedError):
        load(url, nic)


def test_a_file_of_a_web_server_is_loaded_as_bytes(disk):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=disk.parent)
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/disk"
        # This server has no ranges: a part would be the whole file.
        assert load(url, Netdev.kernel("lo"), headers={"X-Of": "a test"}).tobytes() == pattern(BYTES)
        server.shutdown()


def test_tensors_and_arrays_are_stored_and_loaded_over_a_nic_in_user_space(disk):
    """In a network namespace of its own, which has a TAP."""
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    if not os.access("/dev/net/tun", os.W_OK) or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("SKIP no network namespace with a TAP can be made")
    if "DEVMEM_NVME_TARGET" not in os.environ:
        pytest.skip("SKIP no NVMe target: see DEVMEM_NVME_TARGET")
    run = subprocess.run(
        [*command, sys.executable, HERE / "nvme_round.py", disk], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
