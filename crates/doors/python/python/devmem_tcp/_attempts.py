"""Connecting to a name that has several addresses (RFC 8305)."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar


class _Closing(Protocol):
    def close(self) -> object: ...


T = TypeVar("T", bound=_Closing)

#: Seconds after which the next address is tried beside those before (RFC 8305 8, "Connection Attempt Delay").
ATTEMPT_DELAY = 0.25


def is_name(address: str | tuple[str, int]) -> bool:
    """Whether the host of an address must be resolved, which may take seconds."""
    host = address.rpartition(":")[0].strip("[]") if isinstance(address, str) else address[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def in_turns(addresses: list[str]) -> list[str]:
    """The two families in turn, that of the first address first (RFC 8305 4). IPv6 addresses are in brackets."""

    def is_first(address: str) -> bool:
        return address.startswith("[") == addresses[0].startswith("[")

    pairs = itertools.zip_longest(filter(is_first, addresses), itertools.filterfalse(is_first, addresses))
    return [address for pair in pairs for address in pair if address is not None]


async def first_of(addresses: list[str], connect: Callable[[str], Coroutine[Any, Any, T]]) -> T:
    """Returns the first connection that `connect` makes to one of the addresses, and gives up the other attempts. The next attempt begins
    when one has failed, or after `ATTEMPT_DELAY`. Raises the error of the attempt that failed last."""
    if len(addresses) == 1:
        return await connect(addresses[0])
    waiting = deque(in_turns(addresses))
    running: set[asyncio.Task[T]] = set()
    made: list[T] = []
    taken: T | None = None
    failed: BaseException = OSError("the name has no address")
    try:
        while not made and (waiting or running):
            if waiting:
                running.add(asyncio.create_task(connect(waiting.popleft())))
            delay = ATTEMPT_DELAY if waiting else None
            done, running = await asyncio.wait(running, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is None:
                    made.append(task.result())
                else:
                    failed = error
        if not made:
            raise failed
        taken = made[0]
        return taken
    finally:
        for task in running:
            task.cancel()
        # An attempt may have succeeded before it was cancelled.
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        made.extend(outcome for outcome in outcomes if not isinstance(outcome, BaseException))
        for connection in made:
            if connection is not taken:
                connection.close()
