"""Test a consumer that takes many records at once and meets a corrupt batch or a fetch error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftpy.client.batch_view import BatchSlice
from liftpy.client.iteration import Iteration, ReadAhead
from liftpy.core.wire.batch import parse_batch
from liftpy.errors import CorruptionError, LiftError, UnavailableError
from tests.batches import build_batch


async def test_consumer_returns_records_before_a_corrupt_batch_and_raises_until_the_batch_decodes() -> None:
    """A consumer that continued after the corrupt batch would lose its records [R2]."""
    batches = [build_batch([b"%d" % n, b"x"], base_offset=2 * n, leader_epoch=1) for n in range(4)]
    pieces = [BatchSlice(parse_batch(batch), 0, 2) for batch in batches]
    ahead = ReadAhead("s/0", Home(), 4, Source(pieces).begin)
    broken = {2}

    def unfold(piece: BatchSlice) -> Any:
        if piece.first_offset // 2 in broken:
            raise CorruptionError("it is damaged")
        return piece.records()

    reading: Any = Iteration(ahead, unfold)
    assert (await anext(reading)).offset == 0
    assert [record.offset for record in reading.at_once(2)] == [1, 2]
    assert [record.offset for record in reading.at_once(9)] == [3]
    for _ in range(2):
        with pytest.raises(CorruptionError):
            await anext(reading)
        assert reading.at_once(9) == []
    broken.clear()
    assert [record.offset async for record in reading] == [4, 5, 6, 7]


class Home:
    def must_be_usable(self) -> None:
        pass

    def on_close(self, callback: Any) -> Any:
        return lambda: None


class Source:
    """A fetch with all slices in one answer, and then the end."""

    def __init__(self, pieces: list[BatchSlice]) -> None:
        self.answers: list[list[BatchSlice] | None] = [pieces, None]

    async def begin(self) -> Any:
        async def fetch() -> list[BatchSlice] | None:
            return self.answers.pop(0)

        return fetch


async def test_consumer_with_buffered_records_raises_a_fetch_error_on_the_next_call() -> None:
    pieces = [BatchSlice(parse_batch(build_batch([b"x"], base_offset=n, leader_epoch=1)), 0, 1) for n in range(3)]
    answers: list[Any] = [pieces[:2], UnavailableError("nobody"), pieces[2:], None]

    async def begin() -> Any:
        async def fetch() -> list[BatchSlice] | None:
            found = answers.pop(0)
            if isinstance(found, LiftError):
                raise found
            return found  # type: ignore[no-any-return]

        return fetch

    reading: Any = Iteration(ReadAhead("s/0", Home(), 4, begin), BatchSlice.records)
    async with asyncio.timeout(20):
        assert (await anext(reading)).offset == 0
        for _ in range(20):  # turns of the loop, until the next answer is there
            await asyncio.sleep(0)
        assert [record.offset for record in reading.at_once(9)] == [1]
        with pytest.raises(UnavailableError):
            await anext(reading)
        assert [record.offset async for record in reading] == [2]
