"""Tensors as other libraries see them: DLPack in both versions, buffers, and the array interface."""

import ctypes
import gc
import threading

import numpy as np
import pytest

from devmem_tcp import Dmabuf, Tensor

CAPSULE = ctypes.pythonapi.PyCapsule_IsValid
CAPSULE.argtypes = [ctypes.py_object, ctypes.c_char_p]


def is_capsule(capsule, name):
    return CAPSULE(capsule, name) == 1


@pytest.fixture
def memory():
    memory = Dmabuf.anonymous(1 << 20)
    memory.copy_from(bytes(range(256)) * 4096)
    return memory


def test_a_capsule_is_versioned_if_the_consumer_asks_for_it(memory):
    assert memory.__dlpack_device__() == (1, 0)
    assert is_capsule(memory.__dlpack__(), b"dltensor")
    assert is_capsule(memory.__dlpack__(max_version=(0, 8)), b"dltensor")
    assert is_capsule(memory.__dlpack__(max_version=(1, 0)), b"dltensor_versioned")
    assert is_capsule(memory.__dlpack__(max_version=(2, 0), dl_device=(1, 0)), b"dltensor_versioned")


def test_what_a_consumer_may_not_ask_for_is_refused(memory):
    with pytest.raises(BufferError):
        memory.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError):
        memory.__dlpack__(stream=3)
    with pytest.raises(TypeError):
        memory.__dlpack__(stream="default")
    with pytest.raises(TypeError):
        memory.__dlpack__(None)
    memory.__dlpack__(stream=-1)


