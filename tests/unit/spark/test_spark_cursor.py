"""Test the cursor of a streaming query: it is set after each micro-batch, and its failure does not fail the query."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.client import Cursors
from liftpy.client.positions import Position
from liftpy.core.base.ids import PartitionKey
from liftpy.errors import UnavailableError
from liftpy.spark import source
from liftpy.spark.offsets import StreamOffsets
from liftpy.spark.process_connection import ProcessConnection
from liftpy.spark.source import CursorWriter

OFFSETS = StreamOffsets({("a", 0): 5, ("a", 1): 7, ("b", 0): 9}, {"a": "u1", "b": "u2"}, {("a", 0): 3, ("b", 0): 4})


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of commits. An exception at its front is raised once."""
    said: list[Any] = []

    async def set_cursor(cursors: Cursors, name: str, positions: dict[PartitionKey, Position]) -> None:
        if said and isinstance(said[0], Exception):
            raise said.pop(0)
        said.append((name, positions))

    monkeypatch.setattr(Cursors, "set", set_cursor)
    return said


def test_spark_cursor_writer_commits_all_positions_with_uids_and_leader_epochs_of_the_checkpoint(
    link: ProcessConnection, told: list[Any]
) -> None:
    """The leaders may have other records at these offsets by now, or the stream is deleted."""
    assert CursorWriter(link, "nightly").write(OFFSETS)
    positions = {("a", "u1", 0): Position("u1", 5, 3), ("a", "u1", 1): Position("u1", 7), ("b", "u2", 0): Position("u2", 9, 4)}
    assert told == [("nightly", {PartitionKey(*key): position for key, position in positions.items()})]


def test_spark_cursor_writer_waits_after_a_rejected_commit(
    link: ProcessConnection, told: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    writer = CursorWriter(link, "nightly", lambda: now[0])
    told.append(UnavailableError("no leader"))
    assert not writer.write(OFFSETS)
    assert "cannot set the cursor nightly: [UNAVAILABLE] no leader" in caplog.text
    now[0] += source.RETRY_S - 1
    assert not writer.write(OFFSETS)
    assert told == []
    now[0] += 1
    assert writer.write(OFFSETS)
    assert len(told) == 1


def test_spark_cursor_writer_stops_retrying_after_its_timeout(
    link: ProcessConnection, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PATIENCE_S", 0.01)

    async def never(*_: object) -> None:
        await source.asyncio.sleep(60)

    monkeypatch.setattr(Cursors, "set", never)
    assert not CursorWriter(link, "nightly").write(OFFSETS)
