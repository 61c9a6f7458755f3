"""Two agents of NIXL in two processes, with the backend DEVMEM. Started by test_nixl.py, in a process with NIXL_PLUGIN_DIR.

Each case is a function of the initiator; the other process does what it is told through a pipe.
"""

from __future__ import annotations

import importlib
import multiprocessing as mp
import os
import signal
import sys
import time

import numpy as np

BACKEND = "DEVMEM"
WAY = os.environ.get("DEVMEM_NIXL_WAY", "auto")
PATIENCE = 60.0
SIZE = 4 << 20


def api():
    for name in ("nixl_cu12", "nixl_cu13"):
        try:
            return importlib.import_module(name + "._api")
        except ImportError:
            continue
    raise SystemExit("no NIXL")


def make(name, thread=True, sync=None):
    m = api()
    config = m.nixl_agent_config(enable_prog_thread=thread, backends=[], **({} if sync is None else {"sync_mode": sync}))
    agent = m.nixl_agent(name, config)
    agent.create_backend(BACKEND, {"way": WAY})
    return agent


def register(agent, memory):
    return agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM", backends=[BACKEND])


def pattern(seed):
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


def far(pipe, name, thread):
    agent = make(name, thread)
    memory = pattern(1)
    register(agent, memory)
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    seen = []
    while True:
        if not thread or not pipe.poll(0.001):
            for sender, messages in agent.get_new_notifs(backends=[BACKEND]).items():
                seen += [(sender, message) for message in messages]
        if not pipe.poll(0):
            continue
        what, *arguments = pipe.recv()
        if what == "end":
            return
        if what == "bytes":
            pipe.send(memory.copy())
        if what == "seen":
            until(lambda: len(seen) >= arguments[0], lambda: seen.extend(
                (sender, message) for sender, messages in agent.get_new_notifs(backends=[BACKEND]).items() for message in messages
            ))
            pipe.send(seen)
            seen = []
        if what == "load":
            agent.add_remote_agent(arguments[0])
            pipe.send(None)
        if what == "notify":
            agent.send_notif(arguments[0], arguments[1])
            pipe.send(None)


def until(is_done, step=lambda: None):
    end = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < end, "nothing happens"
        step()


class Far:
    def __init__(self, name="far", thread=True):
        self.pipe, theirs = mp.Pipe()
        self.process = mp.Process(target=far, args=(theirs, name, thread), daemon=True)
        self.process.start()
        assert self.pipe.poll(PATIENCE), "the other process has not started"
        self.metadata, self.address = self.pipe.recv()

    def tell(self, *words):
        self.pipe.send(words)
        assert self.pipe.poll(PATIENCE), f"{words}: no answer"
        return self.pipe.recv()

    def end(self):
        self.pipe.send(("end",))
        self.process.join(PATIENCE)
        assert self.process.exitcode == 0


def state_of(agent, handle, state):
    end = time.monotonic() + PATIENCE
    while state == "PROC":
        assert time.monotonic() < end, "the transfer goes on and on"
        state = agent.check_xfer_state(handle)
    return state


def transfer(agent, op, pairs, message=b"", peer="far"):
    here, there = (agent.get_xfer_descs([(base + at, size, 0) for base, at, size in side], "DRAM") for side in zip(*pairs))
    handle = agent.initialize_xfer(op, here, there, peer, message, backends=[BACKEND])
    return handle, state_of(agent, handle, agent.transfer(handle))


def blocks(memory, address, size=4096, count=300):
    """Blocks that touch on neither side, in another order on each."""
    stride = size + 64
    return [((memory.ctypes.data, i * stride, size), (address, (i * 7 + 3) % count * stride, size)) for i in range(count)]


def reads_and_writes(thread=True, sync=None):
    other = Far(thread=True)
    agent = make("near", thread, sync)
    memory = pattern(2)
    registered = register(agent, memory)
    agent.add_remote_agent(other.metadata)
    for size in (1, 4096, 100_000, SIZE):
        _, state = transfer(agent, "WRITE", [((memory.ctypes.data, 0, size), (other.address, 0, size))], b"write")
        assert state == "DONE"
        assert (other.tell("bytes")[:size] == memory[:size]).all()
    assert other.tell("seen", 4) == [("near", b"write")] * 4
    pairs = blocks(memory, other.address)
    handle, state = transfer(agent, "READ", pairs, b"read")
    assert state == "DONE"
    theirs = other.tell("bytes")
    for (_, here, size), (_, there, _) in pairs:
        assert (memory[here : here + size] == theirs[there : there + size]).all()
    assert other.tell("seen", 1) == [("near", b"read")]
    memory[:] = pattern(3)
    handle, state = transfer(agent, "WRITE", pairs, b"blocks")
    assert state == "DONE"
    memory[:] = pattern(4)
    assert state_of(agent, handle, agent.transfer(handle)) == "DONE"
    theirs = other.tell("bytes")
    for (_, here, size), (_, there, _) in pairs:
        assert (memory[here : here + size] == theirs[there : there + size]).all()
    agent.release_xfer_handle(handle)
    agent.deregister_memory(registered, backends=[BACKEND])
    other.end()