class Legacy:
    """A tensor from before version 1 of DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("version", [lambda tensor: tensor, Legacy])
def test_numpy_shows_the_same_bytes(memory, version):
    part = memory[256:4352].view("int32", (16, -1))
    array = np.from_dlpack(version(part))
    assert (array.shape, array.dtype, array.ctypes.data) == ((16, 64), np.int32, memory.data_ptr + 256)
    assert array.tobytes() == part.tobytes()
    memory[256:260].copy_from(b"\x01\x00\x00\x00")
    assert array[0, 0] == 1


def test_a_copy_is_separate(memory):
    array = np.from_dlpack(memory[:100], copy=True)
    array[:] = 5
    assert memory[:5].tobytes() == bytes(range(5))


def test_the_memory_lives_as_long_as_its_last_consumer():
    memory = Dmabuf.anonymous(1 << 20)
    memory.fill(9)
    array = np.from_dlpack(memory[4096:8192])[100:200]
    view = memoryview(memory[:10])
    unused = memory.__dlpack__(max_version=(1, 0)), memory.__dlpack__()
    del memory
    gc.collect()
    assert (array == 9).all() and bytes(view) == b"\x09" * 10
    del unused
    gc.collect()
    assert (array == 9).all()


def test_a_consumer_may_end_in_another_thread():
    memory = Dmabuf.anonymous(1 << 20)
    arrays = [np.from_dlpack(memory[at : at + 4096]) for at in range(0, 1 << 20, 4096)]
    del memory
    threads = [threading.Thread(target=arrays.pop) for _ in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrays == []


def test_buffers_have_type_and_shape(memory):
    view = memoryview(memory[:4096].view("float32", (2, 512)))
    assert (view.format, view.shape, view.strides, view.itemsize) == ("f", (2, 512), (2048, 4), 4)
    assert view.c_contiguous and not view.readonly and view.nbytes == 4096
    flat = memoryview(memory)
    flat[0:4] = b"\xff\xfe\xfd\xfc"
    assert memory[:4].tobytes() == b"\xff\xfe\xfd\xfc"
    array = np.asarray(memory[:16].view("uint16"))
    assert array.ctypes.data == memory.data_ptr and array.dtype == np.uint16
    with pytest.raises(BufferError):
        memoryview(memory[:16].view("bfloat16"))
    assert is_capsule(memory[:16].view("bfloat16").__dlpack__(), b"dltensor")


def test_the_array_interface_is_that_of_host_memory(memory):
    described = memory[:64].view("int16", (4, 8)).__array_interface__
    assert described == {
        "version": 3,
        "shape": (4, 8),
        "typestr": "<i2",
        "data": (memory.data_ptr, False),
        "strides": None,
    }
    assert not hasattr(memory, "__cuda_array_interface__")
    assert not hasattr(memory[:8].view("bfloat16"), "__array_interface__")


def test_parts_and_shapes_stay_inside(memory):
    assert len(memory) == memory.nbytes == 1 << 20
    table = memory[:80].view("int32", (4, 5))
    assert [len(table), table.ndim, table.shape, table.dtype, table.device] == [4, 2, (4, 5), "int32", "cpu"]
    assert table[1:3].shape == (2, 5) and table[1:3].tobytes() == memory[20:60].tobytes()
    assert table[3:].offset == 60 and table[9:].nbytes == 0
    empty = memory[5:5]
    assert (empty.nbytes, np.from_dlpack(empty).shape, bytes(memoryview(empty))) == (0, (0,), b"")
    for wrong in [(3, 7), (-1, -1), (-2, 10), (2, 0, -1)]:
        with pytest.raises(ValueError):
            memory[:80].view("int32", wrong)
    with pytest.raises(ValueError, match="contiguous"):
        memory[::2]
    with pytest.raises(ValueError, match="not a type of elements"):
        memory.view("float31")
    with pytest.raises(TypeError):
        memory[3]
    with pytest.raises(ValueError, match="gather"):
        memory[1:5].view("int32")
    with pytest.raises(TypeError):
        Tensor()


@pytest.mark.parametrize(
    "dtype",
    "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128 bool".split(),
)
def test_every_type_of_numpy_goes_both_ways(memory, dtype):
    kind = np.dtype(dtype)
    tensor = memory[: 16 * kind.itemsize].view(dtype)
    assert np.from_dlpack(tensor).dtype == np.asarray(tensor).dtype == kind
    values = np.zeros(16, kind)
    values[3] = 1
    tensor.copy_from(values)
    assert (tensor.numpy() == values).all()


def test_copies_take_every_source_and_only_the_right_length(memory):
    tensor = memory[1000:1008]
    other = Dmabuf.memfd(4096)
    other.fill(3)
    assert other.fileno() > 2 and memory.fileno() == -1
    for source in (b"12345678", np.arange(8, dtype="u1"), other[:8], Legacy(np.arange(1.0))):
        tensor.copy_from(source)
    assert tensor.view("float64").numpy()[0] == 0
    for wrong in (b"", b"123", other):
        with pytest.raises(ValueError, match="do not fill"):
            tensor.copy_from(wrong)
    with pytest.raises(TypeError, match="__dlpack__"):
        tensor.copy_from("text")
    # Overlapping parts of one memory, as memmove.
    memory[:10].copy_from(b"0123456789")
    memory[2:10].copy_from(memory[:8])
    assert memory[:10].tobytes() == b"0101234567"
    with pytest.raises(ValueError, match="overlaps"):
        memory[2:10].copy_from(memoryview(memory)[:8])


def test_read_only_targets_are_refused(memory):
    array = np.zeros(8, "u1")
    array.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        memory_into(array)
    with pytest.raises((ValueError, BufferError, TypeError)):
        memory_into(b"12345678")


def memory_into(out):
    from conftest import ADDRESS

    from devmem_tcp import Netdev

    a, b = Netdev.pair()
    listener = b.listen(ADDRESS)
    sender = a.connect(ADDRESS)
    receiver, _ = listener.accept()
    sender.sendall(b"12345678")
    receiver.recv().gather(out=out)


def test_numpy_has_no_bfloat16_and_the_error_says_so(memory):
    brain = memory.view("bfloat16")
    with pytest.raises(BufferError, match="numpy has no type bfloat16"):
        brain.numpy()
    assert brain.view("uint16").numpy().nbytes == memory.nbytes
