"""Memory of Vulkan devices, on a device of this machine: Mesa's software driver is one."""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import use_device_memory

import devmem_tcp
from devmem_tcp import Dmabuf


@pytest.mark.parametrize("mapped", [True, False])
def test_payload_is_received_gathered_and_sent(vulkan, mapped):
    use_device_memory(lambda nbytes: Dmabuf.vulkan(nbytes, vulkan, mapped=mapped))


def test_memory_that_the_cpu_accesses_is_an_array_where_it_lies(vulkan):
    memory = Dmabuf.vulkan(8192, vulkan)
    array = np.from_dlpack(memory[4096:].view("float32"))
    array[:] = 1
    assert memory.__dlpack_device__() == (1, 0) and array.ctypes.data == memory.data_ptr + 4096
    assert memory[4096:].tobytes() == np.ones(1024, "f4").tobytes()
    assert np.asarray(memory).ctypes.data == memoryview(memory).obj.data_ptr == memory.data_ptr
    assert not hasattr(memory, "__cuda_array_interface__")


def test_memory_that_only_the_device_accesses_is_copied(vulkan):
    memory = Dmabuf.vulkan(4096, vulkan, mapped=False)
    assert memory.__dlpack_device__() == (7, 0)
    for name in ["data_ptr", "__array_interface__", "__cuda_array_interface__"]:
        assert not hasattr(memory, name), name
    for show in [memoryview, np.from_dlpack, lambda memory: memory.__dlpack__(copy=True)]:
        with pytest.raises(BufferError):
            show(memory)
    with pytest.raises(BufferError, match="has no address\n  copy it with"):
        memory.__dlpack__()
    bytes_of_it = np.arange(4096, dtype="u2").astype("u1")
    memory.copy_from(bytes_of_it)
    other = Dmabuf.vulkan(4096, vulkan)
    other.copy_from(memory)
    assert memory.tobytes() == other.tobytes() == bytes_of_it.tobytes()
    assert memory[4:].view("float32").shape == (1023,)
    with pytest.raises(ValueError, match="multiple of 4"):
        memory[2:6].view("float32")


def test_a_device_that_is_not_there_and_too_much_memory_have_their_errors(vulkan):
    with pytest.raises(devmem_tcp.NotFoundError, match="vulkaninfo"):
        Dmabuf.vulkan(4096, 4711)
    with pytest.raises(devmem_tcp.OutOfResourcesError):
        Dmabuf.vulkan(1 << 50, vulkan)


def test_without_a_loader_the_error_says_what_to_install():
    program = "from devmem_tcp import Dmabuf\ntry: Dmabuf.vulkan(4096)\nexcept OSError as e: print(type(e).__name__, e.remedy)"
    environment = {**os.environ, "DEVMEM_LIBVULKAN": "/nowhere/libvulkan.so.1"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert run.stdout.startswith("NotSupportedError install the Vulkan loader"), run.stderr
