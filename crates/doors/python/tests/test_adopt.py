"""Memory of GPUs that other libraries have allocated: adopted, gathered into, refused, kept and freed."""

import pytest
from test_gpu import LIBRARY, STUB, needs_stub, of_each_vendor, run

BEGIN = """
    import errno
    import gc
    import os
    import sys
    import time
    import conftest
    import numpy as np
    import pytest
    from their_gpu import Array, OldTensor, Tensor
    import devmem_tcp
    from devmem_tcp import Dmabuf

    kind = sys.argv[1]
    alloc = getattr(Dmabuf, kind)
    number = {"cuda": 2, "hip": 10}[kind]
"""


def passes(program, kind, plan, **variables):
    done = run(BEGIN + program + '    print("done")\n', kind, **{LIBRARY[kind]: STUB, "STUB_GPU": plan}, **variables)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


ADOPTED = """
    for their in (Tensor, OldTensor):
        tensor = their(alloc(3 << 20), 8192, 1 << 20)
        memory = Dmabuf.adopt(tensor)
        address = tensor.address + 8192
        assert (memory.nbytes, memory.data_ptr, memory.device) == (1 << 20, address, f"{kind}:0")
        # The default stream: its library makes it wait, and it was waited for.
        assert tensor.streams == [{"cuda": 1, "hip": 0}[kind]]
        data = conftest.pattern(1 << 20)
        memory.copy_from(data)
        assert tensor.memory[8192 : 8192 + len(data)].tobytes() == data
        assert memory.__dlpack_device__() == (number, 0)
        # Adopted memory is described as own memory is, and adopted again.
        assert Dmabuf.adopt(memory[4096:8192]).tobytes() == data[4096:8192]
    conftest.use_device_memory(lambda nbytes: Dmabuf.adopt(Tensor(alloc(nbytes))))
"""


@needs_stub
@of_each_vendor
def test_tensors_of_other_libraries_are_bound_received_into_and_sent(kind, tmp_path):
    passes(ADOPTED, kind, "polls=2", STUB_GPU_LOG=str(tmp_path / "log"))
    prefix = {"cuda": "cu", "hip": "hip"}[kind]
    assert f"{prefix}StreamSynchronize 0x0\n" in (tmp_path / "log").read_text()


FREED_AT_THE_END = """
    tensor = Tensor(alloc(1 << 20))
    tensor.pause = 0.3
    memory = Dmabuf.adopt(tensor)
    del memory
    assert tensor.freeing.wait(30)

    class Slow:
        # The end of the interpreter waits for it, with the lock free: the other thread asks for the lock meanwhile.
        def __del__(self, sleep=time.sleep):
            sleep(1)

    slow = Slow()
"""


@needs_stub
@of_each_vendor
def test_a_program_ends_while_memory_is_being_freed(kind):
    passes(FREED_AT_THE_END, kind, "polls=0")


KEPT = """
    tensor = Tensor(alloc(4 << 20))
    wire = conftest.Wire(Dmabuf.adopt(tensor))
    out, stream = wire.connect()
    out.sendall(b"bytes")
    [view] = stream.recv().tensors()
    for handle in (out, stream, wire):
        handle.close()
    wire.memory = None
    del wire, out, stream, handle
    gc.collect()
    assert view.tobytes() == b"bytes" and tensor.deleted == 0
    capsule = view.__dlpack__(stream=-1)
    del view
    gc.collect()
    assert tensor.deleted == 0
    del capsule
    gc.collect()
    assert tensor.freed.wait(conftest.PATIENCE) and tensor.deleted == 1
"""


@needs_stub
@of_each_vendor
def test_a_tensor_is_kept_past_the_nic_until_its_last_view_and_freed_once(kind):
    passes(KEPT, kind, "devices=1")