def without_a_thread():
    reads_and_writes(thread=False)


def all_sync_modes():
    for mode in api().nixl_thread_sync_t:
        reads_and_writes(sync=mode)


def notifications_in_both_directions():
    other = Far()
    agent = make("near")
    agent.add_remote_agent(other.metadata)
    for message in (b"one", b"two", b"x" * 100_000):
        agent.send_notif("far", message)
    assert other.tell("seen", 3) == [("near", b"one"), ("near", b"two"), ("near", b"x" * 100_000)]
    other.tell("load", agent.get_agent_metadata())
    other.tell("notify", "near", b"back")
    got = {}
    until(lambda: got, lambda: got.update(agent.get_new_notifs(backends=[BACKEND])))
    assert got == {"far": [b"back"]}
    other.end()


def transfers_to_itself():
    agent = make("near")
    memory = pattern(5)
    register(agent, memory)
    half = SIZE // 2
    handle, state = transfer(agent, "WRITE", [((memory.ctypes.data, 0, half), (memory.ctypes.data, half, half))], b"self", "near")
    assert state == "DONE"
    assert (memory[:half] == memory[half:]).all()
    got = {}
    until(lambda: got, lambda: got.update(agent.get_new_notifs(backends=[BACKEND])))
    assert got == {"near": [b"self"]}


def partial_metadata():
    m = api()
    first, second = make("near"), make("far")
    memories = [pattern(6), pattern(7)]
    register(first, memories[0])
    descs = [second.get_reg_descs([(memories[1].ctypes.data + i * 4096, 4096, 0, "")], "DRAM") for i in (0, 2)]
    for desc in descs:
        second.register_memory(desc, backends=[BACKEND])
    # First the connection, then one region after the other.
    empty = m.nixlBind.nixlRegDList(m.nixlBind.DRAM_SEG)
    for part in (second.get_partial_agent_metadata(empty, True, [BACKEND]), *(second.get_partial_agent_metadata(desc, True, [BACKEND]) for desc in descs)):
        first.add_remote_agent(part)
    for i in (0, 2):
        pair = ((memories[0].ctypes.data, i * 4096, 4096), (memories[1].ctypes.data, i * 4096, 4096))
        handle, state = transfer(first, "WRITE", [pair])
        assert state == "DONE"
    assert (memories[1][:4096] == memories[0][:4096]).all()
    assert (memories[1][8192:12288] == memories[0][8192:12288]).all()
    assert (memories[1][4096:8192] == pattern(7)[4096:8192]).all()


def a_killed_peer_comes_back():
    other = Far()
    agent = make("near")
    memory = pattern(8)
    register(agent, memory)
    agent.add_remote_agent(other.metadata)
    handle, state = transfer(agent, "WRITE", [((memory.ctypes.data, 0, SIZE), (other.address, 0, SIZE))])
    assert state == "DONE"
    os.kill(other.process.pid, signal.SIGKILL)
    other.process.join(PATIENCE)
    bindings = api().nixlBind
    try:
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        raise AssertionError(f"the peer is gone, and the transfer is {state}")
    except bindings.nixlRemoteDisconnectError:
        pass
    # NIXL 1.5 has dropped what it knew of the peer's memory, and not always how it is reached.
    agent.remove_remote_agent("far")
    other = Far()
    agent.add_remote_agent(other.metadata)
    handle, state = transfer(agent, "WRITE", [((memory.ctypes.data, 0, SIZE), (other.address, 0, SIZE))], b"again")
    assert state == "DONE"
    assert (other.tell("bytes") == memory).all()
    assert other.tell("seen", 1) == [("near", b"again")]
    other.end()


def paths_are_told():
    from devmem_tcp import nixl

    agent = make("an agent")
    memory = pattern(9)
    register(agent, memory)
    half = SIZE // 2
    handle, state = transfer(agent, "READ", [((memory.ctypes.data, 0, half), (memory.ctypes.data, half, half))], b"", "an agent")
    assert state == "DONE"
    [entry] = [entry for entry in nixl.paths() if entry["agent"] == "an agent"]
    assert entry["way"] == WAY and entry["own_bytes"] == half


CASES = [
    reads_and_writes,
    without_a_thread,
    all_sync_modes,
    notifications_in_both_directions,
    transfers_to_itself,
    partial_metadata,
    a_killed_peer_comes_back,
    paths_are_told,
]

if __name__ == "__main__":
    mp.set_start_method("spawn")
    {case.__name__: case for case in CASES}[sys.argv[1]]()
