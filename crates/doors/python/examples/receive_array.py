"""Receives arrays into device memory, and looks at them there without a copy.

    python receive_array.py                      # a thread of the program sends, over a wire in memory
    python receive_array.py tap:dm0,10.77.0.1/24 # needs root; in another terminal: nc -N 10.77.0.2 5201 <file
"""

import sys
import threading

import numpy as np

from devmem_tcp import Dmabuf, Netdev

ADDRESS = "10.77.0.2:5201"


def send(nic: Netdev) -> None:
    """Any TCP sender would do."""
    with nic.connect(ADDRESS, timeout=10) as stream:
        stream.sendall(np.arange(1 << 20, dtype=np.float32))


def receive(link: str, *, and_send: bool) -> None:
    memory = Dmabuf.anonymous(64 << 20)
    with Netdev.user(link, "10.77.0.2/24") as nic:
        rx = nic.plan_receive(ADDRESS).bind(memory)  # payload lands in `memory`, until `rx` is closed
        listener = nic.listen(ADDRESS)
        if and_send:
            sender = Netdev.user(link, "10.77.0.1/24")
            threading.Thread(target=send, args=(sender,)).start()
        stream, peer = listener.accept()

        total, nbytes = 0, 0
        for batch in stream:
            for tensor in batch.tensors():  # one for each contiguous part
                total += int(np.from_dlpack(tensor).sum(dtype=np.uint64))
                nbytes += tensor.nbytes
        print(f"{nbytes} bytes from {peer[0]}, their sum is {total}; {stream.stats}")
        rx.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        receive(sys.argv[1], and_send=False)
    else:
        receive("mem:receive", and_send=True)
