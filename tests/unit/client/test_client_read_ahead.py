"""Test the read-ahead of a consumer: its errors, and its end on close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.iteration import Iteration, ReadAhead
from liftpy.errors import ClientClosedError, LiftError


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


async def test_client_close_with_a_full_read_ahead_buffer_ends_the_consumer() -> None:
    home = Home()
    ahead = ahead_of(Source(*[[piece(n)] for n in range(9)]), home, depth=2)
    await ahead.next()
    await turns()
    assert ahead._ready.full()
    home.callbacks[0]()
    with pytest.raises(ClientClosedError):
        await ahead.next()


async def test_consumer_iteration_closed_within_a_batch_slice_returns_no_more_records() -> None:
    items: Any = Iteration(ahead_of(Source([piece(1)], None)), lambda found: iter(range(5)))
    assert await anext(items) == 0
    await items.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(items)
    assert not items.alive
