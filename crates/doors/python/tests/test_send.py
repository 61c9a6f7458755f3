"""Sending from bound memory."""

import threading

import numpy as np
import pytest
from conftest import pattern

from devmem_tcp import Dmabuf, SendRing


def receive_all(stream, into):
    for batch in stream:
        into += batch.tobytes()


def in_thread(stream):
    received = bytearray()
    thread = threading.Thread(target=receive_all, args=(stream, received), daemon=True)
    thread.start()
    return thread, received


def test_tensors_slices_and_pairs_of_bound_memory_are_sent_without_a_copy(wire):
    sender, receiver = wire.connect()
    memory = Dmabuf.anonymous(1 << 20)
    tx = wire.sender.bind_tx(memory)
    memory.copy_from(pattern(1 << 20))
    array = memory[4096:8192].view("float32").numpy()
    array[:] = 7
    parts = (memory[4096:8192].view("float32", (32, 32)), slice(100, 200), (0, 10), memory[:0])
    sent = sender.send(tx, *parts)
    assert sent.nbytes == 4096 + 100 + 10
    received = bytearray(sent.nbytes)
    assert receiver.recv_into(received) == sent.nbytes
    sent.wait(60)
    assert sent.done() and tx.in_flight == 0
    whole = pattern(1 << 20)
    assert received == np.full(1024, 7, "f4").tobytes() + whole[100:200] + whole[:10]


def test_all_of_the_memory_is_sent_if_no_part_is_given(wire):
    sender, receiver = wire.connect()
    memory = Dmabuf.anonymous(16 << 20)
    memory.copy_from(pattern(16 << 20))
    tx = wire.sender.bind_tx(memory)
    thread, received = in_thread(receiver)
    sent = sender.send(tx)
    sender.wait_sent(60)
    assert sent.done() and sent.nbytes == 16 << 20
    sender.close()
    thread.join()
    assert received == pattern(16 << 20)


def test_a_ring_reuses_a_chunk_only_when_its_send_is_complete(wire):
    sender, receiver = wire.connect()
    memory = Dmabuf.anonymous(64 << 10)
    tx = wire.sender.bind_tx(memory)
    thread, received = in_thread(receiver)
    with SendRing(sender, tx, 16 << 10) as ring:
        assert ring.chunks == 4
        for number in range(200):
            ring.next().numpy()[:] = number
            ring.send()
        ring.write(b"and the rest" * 5000)
    assert ring.in_flight == 0 and tx.in_flight == 0
    sender.close()
    thread.join()
    chunks = b"".join(bytes([number]) * (16 << 10) for number in range(200))
    assert received == chunks + b"and the rest" * 5000


def test_memory_that_is_not_bound_here_is_refused(wire):
    sender, _receiver = wire.connect()
    memory, other = Dmabuf.anonymous(4096), Dmabuf.anonymous(4096)
    tx = wire.sender.bind_tx(memory)
    with pytest.raises(ValueError, match="not in the bound memory"):
        sender.send(tx, other[:10])
    with pytest.raises(ValueError, match="after"):
        sender.send(tx, (10, 5))
    with pytest.raises(ValueError):
        sender.send(tx, (0, 5000))
    with pytest.raises(TypeError):
        sender.send(tx, b"bytes")
    with pytest.raises(TypeError):
        sender.send(memory)
    elsewhere = wire.receiver.bind_tx(other)
    with pytest.raises(OSError, match="bound to another NIC") as raised:
        sender.send(elsewhere)
    assert "bind_tx" in raised.value.remedy


def test_sendall_takes_buffers_arrays_and_dlpack(wire):
    class OnlyDlpack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    sender, receiver = wire.connect()
    array = np.arange(100, dtype="i8")
    for data in (b"bytes", bytearray(b"more"), memoryview(b"view"), array, OnlyDlpack(array)):
        sender.sendall(data)
    sender.close()
    received = b"".join(batch.tobytes() for batch in receiver)
    assert received == b"bytesmoreview" + array.tobytes() * 2
    with pytest.raises((TypeError, BufferError, ValueError)):
        wire.connect()[0].sendall(array[::2])
    with pytest.raises(BufferError, match="not contiguous"):
        wire.connect()[0].sendall(OnlyDlpack(array[::2]))
