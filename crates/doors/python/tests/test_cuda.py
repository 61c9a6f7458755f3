"""Memory of a GPU, on the stand-in for the driver that the workspace has (the crate devmem-gpu-stub)."""

import os
import subprocess
import sys
import textwrap

import pytest

STUB = os.environ.get("DEVMEM_TEST_STUB_GPU")
PROGRAM = """
    import numpy as np
    import pytest
    from devmem_tcp import Dmabuf, Netdev, load_safetensors

    memory = Dmabuf.cuda(4 << 20)
    assert (memory.device, memory.__dlpack_device__()) == ("cuda:0", (2, 0))
    described = memory[256:512].view("float32").__cuda_array_interface__
    assert described["data"] == (memory.data_ptr + 256, False) and described["shape"] == (64,)
    assert not hasattr(memory, "__array_interface__")
    with pytest.raises(BufferError):
        memoryview(memory)
    with pytest.raises(BufferError):
        memory.__dlpack__(copy=True)
    with pytest.raises(ValueError):
        memory.__dlpack__(stream=0)
    memory.__dlpack__(stream=1, max_version=(1, 0))

    sender = Netdev.user("mem:cuda", "10.77.0.1/24")
    receiver = Netdev.user("mem:cuda", "10.77.0.2/24")
    bound = receiver.plan_receive("10.77.0.2:5201").bind(memory)
    listener = receiver.listen("10.77.0.2:5201")
    out = sender.connect("10.77.0.2:5201", timeout=60)
    stream, _ = listener.accept()
    numbers = np.arange(250, dtype="f4")
    out.sendall(numbers)
    batch = stream.recv()
    assert batch.device_bytes == 1000
    [tensor] = batch.tensors()
    assert tensor.device == "cuda:0" and tensor.tobytes() == numbers.tobytes() == batch.tobytes()
    gathered = batch.gather()
    assert gathered.device == "cuda:0" and gathered.tobytes() == numbers.tobytes()
    target, host = Dmabuf.cuda(4096), np.zeros(250, "f4")
    assert batch.gather(out=target[4:]) == batch.gather(out=host) == 1000
    assert target[4:1004].tobytes() == host.tobytes() == numbers.tobytes()

    out.sendall(numbers)
    assert stream.recv_into(target[8:1008]) == 1000
    assert target[8:1008].tobytes() == numbers.tobytes()
    target.copy_from(bytes(range(256)) * 16)
    tx = sender.bind_tx(target)
    sent = out.send(tx, target[10:20])
    assert stream.recv().tobytes() == bytes(range(10, 20))
    sent.wait(60)
    print("done")
"""


@pytest.mark.skipif(not STUB, reason="SKIP DEVMEM_TEST_STUB_GPU does not name the stand-in for libcuda")
def test_memory_of_a_gpu_is_bound_received_gathered_and_sent():
    environment = {**os.environ, "DEVMEM_LIBCUDA": STUB}
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    run = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.returncode) == ("done\n", 0), run.stderr


def test_without_a_driver_the_error_says_what_to_install():
    program = "from devmem_tcp import Dmabuf\ntry: Dmabuf.cuda(4096)\nexcept OSError as error: print(type(error).__name__, error.remedy)"
    environment = {**os.environ, "DEVMEM_LIBCUDA": "/nowhere/libcuda.so.1"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert run.stdout.startswith("NotSupportedError install the driver of the GPU"), run.stderr
