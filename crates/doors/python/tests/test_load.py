"""Checkpoints from servers that know nothing of device memory."""

import contextlib
import base64
import functools
import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading

import numpy as np
import pytest

import devmem_tcp
from devmem_tcp import Netdev, load_safetensors
from test_waits import interrupted

ARRAYS = {
    "weight": np.arange(300_000, dtype="f4").reshape(300, 1000),
    "bias": np.arange(7, dtype="f8"),
    "mask": np.array([True, False, True]),
    "scalar": np.array(5, dtype="i8"),
    "none": np.zeros((0, 3), "f2"),
}
DTYPES = {"f4": "F32", "f8": "F64", "b1": "BOOL", "i8": "I64", "f2": "F16"}


def checkpoint():
    """The bytes of a safetensors file."""
    header, data = {"__metadata__": {"made": "here"}}, b""
    for name, array in ARRAYS.items():
        kind = DTYPES[array.dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    header["brain"] = {"dtype": "BF16", "shape": [2], "data_offsets": [len(data), len(data) + 4]}
    header["other"] = {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [len(data) + 4, len(data) + 6]}
    header["small"] = {"dtype": "F4", "shape": [4], "data_offsets": [len(data) + 6, len(data) + 8]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data + b"\x80\x3f\x00\x40\x01\x02\x03\x04"


def check(tensors):
    assert set(tensors) == {*ARRAYS, "brain", "other", "small"}
    for name, array in ARRAYS.items():
        loaded = tensors[name]
        assert (loaded.shape, loaded.dtype) == (array.shape, array.dtype.name), name
        assert loaded.numpy().tobytes() == array.tobytes(), name
        assert loaded.data_ptr % 256 == 0
    assert (tensors["brain"].dtype, tensors["brain"].view("uint16").numpy().tolist()) == ("bfloat16", [0x3F80, 0x4000])
    assert (tensors["other"].dtype, tensors["other"].tobytes()) == ("float8_e8m0fnu", b"\x01\x02")
    assert (tensors["small"].dtype, tensors["small"].tobytes()) == ("uint8", b"\x03\x04")
    assert tensors.entries["small"] == ("F4", (4,))
    assert tensors.entries["weight"] == ("F32", (300, 1000))
    assert tensors.metadata == {"made": "here"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments):
        pass

    def translate_path(self, path):
        """Whatever folder, bucket or host is asked for, the file is the same."""
        return super().translate_path("/" + path.rsplit("/", 1)[-1])


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """The proxy that this machine may have reaches no server of a test."""
    for name in ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path):
    """The server of Python, on the loopback interface."""
    (tmp_path / "model.safetensors").write_bytes(checkpoint())
    (tmp_path / "wrong.safetensors").write_bytes(b"\xff" * 100)
    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_checkpoint_is_loaded_over_the_sockets_of_the_kernel(server):
    check(load_safetensors(f"{server}/model.safetensors", Netdev.kernel("lo")))


def test_without_a_nic_the_interface_of_the_route_is_used(server):
    check(load_safetensors(f"{server}/model.safetensors"))
    with pytest.raises(OSError, match="no_such_host.invalid"):
        load_safetensors("http://no_such_host.invalid/model.safetensors")
    with pytest.raises(devmem_tcp.DevmemError, match="is no safetensors file"):
        load_safetensors(f"{server}/wrong.safetensors")


def crc32c(data):
    """The checksum as a store writes it (RFC 3720 B.4, in base64)."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    sum = 0xFFFFFFFF
    for byte in data:
        sum = sum >> 8 ^ table[(sum ^ byte) & 0xFF]
    return base64.b64encode((sum ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


def test_the_checksums_of_the_server_are_compared(tmp_path):
    data = checkpoint()
    right, wrong = crc32c(data), crc32c(data[1:])
    fields = {"/right.safetensors": f"md5=x, crc32c={right}", "/wrong.safetensors": f"crc32c={wrong}", "/none.safetensors": None}

    class Handler(Quiet):
        def end_headers(self):
            if fields[self.path] is not None:
                self.send_header("x-goog-hash", fields[self.path])
            super().end_headers()

    for path in fields:
        (tmp_path / path[1:]).write_bytes(data)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        check(load_safetensors(f"{url}/right.safetensors", checksums=True))
        check(load_safetensors(f"{url}/wrong.safetensors"))
        with pytest.raises(devmem_tcp.DataLostError, match="the CRC-32C of what was loaded of .*/wrong.safetensors is"):
            load_safetensors(f"{url}/wrong.safetensors", checksums=True)
        with pytest.raises(devmem_tcp.NotSupportedError, match="none to compare") as raised:
            load_safetensors(f"{url}/none.safetensors", checksums=True)
        assert "checksums=" in raised.value.remedy
        with pytest.raises(devmem_tcp.InvalidInputError, match="before all bytes of their files have come"):
            devmem_tcp.iter_safetensors(f"{url}/right.safetensors", checksums=True)
        server.shutdown()


def test_the_proxy_and_the_object_store_of_the_environment_are_used(server, monkeypatch):
    for name in ["no_proxy", "NO_PROXY"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    tensors = load_safetensors("s3://folder/model.safetensors")
    check(tensors)
    monkeypatch.setenv("http_proxy", server)
    check(load_safetensors("http://192.0.2.1/model.safetensors"))


def test_what_cannot_be_loaded_is_an_error_with_its_cause(server):
    nic = Netdev.kernel("lo")
    with pytest.raises(FileNotFoundError, match="404") as raised:
        load_safetensors(f"{server}/nothing", nic)
    assert "check the path" in raised.value.remedy
    with pytest.raises(ValueError, match="is no safetensors file"):
        load_safetensors(f"{server}/wrong.safetensors", nic)
    with pytest.raises(ValueError):
        load_safetensors("ftp://127.0.0.1/x", nic)
    for device in ["tpu", "cpu:0", "cuda:", "hip:-1", "vulkan:x"]:
        with pytest.raises(ValueError, match="not a device"):
            load_safetensors(server, nic, device=device)
    with pytest.raises(ValueError):
        load_safetensors(server, nic, headers=[("Host", "x")])
    with pytest.raises(ValueError, match="given twice"):
        load_safetensors(server, nic, headers=[("X", "a"), ("x", "b")])
    for wrong in [{"connections": 0}, {"idle_limit": 0}, {"idle_limit": float("nan")}]:
        with pytest.raises(ValueError):
            load_safetensors(server, nic, **wrong)
    with pytest.raises(TypeError):
        load_safetensors(server, "lo")
    with pytest.raises(ConnectionRefusedError):
        load_safetensors("http://127.0.0.1:9/x", nic)


@pytest.fixture
def heads(tmp_path):
    """A server that keeps the heads of requests, and refuses them with a text that a terminal would obey."""
    seen = []

    class Refusing(Quiet):
        def do_GET(self):
            seen.append(self.headers)
            self.send_response(302)
            self.send_header("Location", "http://me:s3cret@other:port/\x9b31m?sig=s3cret")
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", seen
        server.shutdown()


def test_secrets_come_from_files_or_the_environment_and_are_not_shown(heads, tmp_path, monkeypatch):
    host, seen = heads
    (tmp_path / "fields").write_text("# of the hub\nX-Api-Key: s3cret-1\n")
    (tmp_path / "password").write_text("s3cret-2\n")
    with pytest.raises(devmem_tcp.DevmemError) as refused:
        load_safetensors(
            f"http://me@{host}/model.safetensors",
            headers=[("A", "s3cret-3")],
            headers_file=tmp_path / "fields",
            password_file=str(tmp_path / "password"),
        )
    assert "s3cret" not in str(refused.value)
    # C1, by which some terminals begin a control sequence.
    assert "\x9b" not in str(refused.value)
    assert (seen[0]["A"], seen[0]["X-Api-Key"]) == ("s3cret-3", "s3cret-1")
    basic = "Basic bWU6czNjcmV0LTI="
    assert seen[0]["Authorization"] == basic
    monkeypatch.setenv("DEVMEM_HEADERS", "A: s3cret-4")
    monkeypatch.setenv("DEVMEM_PASSWORD", "s3cret-2")
    with pytest.raises(devmem_tcp.DevmemError):
        load_safetensors(f"http://{host}/model.safetensors", user="me")
    assert (seen[-1]["A"], seen[-1]["Authorization"]) == ("s3cret-4", basic)
    monkeypatch.delenv("DEVMEM_PASSWORD")
    with pytest.raises(devmem_tcp.DevmemError, match="a password and no user"):
        load_safetensors(f"http://{host}/model.safetensors", password="s3cret")
    with pytest.raises(FileNotFoundError):
        load_safetensors(f"http://{host}/model.safetensors", headers_file=tmp_path / "none")


def test_a_signal_ends_a_load_that_waits_for_its_server():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/m.safetensors"
        interrupted(lambda: load_safetensors(url, Netdev.kernel("lo")))


def serve(listener, body):
    """A server without ranges: it sends the whole file for each request."""

    def answer(stream):
        try:
            with stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    batch = stream.recv()
                    if not batch:
                        return
                    head += batch.tobytes()
                stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        except devmem_tcp.DevmemError:
            pass

    try:
        for stream, _peer in listener:
            threading.Thread(target=answer, args=(stream,), daemon=True).start()
    except devmem_tcp.ClosedError:
        pass


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_a_checkpoint_is_received_into_device_memory(device, request):
    if device == "vulkan":
        device = f"vulkan:{request.getfixturevalue('vulkan')}"
    link = f"mem:load-{os.getpid()}"
    server, client = Netdev.user(link, "10.77.0.1/24"), Netdev.user(link, "10.77.0.2/24")
    listener = server.listen("10.77.0.1:80")
    threading.Thread(target=serve, args=(listener, checkpoint()), daemon=True).start()
    tensors = load_safetensors("http://10.77.0.1/model.safetensors", client, device=device)
    listener.close()
    client.close()
    assert {tensor.device for tensor in tensors.values()} == {device}
    check(tensors)


@pytest.fixture
def https_server(tmp_path):
    """A server with a certificate of a private authority, and the file of that."""

    def openssl(name, *options):
        words = ["openssl", "req", "-x509", "-nodes", "-days", "3650", "-newkey", "ec", "-subj", f"/CN={name}"]
        words += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", tmp_path / f"{name}.pem"]
        made = [*words, "-keyout", tmp_path / f"{name}.key", *options]
        subprocess.run(made, check=True, stderr=subprocess.DEVNULL)

    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    openssl("ca")
    signer = ["-CA", tmp_path / "ca.pem", "-CAkey", tmp_path / "ca.key"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    openssl("server", *signer, *names)
    (tmp_path / "model.safetensors").write_bytes(checkpoint())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    handler = functools.partial(Quiet, directory=tmp_path)

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self):
            # The handshake is one of the thread that serves the connection.
            stream, address = super().get_request()
            return context.wrap_socket(stream, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, *_arguments):
            """A client that does not trust the server ends the handshake."""

    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}/model.safetensors", tmp_path
        server.shutdown()


def test_https_is_verified_and_decrypted(https_server, monkeypatch):
    url, folder = https_server
    check(load_safetensors(url, cacert=folder / "ca.pem"))
    with pytest.raises(PermissionError, match="no authority") as raised:
        load_safetensors(url)
    assert 'name the file of its authority: cacert="FILE"' in raised.value.remedy
    with pytest.warns(UserWarning, match="not verified"):
        check(load_safetensors(url, verify=False))
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    check(load_safetensors(url))
    for wrong in [{"key": folder / "ca.key"}, {"verify": False, "cacert": folder / "ca.pem"}]:
        with pytest.warns(UserWarning) if "verify" in wrong else contextlib.nullcontext():
            with pytest.raises(ValueError):
                load_safetensors(url, **wrong)
    with pytest.raises(FileNotFoundError, match="none.pem"):
        load_safetensors(url, cacert=folder / "none.pem")
