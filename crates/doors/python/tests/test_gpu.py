"""Memory of NVIDIA and AMD GPUs, on the stand-in for the libraries of both (the crate devmem-gpu-stub)."""

import errno
import os
import subprocess
import sys
import textwrap

import pytest

STUB = os.environ.get("DEVMEM_TEST_STUB_GPU")
#: The variable that names the library of a vendor.
LIBRARY = {"cuda": "DEVMEM_LIBCUDA", "hip": "DEVMEM_LIBAMDHIP"}
PROGRAM = """
    import sys
    import conftest
    import pytest
    from devmem_tcp import Dmabuf

    kind = sys.argv[1]
    alloc = getattr(Dmabuf, kind)
    # The device of DLPack, and streams that its array API has and does not have.
    number, valid, invalid = {"cuda": (2, [1, 2, 77, -1], [0]), "hip": (10, [0, 77, -1], [1, 2])}[kind]

    memory = alloc(4 << 20)
    assert (memory.device, memory.__dlpack_device__()) == (f"{kind}:0", (number, 0))
    assert not hasattr(memory, "__array_interface__")
    # CuPy and numba take the description for memory of CUDA.
    assert hasattr(memory, "__cuda_array_interface__") == (kind == "cuda")
    if kind == "cuda":
        described = memory[256:512].view("float32").__cuda_array_interface__
        assert described["data"] == (memory.data_ptr + 256, False) and described["shape"] == (64,)
    with pytest.raises(BufferError):
        memoryview(memory)
    with pytest.raises(BufferError):
        memory.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        memory.__dlpack__(dl_device=(1, 0))
    for stream in invalid:
        with pytest.raises(ValueError):
            memory.__dlpack__(stream=stream)
    for stream in valid:
        memory.__dlpack__(stream=stream, max_version=(1, 0))
        memory.__dlpack__(stream=stream, dl_device=(number, 0))

    conftest.use_device_memory(alloc)
    print("done")
"""


def run(program, *arguments, **variables):
    """Runs a program in a process that loads the libraries of the variables."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


needs_stub = pytest.mark.skipif(not STUB, reason="SKIP DEVMEM_TEST_STUB_GPU does not name the stand-in for the GPU")
of_each_vendor = pytest.mark.parametrize("kind", LIBRARY)


@needs_stub
@of_each_vendor
def test_memory_of_a_gpu_is_bound_received_gathered_and_sent(kind):
    done = run(PROGRAM, kind, **{LIBRARY[kind]: STUB, "STUB_GPU": "polls=2"})
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


ERRORS = """
    import sys
    from devmem_tcp import Dmabuf
    for nbytes, device in [(4096, 5), (1 << 40, 0)]:
        try:
            getattr(Dmabuf, sys.argv[1])(nbytes, device)
        except OSError as error:
            print(type(error).__name__, error.errno, error.remedy is not None)
"""


@needs_stub
@of_each_vendor
def test_a_device_that_is_not_there_and_too_much_memory_have_their_errors(kind):
    done = run(ERRORS, kind, **{LIBRARY[kind]: STUB})
    expected = f"NotFoundError {errno.ENODEV} True\nOutOfResourcesError {errno.ENOMEM} True\n"
    assert done.stdout == expected, done.stderr


FORK = """
    import os
    import sys
    import conftest
    from devmem_tcp import Dmabuf
    alloc = getattr(Dmabuf, sys.argv[1])
    memory, target = alloc(4096), alloc(4096)
    wire = conftest.Wire(alloc(1 << 20))
    out, stream = wire.connect()
    out.sendall(bytes(100))
    received = stream.recv().tensors()
    calls = [
        lambda: alloc(4096),
        lambda: target.copy_from(memory),
        lambda: target[:100].copy_from(received[0]),
        received[0].tobytes,
    ]
    if os.fork() == 0:
        for call in calls:
            try:
                call()
            except OSError as error:
                print(type(error).__name__, error.errno, "spawn" in error.remedy, flush=True)
        os._exit(0)
    os.wait()
    target.copy_from(memory)
