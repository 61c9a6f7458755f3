"""Receiving: every byte is where the batch says, in every form in which it can be had."""

import re
import time

import numpy as np
import pytest
from conftest import ADDRESS, PATIENCE, pattern, send_in_thread

import devmem_tcp
from devmem_tcp import Dmabuf, Netdev


def test_every_byte_arrives_in_device_memory_in_order(wire):
    sender, receiver = wire.connect()
    data = pattern(20_000_000)
    thread = send_in_thread(sender, data)
    received = bytearray()
    for batch in receiver:
        assert batch.device_bytes == batch.nbytes
        for frag in batch:
            assert frag.is_device and frag.dmabuf_id == wire.bound.id
            here = wire.memory[frag.offset : frag.offset + frag.nbytes]
            assert here.data_ptr == frag.tensor().data_ptr
            received += memoryview(here)
    thread.join()
    assert received == data
    stats = receiver.stats
    assert stats["device_bytes"] == len(data) and stats["linear_bytes"] == 0
    assert stats["device_frags"] == stats["tokens_returned"]


def test_tensors_are_the_bytes_without_a_copy(wire):
    sender, receiver = wire.connect()
    data = pattern(3_000_000)
    thread = send_in_thread(sender, data)
    received, begin, end = b"", wire.memory.data_ptr, wire.memory.data_ptr + wire.memory.nbytes
    for batch in receiver:
        for tensor in batch.tensors():
            array = np.from_dlpack(tensor)
            assert begin <= array.ctypes.data and array.ctypes.data + array.nbytes <= end
            assert array.ctypes.data == tensor.data_ptr and array.flags.writeable
            received += array.tobytes()
    thread.join()
    assert received == data


def test_a_batch_is_gathered_to_arrays_buffers_tensors_and_memory(wire):
    sender, receiver = wire.connect()
    data = pattern(100_000)
    sender.sendall(data)
    target = Dmabuf.anonymous(1 << 20)
    array, buffer = np.zeros(100_000, "u1"), bytearray(100_000)
    done = 0
    while done < len(data):
        batch = receiver.recv()
        part = data[done : done + batch.nbytes]
        assert batch.gather(out=array[done:]) == len(part)
        assert batch.gather(out=memoryview(buffer)[done:]) == len(part)
        assert batch.gather(out=target[done:]) == len(part)
        assert batch.gather().tobytes() == part == batch.tobytes() == bytes(batch)
        assert b"".join(tensor.tobytes() for tensor in batch.tensors()) == part
        # The same from frags that tensors keep.
        assert batch.gather(out=array[done:]) == len(part) and batch.tobytes() == part
        assert batch.gather(out=target[done:]) == len(part)
        done += len(part)
        batch.release()
    assert array.tobytes() == data == bytes(buffer) == target[: len(data)].tobytes()


def test_arrays_have_the_type_and_shape_that_was_asked_for(wire):
    sender, receiver = wire.connect()
    # One packet, which one receive returns.
    numbers = np.arange(300, dtype="f4").reshape(2, 15, 10)
    sender.sendall(numbers)
    batch = receiver.recv()
    for dtype in ("float32", np.float32, np.dtype("f4")):
        array = batch.array(dtype, (2, -1, 10))
        assert array.dtype == np.float32 and (array == numbers).all()
    assert batch.tensor("float32", (2, 15, 10)).data_ptr == batch.tensors()[0].data_ptr
    with pytest.raises(ValueError, match="do not have the shape"):
        batch.array("float32", (7, -1))


def test_bytes_that_are_not_aligned_are_copied_for_a_wider_type(wire):
    sender, receiver = wire.connect()
    sender.sendall(b"x" + np.arange(1000, dtype="f8").tobytes())
    with receiver.recv(1) as first:
        assert first.tobytes() == b"x"
    batch = receiver.recv()
    with pytest.raises(ValueError, match="gather"):
        batch.tensors()[0].view("float64")
    assert (batch.array("float64") == np.arange(1000)).all()


def test_recv_into_fills_its_target_exactly(wire):
    sender, receiver = wire.connect()
    data = pattern(9_000_000)
    thread = send_in_thread(sender, data)
    header = bytearray(5)
    body = np.zeros(8_000_000, "u1")
    rest = Dmabuf.anonymous(1 << 20)
    assert receiver.recv_into(header) == 5
    assert receiver.recv_into(body) == len(body)
    tail = len(data) - 5 - len(body)
    assert receiver.recv_into(rest) == tail, "the stream ends before the memory is full"
    thread.join()
    assert bytes(header) + body.tobytes() + rest[:tail].tobytes() == data


def test_a_peek_leaves_the_bytes_and_limits_are_kept(wire):
    sender, receiver = wire.connect()
    sender.sendall(b"header and body")
    assert receiver.peek(6) == b"header"
    assert receiver.peek(1 << 40) == b"header and body", "room for what there is, not for what was asked"
    long = bytes(range(256)) * 800
    sender.sendall(long)
    queued = b"header and body" + long
    deadline = time.monotonic() + PATIENCE
    while len(receiver.peek(1 << 60)) < len(queued) and time.monotonic() < deadline:
        time.sleep(0.01)
    for most in [65536, 65537, 150_000, 1 << 60]:
        assert receiver.peek(most) == queued[:most]
    assert receiver.recv(6).tobytes() == b"header"
    rest = bytearray(len(b" and body") + len(long))
    assert receiver.recv_into(rest) == len(rest)
    assert bytes(rest) == b" and body" + long


