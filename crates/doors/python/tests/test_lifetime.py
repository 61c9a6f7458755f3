"""What keeps memory and tokens: batches, tensors and arrays; past the stream, the NIC, a fork and the process."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
from conftest import Wire, pattern, send_in_thread

from devmem_tcp import Dmabuf, ForkedError, Netdev


def home(wire):
    return wire.bound.net_iovs[1]


def test_tokens_come_home_with_the_last_view():
    wire = Wire()
    sender, receiver = wire.connect()
    sender.sendall(pattern(1000))
    batch = receiver.recv()
    [tensor] = batch.tensors()
    array = np.from_dlpack(tensor)
    view = array[10:20]
    returned = lambda: receiver.stats["tokens_returned"]  # noqa: E731
    for name in ("batch", "tensor", "array"):
        assert returned() == 0, name
        if name == "batch":
            batch.release()
            del batch
        elif name == "tensor":
            del tensor
        else:
            del array
        gc.collect()
    assert returned() == 0 and view.tobytes() == pattern(1000)[10:20]
    del view
    gc.collect()
    assert returned() == 1
    wire.close()


def test_a_tensor_outlives_stream_binding_memory_and_nic():
    wire = Wire()
    sender, receiver = wire.connect()
    data = pattern(1200)
    sender.sendall(data)
    [tensor] = receiver.recv().tensors()
    sender.close()
    receiver.close()
    wire.close()
    del wire, sender, receiver
    gc.collect()
    array = np.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert array.tobytes() == data


def test_kept_tensors_slow_the_sender_and_it_resumes_when_they_are_dropped():
    wire = Wire(nbytes=1 << 20)
    sender, receiver = wire.connect()
    data = pattern(32 << 20)
    thread = send_in_thread(sender, data)
    kept, received = [], bytearray()
    try:
        while True:
            batch = receiver.recv()
            kept += batch.tensors()
            received += batch.tobytes()
            del batch
            receiver.settimeout(0.5)
    except TimeoutError:
        pass
    # The memory is full of kept tensors: nothing more can arrive.
    assert 0 < len(received) <= 1 << 20 and thread.is_alive()
    assert b"".join(tensor.tobytes() for tensor in kept) == received
    kept.clear()
    receiver.settimeout(60)
    for batch in receiver:
        received += batch.tobytes()
    thread.join()
    assert received == data
    wire.close()


def test_a_batch_that_is_collected_returns_its_frags():
    wire = Wire()
    sender, receiver = wire.connect()
    for _ in range(100):
        sender.sendall(b"bytes")
        receiver.recv()
    stats = receiver.stats
    assert stats["device_frags"] == stats["tokens_returned"] > 0
    wire.close()


def in_child(child):
    """Runs `child` in a fork; returns whether it returned True."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if child() else 2
        except BaseException as error:  # the parent sees a code only
            print("in the child:", repr(error), file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_of_fork_gets_an_error_and_the_parent_goes_on():
    wire = Wire()
    sender, receiver = wire.connect()
    sender.sendall(b"before")
    batch = receiver.recv()
    [tensor] = batch.tensors()
    # A thread that waits at the fork, and does not exist in the child.
    waiting = threading.Thread(target=lambda: wire.listener.accept(), daemon=True)
    waiting.start()

    def child():
        failures = 0
        for call in (receiver.recv, wire.listener.accept, lambda: sender.sendall(b"x"), wire.sender.bind_tx):
            try:
                call(Dmabuf.anonymous(4096)) if call == wire.sender.bind_tx else call()
            except ForkedError as error:
                failures += error.errno == 130 and "open a NIC in this process" in error.remedy
        receiver.close()
        wire.sender.close()
        kept = tensor.tobytes() == b"before"
        nonlocal_batch.clear()
        with Netdev.user("mem:child", "10.0.0.1/24") as nic:
            return failures == 4 and kept and nic.addresses == ["10.0.0.1"]

    nonlocal_batch = [batch]
    del batch
    assert in_child(child)
    sender.sendall(b" and after")
    assert receiver.recv().tobytes() == b" and after"
    assert receiver.stats["tokens_returned"] == 1, "the child returned nothing"
    wire.sender.connect("10.77.0.2:5201", timeout=60)
    waiting.join()
    wire.close()


def run(program):
    script = textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


OPEN = """
    import threading
    import numpy as np
    from devmem_tcp import Dmabuf, Netdev
    sender = Netdev.user("mem:exit", "10.77.0.1/24")
    receiver = Netdev.user("mem:exit", "10.77.0.2/24")
    memory = Dmabuf.anonymous(1 << 20)
    bound = receiver.plan_receive("10.77.0.2:5201").bind(memory)
    listener = receiver.listen("10.77.0.2:5201")
    out = sender.connect("10.77.0.2:5201")
    stream, _ = listener.accept()
    out.sendall(b"kept")
    tensor = stream.recv().tensors()[0]
"""


def test_a_tensor_may_be_kept_to_the_end_of_the_process():
    ended = run(OPEN + "    array = np.from_dlpack(tensor); capsule = tensor.__dlpack__(); view = memoryview(tensor)\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_process_may_end_while_daemon_threads_wait():
    ended = run(
        OPEN
        + """
    import time
    for call in (stream.recv, listener.accept, lambda: out.sendall(bytes(1 << 30))):
        threading.Thread(target=call, daemon=True).start()
    time.sleep(0.1)
    """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_objects_may_be_dropped_in_any_order():
    import itertools

    for order in list(itertools.permutations(range(5)))[::23]:
        wire = Wire(nbytes=1 << 16)
        sender, receiver = wire.connect()
        sender.sendall(b"bytes")
        batch = receiver.recv()
        kept = [wire, sender, receiver, np.from_dlpack(batch.tensors()[0]), batch]
        del wire, sender, receiver, batch
        for at in order:
            kept[at] = None