REFUSED = """
    host = np.zeros(8192, "u1")
    mine = alloc(1 << 20)
    for what, error, text in [
        (b"bytes", TypeError, "bytes is no tensor: .*\\n  pass a tensor of torch, CuPy or jax"),
        (object(), TypeError, "__cuda_array_interface__"),
        (host, BufferError, "host memory\\n  move it to a GPU"),
        (Dmabuf.anonymous(4096), BufferError, "host memory\\n  move it to a GPU"),
    ]:
        with pytest.raises(error, match=text):
            Dmabuf.adopt(what)
    foreign = host.ctypes.data // 4096 * 4096
    for tensor, error, text in [
        (Tensor(mine, strides=(2,)), BufferError, "not contiguous\\n  make a contiguous copy"),
        (Tensor(mine, strides=(-1,)), BufferError, "not contiguous"),
        (Tensor(mine, major=2), BufferError, "newer than version 1"),
        (Tensor(mine, 16, 8192), devmem_tcp.InvalidInputError, "not whole pages.*\\n  adopt a multiple of pages"),
        (Tensor(mine, 0, 5000), devmem_tcp.InvalidInputError, "not whole pages"),
        (Tensor(mine, 0, 0), devmem_tcp.InvalidInputError, "not whole pages"),
        (Tensor(mine, 0, 4 << 20), devmem_tcp.InvalidInputError, "end after the allocation"),
        (Tensor(mine, device=(number, 1)), devmem_tcp.InvalidInputError, f"{kind}:0, not {kind}:1"),
        (Tensor(mine, device=(number, 5)), devmem_tcp.NotFoundError, f"no device {kind}:5"),
        (Tensor(mine, address=foreign), devmem_tcp.InvalidInputError, "not in memory of a device.*\\n  allocate it with"),
    ]:
        with pytest.raises(error, match=text) as raised:
            Dmabuf.adopt(tensor)
        if isinstance(raised.value, devmem_tcp.InvalidInputError):
            assert raised.value.errno == errno.EINVAL
        # It is not kept.
        assert tensor.freed.wait(conftest.PATIENCE) and tensor.deleted == 1
    for device, text in [((13, 0), "managed memory"), ((7, 0), "neither CUDA"), ((1, 0), "host memory"), ((3, 0), "host")]:
        with pytest.raises(BufferError, match=text):
            Dmabuf.adopt(Tensor(mine, device=device))
"""


@needs_stub
@of_each_vendor
def test_what_cannot_be_adopted_is_refused_with_the_reason_and_what_to_do(kind):
    passes(REFUSED, kind, "devices=2")


MANAGED = """
    with pytest.raises(devmem_tcp.InvalidInputError, match="managed memory"):
        Dmabuf.adopt(Tensor(alloc(4096)))
"""


@needs_stub
@of_each_vendor
def test_memory_that_moves_is_refused(kind):
    passes(MANAGED, kind, "managed=1")


READ_ONLY = """
    wire = conftest.Wire(alloc(4 << 20))
    out, stream = wire.connect()
    data = conftest.pattern(8192)
    for their in (Tensor, Array) if kind == "cuda" else (Tensor,):
        theirs = their(alloc(8192), flags=1)
        theirs.memory.copy_from(data)
        memory = Dmabuf.adopt(theirs)
        writes = [
            lambda: memory.fill(0),
            lambda: memory.copy_from(bytes(8192)),
            lambda: memory[:8].copy_from(bytes(8)),
            lambda: batch.gather(out=memory),
            lambda: batch.gather(out=their(theirs.memory, flags=1)),
            lambda: wire.receiver.bind_rx(memory, [2]),
        ]
        # It is sent, copied from, and shown to others as what it is.
        sent = out.send(wire.sender.bind_tx(memory), slice(0, 8192))
        received = bytearray(8192)
        assert stream.recv_into(received) == 8192 and received == data
        sent.wait(conftest.PATIENCE)
        out.sendall(b"bytes")
        batch = stream.recv()
        for write in writes:
            with pytest.raises(BufferError, match="read-only"):
                write()
        target = alloc(8192)
        target.copy_from(their(theirs.memory, flags=1))
        assert target.tobytes() == memory.tobytes() == data
        again = Dmabuf.adopt(memory)
        with pytest.raises(BufferError, match="read-only"):
            again.fill(0)
        with pytest.raises(BufferError, match="before version 1"):
            memory.__dlpack__()
        if kind == "cuda":
            assert memory.__cuda_array_interface__["data"] == (memory.data_ptr, True)
    wire.close()
"""


@needs_stub
@of_each_vendor
def test_a_tensor_that_is_read_only_is_sent_and_not_written(kind):
    passes(READ_ONLY, kind, "polls=1")


