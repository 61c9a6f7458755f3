"""The same bytes in torch and jax, where they are installed. They are too large for every run of CI."""

import numpy as np
import pytest
from conftest import ADDRESS

from devmem_tcp import Dmabuf, Netdev


@pytest.fixture
def received():
    """Three hundred numbers in device memory, and a stream to send more."""
    a, b = Netdev.pair()
    memory = Dmabuf.anonymous(1 << 20)
    bound = b.plan_receive(ADDRESS).bind(memory)
    listener = b.listen(ADDRESS)
    sender = a.connect(ADDRESS)
    receiver, _peer = listener.accept()
    sender.sendall(np.arange(300, dtype="f4"))
    yield receiver.recv().tensor("float32", (3, 100)), sender, receiver
    bound.close()


def test_jax_shows_the_same_bytes_and_its_arrays_are_sent(received):
    jax = pytest.importorskip("jax", reason="SKIP jax is not installed: pip install jax")
    tensor, sender, receiver = received
    array = jax.dlpack.from_dlpack(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr
    assert (array.reshape(-1) == jax.numpy.arange(300)).all()
    sender.sendall(array)
    batch = receiver.recv()
    assert batch.tobytes() == np.arange(300, dtype="f4").tobytes()
    with pytest.raises(BufferError, match="read-only"):
        batch.gather(out=array)


def test_torch_shows_the_same_bytes_and_its_tensors_are_filled(received):
    torch = pytest.importorskip("torch", reason="SKIP torch is not installed: pip install torch")
    tensor, sender, receiver = received
    array = torch.from_dlpack(tensor)
    assert array.data_ptr() == tensor.data_ptr and array.shape == (3, 100)
    sender.sendall(array)
    out = torch.zeros(300)
    assert receiver.recv_into(out) == 1200
    assert torch.equal(out, torch.arange(300.0))
