"""Test the read-ahead of a consumer: its errors, and its end on close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.encode_publish import Address
from liftpy.client.iteration import Iteration, LastItem, ReadAhead
from liftpy.client.service_commands import CommandAnswer, _once
from liftpy.errors import ClientClosedError, ConfigError, LiftError
from tests.unit.client.test_service_commands import COMMAND, Wire, reply


class Home:
    """The part of the client that an iteration uses."""

    def __init__(self) -> None:
        self.closed: ClientClosedError | None = None
        self.callbacks: list[Callable[[], None]] = []

    def must_be_usable(self) -> None:
        if self.closed is not None:
            raise self.closed

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)


class Source:
    """A scripted fetch. Each answer is a list, an error, None at the end, or a future."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.begun = self.fetched = 0

    async def begin(self) -> Any:
        self.begun += 1
        return self.fetch

    async def fetch(self) -> Any:
        self.fetched += 1
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return await answer if isinstance(answer, asyncio.Future) else answer


def piece(number: int) -> Any:
    return SimpleNamespace(number=number)


def ahead_of(source: Source, home: Home | None = None, depth: int = 2) -> Any:
    return ReadAhead("s/0", home or Home(), depth, source.begin)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_read_ahead_raises_an_unexpected_fetch_error_in_the_consumer() -> None:
    ahead = ahead_of(Source(KeyError("k")))
    with pytest.raises(LiftError, match=r"read s/0: KeyError\('k"):
        await ahead.next()
    await turns()


async def test_client_close_cancels_read_ahead_and_ends_the_waiting_consumer() -> None:
    never = asyncio.get_running_loop().create_future()
    source, home = Source([piece(1)], never), Home()
    ahead = ahead_of(source, home)
    await ahead.next()
    fetching = ahead._fetching
    waiting = asyncio.ensure_future(ahead.next())
    await turns()
    home.callbacks[0]()
    with pytest.raises(ClientClosedError, match="The client was closed while"):
        await waiting
    await asyncio.wait([fetching])
    assert (fetching.cancelled(), home.callbacks) == (True, [])


async def test_client_close_with_a_full_read_ahead_buffer_ends_the_consumer() -> None:
    home = Home()
    ahead = ahead_of(Source(*[[piece(n)] for n in range(9)]), home, depth=2)
    await ahead.next()
    await turns()
    assert ahead._ready.full()
    home.callbacks[0]()
    with pytest.raises(ClientClosedError):
        await ahead.next()


async def test_read_ahead_abandon_cancels_the_fetch_without_waiting() -> None:
    never = asyncio.get_running_loop().create_future()
    home = Home()
    ahead = ahead_of(Source([piece(1), piece(2)], never), home)
    await ahead.next()
    fetching = ahead._fetching
    ahead.abandon()
    assert (ahead.ended, home.callbacks, await ahead.next()) == (True, [], None)
    async with asyncio.timeout(30):
        await asyncio.wait([fetching])
    assert fetching.cancelled()
    ahead.abandon()
    await ahead.close()


async def test_consumer_iteration_rejects_a_second_task_unless_the_first_was_interrupted() -> None:
    never = asyncio.get_running_loop().create_future()
    ahead = ahead_of(Source([piece(1)], never))
    handed = LastItem()
    items: Any = Iteration(ahead, lambda found: iter([found.number, found.number + 10]), handed)
    assert (await anext(items), handed.last, await anext(items), handed.last) == (1, 1, 11, 11)
    waiting = asyncio.ensure_future(anext(items))
    await turns()
    assert (items.alive, items.interrupted) == (True, True)
    with pytest.raises(ConfigError, match="already read by"):
        await anext(items)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (items.alive, items.interrupted) == (False, True)
    again = asyncio.ensure_future(anext(items))
    await turns()
    never.set_result([piece(2)])
    assert (await again, items.alive, items.interrupted) == (2, True, False)
    items.replace()
    assert not items.alive
    with pytest.raises(ConfigError, match="already read by"):
        await anext(items)


async def test_consumer_iteration_closed_within_a_batch_slice_returns_no_more_records() -> None:
    items: Any = Iteration(ahead_of(Source([piece(1)], None)), lambda found: iter(range(5)))
    assert await anext(items) == 0
    await items.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(items)
    assert not items.alive


# ---- the answer to an earlier attempt --------------------------------------------------------------------------------------------
async def test_service_command_that_is_already_answered_is_not_sent_again() -> None:
    wire = Wire()
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.set_result(reply(b"late"))
    transport: Any = wire
    found = await _once(transport, Address("shop.commands", "u1"), COMMAND, "id-1", 2.0, ("inbox.0", answer), 2.0)
    assert (found, wire.sent, wire.expected) == (CommandAnswer(b"late", 17, "n2"), [], [])
