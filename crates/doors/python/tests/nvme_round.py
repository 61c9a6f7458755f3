"""Stores in a namespace of our NVMe target and loads from it, over a TAP: `nvme_round.py FILE`, in a network namespace."""

import pathlib
import sys

import numpy as np
from conftest import pattern
from test_blocks import BYTES, NQN, serving

from devmem_tcp import Dmabuf, Netdev, load, load_into, store


def main() -> None:
    disk = pathlib.Path(sys.argv[1])
    with serving(NQN, disk) as port, Netdev.user("tap:py,10.77.0.1/24", "10.77.0.2/24") as nic:
        url = f"nvme://10.77.0.1:{port}/{NQN}?nsid=1"
        assert load(url, nic, connections=1).tobytes() == pattern(BYTES)

        memory = Dmabuf.anonymous(2 << 20)
        memory.copy_from(pattern(2 << 20, seed=9))
        stored = store(memory[4096 : 1 << 20], url, nic, at=8192)
        assert (stored.nbytes, stored.durable, stored.repeated) == ((1 << 20) - 4096, True, 0), stored
        expected = bytearray(pattern(BYTES))
        expected[8192 : 8192 + stored.nbytes] = memory[4096 : 1 << 20].tobytes()
        assert disk.read_bytes() == expected

        array = np.arange(1 << 18, dtype="<u4")
        stored = store(array, f"{url}&data-digest=1", nic, at=1 << 20, durability="fua")
        assert stored.durable and repr(stored) == f"<Stored {1 << 20} bytes, durable>"
        expected[1 << 20 : 2 << 20] = array.tobytes()
        stored = store(bytes(4096), url, nic, at=BYTES - 4096, durability="none", connections=1)
        assert not stored.durable
        expected[-4096:] = bytes(4096)
        assert disk.read_bytes() == expected

        target = Dmabuf.anonymous(BYTES)
        assert load_into(target, url, nic) == BYTES
        assert target.tobytes() == expected


main()
