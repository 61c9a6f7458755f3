"""Sends an array from device memory without a copy, and reuses the memory when the peer has the bytes."""

import threading

import numpy as np

from devmem_tcp import Dmabuf, Listener, Netdev

ADDRESS = "10.77.0.2:5201"
ROUNDS = 10


def receive(listener: Listener) -> None:
    """Any TCP receiver would do."""
    stream, _peer = listener.accept()
    array = np.empty((512, 512), np.float32)
    for number in range(ROUNDS):
        assert stream.recv_into(array) == array.nbytes
        assert (array == number).all()
    print(f"{ROUNDS} arrays of {array.nbytes} bytes arrived")


peer = Netdev.user("mem:send", "10.77.0.2/24")
thread = threading.Thread(target=receive, args=(peer.listen(ADDRESS),))
thread.start()

memory = Dmabuf.anonymous(1 << 20)
array = memory.view("float32", (512, 512)).numpy()  # the same bytes
with Netdev.user("mem:send", "10.77.0.1/24") as nic, nic.bind_tx(memory) as tx:
    with nic.connect(ADDRESS, timeout=10) as stream:
        for number in range(ROUNDS):
            array[:] = number
            sent = stream.send(tx)  # all of the memory
            sent.wait()  # only now may the bytes change
thread.join()
