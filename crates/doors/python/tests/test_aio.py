"""asyncio: nothing blocks the loop, and nothing that is cancelled is lost."""

import asyncio
import os

import numpy as np
import pytest
from conftest import ADDRESS, pattern

import devmem_tcp
from devmem_tcp import Dmabuf, Netdev, _attempts, aio

PATIENCE = 60


@pytest.fixture
def nics():
    link = f"mem:aio-{os.getpid()}"
    sender = Netdev.user(link, "10.77.0.1/24")
    receiver = Netdev.user(link, "10.77.0.2/24")
    memory = Dmabuf.anonymous(4 << 20)
    bound = receiver.plan_receive(ADDRESS).bind(memory)
    yield sender, receiver
    bound.close()
    sender.close()
    receiver.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def test_many_clients_are_served_in_one_thread(nics):
    sender, receiver = nics

    async def serve(stream):
        async with stream:
            async for batch in stream:
                await stream.sendall(batch.tobytes())

    async def client(number):
        data = pattern(400_000, seed=number)
        async with await aio.connect(sender, ADDRESS) as stream:

            async def send():
                await stream.sendall(data)
                stream.shutdown()

            sending = asyncio.create_task(send())
            echo = bytearray()
            async for batch in stream:
                echo += batch.tobytes()
            await sending
            return echo == data

    async def main():
        async with aio.listen(receiver, ADDRESS) as listener:
            servers = set()

            async def accept():
                async for stream, _peer in listener:
                    servers.add(asyncio.create_task(serve(stream)))

            accepting = asyncio.create_task(accept())
            results = await asyncio.gather(*(client(number) for number in range(8)))
            await asyncio.gather(*servers)
            accepting.cancel()
            return results

    assert run(main()) == [True] * 8


def test_sends_from_bound_memory_wait_for_room_and_for_their_completion(nics):
    sender, receiver = nics
    memory = Dmabuf.anonymous(16 << 20)
    memory.copy_from(pattern(16 << 20))
    tx = sender.bind_tx(memory)

    async def main():
        async with aio.listen(receiver, ADDRESS) as listener:
            stream = await aio.connect(sender, ADDRESS)
            accepted, _peer = await listener.accept()
            received = np.zeros(16 << 20, "u1")
            receiving = asyncio.create_task(accepted.recv_into(received))
            sent = await stream.send(tx)
            await sent.wait()
            assert sent.done() and tx.in_flight == 0
            part = await stream.send(tx, 10, 20)
            await part.wait()
            assert await receiving == 16 << 20
            assert (await accepted.recv()).tobytes() == pattern(16 << 20)[10:20]
            stream.close()
            assert not await accepted.recv()
            accepted.close()
            return received.tobytes()

    assert run(main()) == pattern(16 << 20)