"""


@needs_stub
@of_each_vendor
def test_a_child_of_fork_has_its_error_and_the_parent_continues(kind):
    done = run(FORK, kind, **{LIBRARY[kind]: STUB})
    assert (done.stdout, done.returncode) == (f"ForkedError {errno.EOWNERDEAD} True\n" * 4, 0), done.stderr


STARVED = """
    import sys
    import conftest
    from devmem_tcp import Dmabuf
    wire = conftest.Wire(getattr(Dmabuf, sys.argv[1])(1 << 20))
    out, stream = wire.connect()
    data = conftest.pattern(32 << 20)
    thread = conftest.send_in_thread(out, data)
    kept, received = [], 0
    try:
        while True:
            tensors = stream.recv().tensors()
            kept += tensors
            received += sum(tensor.nbytes for tensor in tensors)
            stream.settimeout(0.5)
    except TimeoutError:
        pass
    assert 0 < received <= 1 << 20 and thread.is_alive()
    assert b"".join(tensor.tobytes() for tensor in kept) == data[:received]
    kept.clear()
    tensors.clear()
    stream.settimeout(conftest.PATIENCE)
    for batch in stream:
        nbytes = batch.nbytes
        assert batch.tobytes() == data[received : received + nbytes]
        received += nbytes
    assert received == len(data)
    print("done")
"""


@needs_stub
@of_each_vendor
def test_kept_tensors_of_a_gpu_slow_the_sender_and_it_resumes(kind):
    done = run(STARVED, kind, **{LIBRARY[kind]: STUB, "STUB_GPU": "polls=2"})
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


LOST = """
    import sys
    import conftest
    from devmem_tcp import DevmemError, Dmabuf
    wire = conftest.Wire(getattr(Dmabuf, sys.argv[1])(1 << 20))
    out, stream = wire.connect()
    try:
        while True:
            out.sendall(bytes(1000))
            stream.recv().tobytes()
    except DevmemError as error:
        print(error.errno, "(700)" in error.strerror, "dmesg" in error.remedy)
    # Connections with host memory go on.
    other = conftest.Wire()
    out, stream = other.connect()
    out.sendall(b"goes on")
    print(stream.recv().tobytes())
"""


@needs_stub
@of_each_vendor
def test_a_gpu_that_is_lost_is_the_error_of_its_driver(kind):
    done = run(LOST, kind, **{LIBRARY[kind]: STUB, "STUB_GPU": "lost=20"})
    assert done.stdout == f"{errno.EIO} True True\nb'goes on'\n", done.stderr


ENDED = """
    import sys
    import threading
    import conftest
    from devmem_tcp import Dmabuf
    alloc = getattr(Dmabuf, sys.argv[1])
    wire = conftest.Wire(alloc(4 << 20))
    out, stream = wire.connect()
    out.sendall(bytes(1000))
    batch = stream.recv()
    tensor = batch.gather()
    capsule = tensor.__dlpack__()
    tx = wire.sender.bind_tx(alloc(1 << 20))
    sent = out.send(tx, slice(0, 1 << 20))
    threading.Thread(target=wire.listener.accept, daemon=True).start()
"""


@needs_stub
@of_each_vendor
def test_a_process_may_end_with_streams_and_tensors_of_a_gpu(kind):
    done = run(ENDED, kind, **{LIBRARY[kind]: STUB, "STUB_GPU": "polls=2"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


OLD = """
    import sys
    from devmem_tcp import Dmabuf
    try:
        getattr(Dmabuf, sys.argv[1])(4096)
    except OSError as error:
        print(type(error).__name__, error.remedy)
"""


@needs_stub
@pytest.mark.parametrize(("kind", "version"), [("cuda", "driver=11040"), ("hip", "driver=50731921")])
def test_an_old_driver_is_named_and_a_newer_one_is_the_remedy(kind, version):
    done = run(OLD, kind, **{LIBRARY[kind]: STUB, "STUB_GPU": version})
    assert done.stdout == "NotSupportedError install a newer driver\n", done.stderr


NO_DRIVER = """
    import sys
    from devmem_tcp import Dmabuf
    try:
        getattr(Dmabuf, sys.argv[1])(4096)
    except OSError as error:
        print(type(error).__name__, error.remedy)
"""


@of_each_vendor
def test_without_a_driver_the_error_says_what_to_install(kind):
    done = run(NO_DRIVER, kind, **{LIBRARY[kind]: "/nowhere/library.so"})
    assert done.stdout.startswith("NotSupportedError install the driver of the GPU"), done.stderr
