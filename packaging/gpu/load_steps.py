"""Loads an export of an NBD server into cuda:0 with a CRC-32C, in a network namespace: load_steps.py TOOL BYTES.

The server is fifty lines of the protocol's fixed newstyle handshake and its reads (NBD proto.md), because a bare machine has none.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading

SERVER, OURS, PORT = "10.77.0.1", "10.77.0.2/24", 10809
#: clone(2): a user and a network namespace.
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
#: ioctl(2): the flags of an interface (netdevice(7)).
SIOCSIFFLAGS = 0x8914


def skip(reason: str):
    print(reason)
    sys.exit(77)


def enter_namespace() -> None:
    """A network namespace of our own; as an ordinary user inside of a user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        skip(f"no network namespace here: {os.strerror(ctypes.get_errno())}")
    # A bare machine has no ip(8): struct ifreq with a name and IFF_UP.
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", 1))


def exactly(stream: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = stream.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def serve(stream: socket.socket, data: memoryview) -> None:
    """One connection: the handshake, then reads until the client leaves."""
    stream.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
    exactly(stream, 4)
    chosen = False
    while not chosen:
        option, length = struct.unpack(">8xII", exactly(stream, 16))
        exactly(stream, length)
        reply = lambda kind, body=b"": stream.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(body)) + body)
        if option in (6, 7):  # NBD_OPT_INFO, NBD_OPT_GO
            # NBD_INFO_EXPORT: a read-only export of this size that several connections may read.
            reply(3, struct.pack(">HQH", 0, len(data), 1 | 2 | 1 << 8))
            reply(1)
            chosen = option == 7
        elif option == 2:  # NBD_OPT_ABORT
            reply(1)
            return
        else:
            reply(1 << 31 | 1)
    while True:
        magic, _, kind, handle, offset, length = struct.unpack(">IHHQQI", exactly(stream, 28))
        if magic != 0x25609513 or kind == 2:
            return
        right = kind == 0 and offset + length <= len(data)
        stream.sendall(struct.pack(">IIQ", 0x67446698, 0 if right else 22, handle))
        if right:
            stream.sendall(data[offset : offset + length])


def accept(listener: socket.socket, data: memoryview) -> None:
    while True:
        stream, _ = listener.accept()

        def work() -> None:
            try:
                serve(stream, data)
            except (EOFError, ConnectionError):
                pass

        threading.Thread(target=work, daemon=True).start()


def crc32c(data: bytes) -> int:
    """CRC-32C, eight bits at a time."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def main() -> None:
    tool, count = sys.argv[1], int(sys.argv[2])
    enter_namespace()
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        skip("no /dev/net/tun for a file from a server")
    # A megabyte, again and again: its checksum is computed here, in plain Python.
    block = bytes((at * 131 + (at >> 8) * 17) & 0xFF for at in range(1 << 20))
    data = memoryview(block * (count >> 20))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND: the tool creates the interface.
    listener.bind((SERVER, PORT))
    listener.listen()
    threading.Thread(target=accept, args=(listener, data), daemon=True).start()
    figures = {}
    for name, range_ in (("whole", None), ("part", "0-1048576")):
        words = [tool, "load", f"nbd://{SERVER}/", "--addr", OURS, "--peer-addr", f"{SERVER}/24", "--json"]
        words += ["--memory", "cuda:0", "--to", "cuda:0", "--verify"] + (["--range", range_] if range_ else [])
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{name}: status {done.returncode}\n{done.stderr}")
        report = json.loads(done.stdout)
        figures[f"nbd_{name}"] = {key: report.get(key) for key in ("bytes", "gbit_per_s", "crc32c", "checksum_on")}
    wanted = f"{crc32c(block):08x}"
    if wanted not in json.dumps(figures["nbd_part"]):
        sys.exit(f"the checksum of the first megabyte is {wanted}, not that of {figures['nbd_part']}")
    print(json.dumps(figures))


main()
