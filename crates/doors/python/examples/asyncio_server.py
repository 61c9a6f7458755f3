"""Serves many clients in one thread: each sends an array, and gets its sum back."""

import asyncio

import numpy as np

from devmem_tcp import Dmabuf, Netdev, aio

ADDRESS = "10.77.0.2:5201"
CLIENTS = 20


async def serve(stream: aio.Stream) -> None:
    """Answers one client."""
    async with stream:
        total = 0.0
        async for batch in stream:
            # Arrays of whole elements: a batch can end within one.
            total += float(batch.array("uint8").sum(dtype=np.uint64))
        await stream.sendall(np.float64(total).tobytes())


async def ask(nic: Netdev, array: np.ndarray) -> bool:
    """Sends an array, and compares the answer."""
    async with await aio.connect(nic, ADDRESS) as stream:
        await stream.sendall(array)
        stream.shutdown()
        answer = np.zeros(1)
        await stream.recv_into(answer)
        return float(answer[0]) == float(array.sum(dtype=np.uint64))


async def main() -> None:
    memory = Dmabuf.anonymous(64 << 20)
    server = Netdev.user("mem:server", "10.77.0.2/24")
    client = Netdev.user("mem:server", "10.77.0.1/24")
    rx = server.plan_receive(ADDRESS).bind(memory)
    async with aio.listen(server, ADDRESS) as listener:
        arrays = [np.full(100_000, number, np.uint8) for number in range(CLIENTS)]
        asking = asyncio.gather(*(ask(client, array) for array in arrays))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                stream, _peer = await listener.accept()
                tasks.create_task(serve(stream))
        answers = await asking
    print(f"{sum(answers)} of {CLIENTS} clients got their sum")
    assert all(answers)
    rx.close()


asyncio.run(main())