ARRAY = """
    # The description has no device: the driver knows it.
    array = Array(Dmabuf.cuda(8192, 1), 4096, 4096)
    memory = Dmabuf.adopt(array)
    assert (memory.device, memory.nbytes, memory.data_ptr) == ("cuda:1", 4096, array.address + 4096)
    memory.copy_from(bytes(range(256)) * 16)
    assert array.memory[4096:].tobytes() == bytes(range(256)) * 16
    freed = array.freed
    del array
    gc.collect()
    assert not freed.is_set() and memory.tobytes() == bytes(range(256)) * 16
    del memory
    gc.collect()
    assert freed.wait(conftest.PATIENCE)
    mine = alloc(8192)
    for array, error, text in [
        (Array(mine, strides=(8,)), BufferError, "not contiguous"),
        (Array(mine, 4, 4096), devmem_tcp.InvalidInputError, "not whole pages"),
        (Array(mine, address=4096), devmem_tcp.InvalidInputError, "not in memory of a device"),
    ]:
        with pytest.raises(error, match=text):
            Dmabuf.adopt(array)
    assert Dmabuf.adopt(Array(mine, strides=(4,))).nbytes == 8192
"""


@needs_stub
def test_an_array_with_the_interface_of_cuda_is_adopted(tmp_path):
    passes(ARRAY, "cuda", "devices=2", STUB_GPU_LOG=str(tmp_path / "log"))
    # The stream that it names.
    assert "cuStreamSynchronize 0x2\n" in (tmp_path / "log").read_text()


GATHERED = """
    wire = conftest.Wire(alloc(4 << 20))
    out, stream = wire.connect()
    data = conftest.pattern(1000)
    # Of any alignment, and on the other device, too.
    for their in [Tensor(alloc(8192), 4091, 1000), Tensor(alloc(8192, 1), 3, 1000)]:
        view = their.memory[their.offset : their.offset + 1000]
        out.sendall(data)
        assert stream.recv().gather(out=their) == 1000
        assert view.tobytes() == data
        their.memory.fill(0)
        out.sendall(data)
        assert stream.recv_into(their) == 1000
        assert view.tobytes() == data
        their.memory.fill(0)
        out.sendall(data)
        batch = stream.recv()
        batch.tensors()
        assert batch.gather(out=their) == 1000
        around = their.memory.tobytes()
        assert around == bytes(their.offset) + data + bytes(8192 - 1000 - their.offset)
        target = alloc(4096)
        target[5:1005].copy_from(their)
        assert target[5:1005].tobytes() == data
    with pytest.raises(BufferError, match="bind_tx"):
        out.sendall(their)
    with pytest.raises(ValueError, match="do not fit"):
        batch.gather(out=Tensor(alloc(4096), 0, 999))
    for their, text in [
        (Tensor(wire.memory, address=4096), "not in memory of a device"),
        (Tensor(wire.memory, device=(number, 1)), f"{kind}:0, not {kind}:1"),
    ]:
        with pytest.raises(devmem_tcp.InvalidInputError, match=text):
            batch.gather(out=their)
    wire.close()
"""


@needs_stub
@of_each_vendor
def test_a_batch_is_gathered_to_tensors_of_other_libraries_on_each_device(kind):
    passes(GATHERED, kind, "devices=2,polls=1")


FORKED = """
    tensor = Tensor(alloc(4096))
    memory = Dmabuf.adopt(tensor)
    if os.fork() == 0:
        result = 1
        try:
            Dmabuf.adopt(Tensor(tensor.memory))
        except devmem_tcp.ForkedError:
            del memory
            gc.collect()
            result = tensor.deleted
        os._exit(result)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    assert tensor.deleted == 0
    memory.copy_from(bytes(4096))
"""


@needs_stub
@of_each_vendor
def test_a_child_of_fork_adopts_nothing_and_frees_nothing(kind):
    passes(FORKED, kind, "devices=1")


@needs_stub
@of_each_vendor
def test_adopted_memory_may_be_kept_to_the_end_of_the_process(kind):
    passes("    memory = Dmabuf.adopt(Tensor(alloc(4096)))\n", kind, "devices=1")


@of_each_vendor
def test_without_a_driver_the_error_says_what_to_install(kind):
    program = BEGIN + "    Dmabuf.adopt(Tensor(Dmabuf.anonymous(4096), device=(number, 0)))\n"
    done = run(program, kind, **{LIBRARY[kind]: "/nowhere/library.so"})
    assert "devmem_tcp.NotSupportedError" in done.stderr and "install the driver of the GPU" in done.stderr


def test_tensors_of_torch_are_adopted():
    torch = pytest.importorskip("torch", reason="SKIP torch is not installed: pip install torch")
    if not torch.cuda.is_available():
        pytest.skip("SKIP torch sees no GPU")
    from devmem_tcp import Dmabuf

    tensor = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")
    memory = Dmabuf.adopt(tensor)
    memory.copy_from(bytes(range(256)) * (1 << 14))
    assert memory.data_ptr == tensor.data_ptr() and tensor[255].item() == 255
