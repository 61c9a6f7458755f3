"""Waits: Python's other threads run meanwhile, signals end them, and closing does."""

import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from conftest import PATIENCE, listening_last, pattern

from devmem_tcp import ClosedError, Dmabuf, Netdev


def interrupted(call):
    """Has SIGALRM raise an exception during `call`."""

    class Interrupted(Exception):
        pass

    def handler(_number, _frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Interrupted):
            call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_each_address_of_a_name_is_tried():
    nic, listener, port = listening_last("localhost")
    with nic.connect(("localhost", port), timeout=PATIENCE) as stream:
        accepted, peer = listener.accept()
        assert peer == stream.getsockname()
        accepted.close()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        nic.connect(("localhost", port), timeout=PATIENCE)


def test_a_signal_ends_every_wait(wire):
    sender, receiver = wire.connect()
    for handle in (sender, receiver, wire.listener):
        handle.settimeout(None)
    interrupted(receiver.recv)
    interrupted(lambda: receiver.recv_into(bytearray(10)))
    interrupted(lambda: receiver.peek(10))
    interrupted(lambda: next(iter(receiver)))
    interrupted(wire.listener.accept)
    interrupted(lambda: wire.sender.connect("10.77.0.77:1"))
    interrupted(lambda: sender.sendall(bytes(256 << 20)))

    sender, _receiver = wire.connect()
    memory = Dmabuf.anonymous(32 << 20)
    tx = wire.sender.bind_tx(memory)
    sender.setblocking(False)
    sent = sender.send(tx)
    assert sent.nbytes < memory.nbytes
    interrupted(sent.wait)
    interrupted(sender.wait_sent)
    sender.setblocking(True)
    interrupted(lambda: sender.send(tx))


def test_a_signal_ends_a_wait_in_virtual_time():
    _a, b = Netdev.pair()
    interrupted(b.listen("10.77.0.2:5201").accept)


def test_control_c_ends_a_program_that_waits():
    program = textwrap.dedent("""
        from devmem_tcp import Netdev
        listener = Netdev.user("mem:ctrl-c", "10.77.0.2/24").listen("10.77.0.2:5201")
        try:
            print("waiting", flush=True)
            listener.accept()
        except KeyboardInterrupt:
            print("interrupted")
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted\n"
        assert process.wait(60) == 0


def test_other_threads_run_while_one_waits(wire):
    sender, receiver = wire.connect()
    got = []
    waiter = threading.Thread(target=lambda: got.append(receiver.recv().tobytes()))
    waiter.start()
    # This thread runs, and takes Python's lock, while the other one waits.
    counted = sum(1 for _ in range(100_000))
    assert got == [] and counted == 100_000
    sender.sendall(b"wake up")
    waiter.join()
    assert got == [b"wake up"]


def test_both_directions_and_many_streams_at_the_same_time(wire):
    def echo(stream):
        for batch in stream:
            stream.sendall(batch.tobytes())
        stream.shutdown()

    def client(number, results):
        stream = wire.sender.connect("10.77.0.2:5201", timeout=60)
        data = pattern(500_000, seed=number)
        sending = threading.Thread(target=lambda: (stream.sendall(data), stream.shutdown()))
        sending.start()
        results[number] = b"".join(batch.tobytes() for batch in stream) == data
        sending.join()

    results = {}
    clients = [threading.Thread(target=client, args=(number, results)) for number in range(6)]
    for thread in clients:
        thread.start()
    servers = []
    for _ in clients:
        servers.append(threading.Thread(target=echo, args=(wire.listener.accept()[0],)))
        servers[-1].start()
    for thread in clients + servers:
        thread.join()
    assert results == dict.fromkeys(range(6), True)


def test_a_thread_that_waits_lets_others_use_the_stream(wire):
    sender, receiver = wire.connect()
    receiver.settimeout(None)
    waiting = threading.Thread(target=receiver.recv)
    waiting.start()
    # Each call takes its turn between two slices of the wait.
    for _ in range(20):
        assert receiver.stats["receives"] == 0
        assert receiver.getpeername() == sender.getsockname()
    sender.sendall(b"end")
    waiting.join()


def test_closing_ends_the_wait_of_another_thread(wire):
    _sender, receiver = wire.connect()
    receiver.settimeout(None)
    errors = []

    def wait():
        try:
            receiver.recv()
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    receiver.close()
    thread.join()
    assert len(errors) == 1


def test_one_batch_in_many_threads(wire):
    sender, receiver = wire.connect()
    data = pattern(60_000)
    sender.sendall(data)
    buffer = bytearray()
    while len(buffer) < len(data):
        batch = receiver.recv()
        part = data[len(buffer) : len(buffer) + batch.nbytes]
        same = []

        def use(batch=batch, part=part, same=same):
            same.append(b"".join(tensor.tobytes() for tensor in batch.tensors()) == part == batch.tobytes())

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert same == [True] * 8
        buffer += part