def test_without_a_binding_bytes_are_in_host_memory():
    a, b = Netdev.pair("seed=1")
    listener = b.listen(ADDRESS)
    sender = a.connect(ADDRESS)
    receiver, peer = listener.accept()
    assert peer == sender.getsockname() and sender.getpeername() == receiver.getsockname()
    sender.sendall(b"host")
    batch = receiver.recv()
    [frag] = batch
    assert (frag.offset, frag.is_device, batch.device_bytes) == (None, False, 0)
    assert frag.tensor().tobytes() == b"host" == batch.tensors()[0].tobytes()
    receiver.set_strict(True)
    sender.sendall(b"more")
    with pytest.raises(devmem_tcp.MisplacedError):
        receiver.recv()
    receiver.set_strict(False)
    assert receiver.recv().tobytes() == b"more"


def test_a_lossy_wire_in_virtual_time_delivers_every_byte():
    a, b = Netdev.pair("loss=2%,seed=7")
    memory = Dmabuf.anonymous(1 << 20)
    bound = b.plan_receive(ADDRESS).bind(memory)
    listener = b.listen(ADDRESS)
    sender = a.connect(ADDRESS)
    receiver, _ = listener.accept()
    data = pattern(2_000_000)
    thread = send_in_thread(sender, data)
    received = b"".join(batch.tobytes() for batch in receiver)
    thread.join()
    assert received == data
    receiver.close()
    bound.close()


def test_a_released_batch_says_so(wire):
    sender, receiver = wire.connect()
    sender.sendall(b"bytes")
    batch = receiver.recv()
    kept = batch.tensors()
    batch.release()
    batch.release()
    for use in (batch.tobytes, batch.tensors, lambda: len(batch), lambda: batch.nbytes):
        with pytest.raises(ValueError, match="released"):
            use()
    assert kept[0].tobytes() == b"bytes"


def test_a_loop_releases_each_batch_before_the_next(wire):
    sender, receiver = wire.connect()
    sender.sendall(b"one")
    batches = iter(receiver)
    first = next(batches)
    assert first.tobytes() == b"one"
    sender.sendall(b"two")
    assert next(batches).tobytes() == b"two"
    with pytest.raises(ValueError, match="released"):
        first.tobytes()


def test_a_nic_with_shards_receives_on_each_of_them():
    def open_nic(address):
        return Netdev.user("mem:py-shards", address, shards=2)

    a, b = open_nic("10.77.0.1/24"), open_nic("10.77.0.2/24")
    assert (len(a.shards()), len(b.shards())) == (2, 2)
    memory = Dmabuf.anonymous(8 << 20)
    data = pattern(1_000_000)
    with b.plan_receive(ADDRESS).bind(memory), b.listen(ADDRESS) as listener:
        listener.settimeout(PATIENCE)
        for shard in a.shards():
            sender = shard.connect(ADDRESS, timeout=PATIENCE)
            receiver, _peer = listener.accept()
            receiver.settimeout(PATIENCE)
            thread = send_in_thread(sender, data)
            received = b"".join(batch.tobytes() for batch in receiver)
            thread.join()
            assert received == data
    assert (a.crossed_frames, b.crossed_frames) == (0, 0)


def test_a_link_of_one_queue_refuses_shards_and_names_the_others():
    with pytest.raises(ValueError, match="(?s)its socket is one queue.*packet:NAME"):
        Netdev.user("unix:/tmp/no-such-wire", "10.77.0.2/24", shards=2)


def test_handles_tell_their_state(wire):
    assert repr(wire.receiver) == "<Netdev in user space, link up, 10.77.0.2>"
    assert repr(wire.listener) == f"<Listener on {ADDRESS}>"
    assert re.fullmatch(r"<BoundRx id \d+, \d+ of 64 net_iovs free>", repr(wire.bound))
    assert repr(wire.receiver.plan_receive(ADDRESS)) == f"<ReceivePlan {ADDRESS}, 1 queue>"
    sender, receiver = wire.connect()
    assert re.fullmatch(rf"<Stream on {ADDRESS}, peer 10\.77\.0\.1:\d+>", repr(receiver))
    sender.sendall(b"x" * 100)
    batch = receiver.recv()
    assert repr(batch) == "<Batch 100 bytes in 1 frag, lent>"
    tensors = batch.tensors()
    assert repr(batch) == "<Batch 100 bytes in 1 frag, kept by tensors>"
    assert repr(tensors) == "[<Tensor (100,) uint8 on cpu>]"
    batch.release()
    assert repr(batch) == "<Batch released>"
    with wire.sender.bind_tx(Dmabuf.anonymous(4096)) as tx:
        assert re.fullmatch(r"<BoundTx id \d+, 0 in flight>", repr(tx))
        sent = sender.send(tx, slice(0, 4096))
        sent.wait(PATIENCE)
        assert repr(sent) == "<Sent 4096 bytes, complete>"
    assert repr(tx) == "<BoundTx closed>"
    for handle in (sender, receiver):
        handle.close()
        assert repr(handle) == "<Stream closed>"


def test_a_stream_that_keeps_its_memory_says_so(wire):
    sender, receiver = wire.connect()
    assert receiver.held_memory() is None
    thread = send_in_thread(sender, pattern(8 << 20))
    kept = []
    while (held := receiver.held_memory()) is None:
        kept.append(receiver.recv())
    assert held["dmabuf_id"] == wire.bound.id and held["unit"] == "net_iovs", held
    assert held["net_iovs"] == 64 and held["lent"] > 0 and held["lent_by_others"] == 0, held
    for batch in kept:
        batch.release()
    for batch in receiver:
        pass
    thread.join(PATIENCE)