def test_a_cancelled_receive_takes_nothing(nics):
    sender, receiver = nics

    async def main():
        async with aio.listen(receiver, ADDRESS) as listener:
            stream = await aio.connect(sender, ADDRESS)
            accepted, _peer = await listener.accept()
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(accepted.recv(), 0.01)
            waiting = [asyncio.create_task(accepted.recv(1)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[1].cancel()
            await stream.sendall(b"ab")
            got = [(await waiting[0]).tobytes(), (await waiting[2]).tobytes()]
            stream.close()
            accepted.close()
            return got

    assert sorted(run(main())) == [b"a", b"b"]


def test_plain_streams_and_listeners_can_be_awaited_in_loops(nics):
    sender, receiver = nics
    listener = receiver.listen(ADDRESS)

    async def main():
        stream = sender.connect(ADDRESS)
        stream.sendall(b"plain")
        stream.close()
        async for accepted, _peer in listener:
            async for batch in accepted.stream:
                return batch.tobytes()

    assert run(main()) == b"plain"


def test_connections_that_fail_raise_the_same_errors(nics):
    sender, receiver = nics

    async def main():
        with pytest.raises(ConnectionRefusedError):
            await aio.connect(sender, "10.77.0.2:9")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(aio.connect(sender, "10.77.0.77:9"), 0.05)

    run(main())


def test_each_address_of_a_name_is_tried(nics, monkeypatch):
    sender, receiver = nics
    found = ["10.77.0.2:1", ADDRESS]
    monkeypatch.setattr(aio._native, "_resolve", lambda address: found)

    async def main():
        async with aio.listen(receiver, ADDRESS) as listener:
            async with await aio.connect(sender, "receiver.test:5201") as stream:
                accepted, peer = await listener.accept()
                assert peer == stream.stream.getsockname()
                accepted.close()
            found[1] = "10.77.0.2:2"
            with pytest.raises(ConnectionRefusedError):
                await aio.connect(sender, "receiver.test:5201")

    run(main())


class Attempt:
    """What a connection attempt made."""

    def __init__(self, address):
        self.address = address
        self.closed = False

    def close(self):
        self.closed = True


def test_a_silent_address_does_not_hold_up_the_next_one_and_losers_are_closed():
    begun, made, ended = [], [], []

    async def connect(address):
        begun.append(address)
        try:
            if address == "silent":
                await asyncio.Event().wait()
            if address == "refused":
                raise ConnectionRefusedError(address)
        except asyncio.CancelledError:
            ended.append(address)
            if address != "silent":
                raise
        made.append(Attempt(address))
        return made[-1]

    async def main():
        stream = await _attempts.first_of(["silent", "refused", "good", "never"], connect)
        assert (stream.address, stream.closed) == ("good", False)
        assert (begun, ended) == (["silent", "refused", "good"], ["silent"])
        # It had a connection when it was given up.
        assert [(it.address, it.closed) for it in made] == [("good", False), ("silent", True)]
        with pytest.raises(ConnectionRefusedError):
            await _attempts.first_of(["refused", "refused"], connect)

    run(main())


def test_the_families_of_addresses_take_turns():
    found = ["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1"]
    assert _attempts.in_turns(found) == ["[::1]:1", "10.0.0.1:1", "[::2]:1", "[::3]:1"]
    for address in ("10.77.0.1:5201", "[fd77::1]:5201", ("fe80::1%lo", 80), ("::1", 80)):
        assert not _attempts.is_name(address)
    for address in ("localhost:80", ("store.example", 80), "nonsense"):
        assert _attempts.is_name(address)


def test_virtual_time_is_refused():
    a, b = Netdev.pair()

    async def main():
        with pytest.raises(devmem_tcp.NotSupportedError, match="virtual time") as raised:
            aio.listen(b, ADDRESS)
        assert "mem:NAME" in raised.value.remedy
        b.listen(ADDRESS)
        with pytest.raises(devmem_tcp.NotSupportedError):
            await aio.connect(a, ADDRESS)

    run(main())


def test_an_idle_loop_is_idle(nics):
    """A task that waits for completions is not woken by bytes that nobody receives."""
    sender, receiver = nics

    async def main():
        async with aio.listen(receiver, ADDRESS) as listener:
            stream = await aio.connect(sender, ADDRESS)
            accepted, _peer = await listener.accept()
            await accepted.sendall(b"unread")
            waiting = asyncio.create_task(stream._events.until(lambda: None))
            await asyncio.sleep(0.05)
            woken = 0
            wake = stream._events.wake

            def counted():
                nonlocal woken
                woken += 1
                wake()

            loop = asyncio.get_running_loop()
            loop.remove_reader(stream._events._set.fileno())
            loop.add_reader(stream._events._set.fileno(), counted)
            await asyncio.sleep(0.2)
            waiting.cancel()
            stream.close()
            accepted.close()
            return woken

    assert run(main()) < 5


def test_what_is_dropped_without_a_close_leaves_no_descriptor(nics):
    import gc

    sender, receiver = nics

    async def once():
        async with aio.listen(receiver, ADDRESS) as listener:
            stream = await aio.connect(sender, ADDRESS)
            accepted, _peer = await listener.accept()
            stream.shutdown()
            async for _batch in accepted.stream:
                pass

    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    async def main():
        await once()
        before = descriptors()
        for _ in range(5):
            await once()
        return descriptors() - before

    assert run(main()) <= 0
