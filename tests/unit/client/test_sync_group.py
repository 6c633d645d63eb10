"""Groups and cursors without asyncio hand on what they are told, in the client's loop; what they do, the conformance cases show."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.sync import SyncCursor, SyncGroup

PARTS = ["a", "b", "c"]


class Loop:
    """Runs what it is given; ``inside``: now."""

    def __init__(self) -> None:
        self.inside = False

    def run(self, work: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        self.inside = True
        try:
            return asyncio.run(work)
        finally:
            self.inside = False


class Told:
    """In the place of a Group or a Cursor: what it is asked, each time in the client's loop, and the answer."""

    name, stream, counters = "n", "s", {"lost": 1}

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.asked: list[tuple[Any, ...]] = []
        self.left = list(PARTS)

    def _note(self, *what: Any) -> None:
        assert self.loop.inside
        self.asked.append(what)

    @property
    def owned(self) -> list[str]:
        self._note("owned")
        return ["k"]

    async def __anext__(self) -> str:
        self._note("next")
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop(0)

    def finished(self, part: Any) -> None:
        self._note("finished", part)

    def __getattr__(self, what: str) -> Any:
        async def answer(*args: Any, **named: Any) -> str:
            self._note(what, args, named)
            return f"answer to {what}"

        return answer


@pytest.fixture
def told() -> Told:
    return Told(Loop())


def test_sync_group_yields_every_part_and_ends(told: Told) -> None:
    made: Any = SyncGroup(told.loop, told)  # type: ignore[arg-type]
    assert (list(made), list(made)) == (PARTS, [])
    assert (made.name, made.counters, made.owned, made.take()) == ("n", {"lost": 1}, ["k"], "answer to take")


def test_sync_group_methods_pass_their_arguments(told: Told) -> None:
    made: Any = SyncGroup(told.loop, told)  # type: ignore[arg-type]
    what, where, how = object(), object(), object()
    with made as group:
        group.finished("part")
        group.commit()
        group.into("target", what, partition_for=where, options=how)
        assert len(told.asked) == 3
    assert told.asked == [
        ("finished", "part"),
        ("commit", (), {}),
        ("into", ("target", what), {"partition_for": where, "options": how}),
        ("close", (), {}),
    ]


def test_sync_cursor_methods_pass_the_partition(told: Told) -> None:
    made: Any = SyncCursor(told.loop, told, lambda consumer: SimpleNamespace(of=consumer))  # type: ignore[arg-type]
    with made as cursor:
        assert (cursor.name, cursor.stream, cursor.fetch(3)) == ("n", "s", "answer to fetch")
        cursor.commit(17, 4)
        assert cursor.consume(5, start="new", until="end").of == "answer to consume"
    assert told.asked == [
        ("fetch", (3,), {}),
        ("commit", (17, 4), {}),
        ("consume", (5,), {"start": "new", "until": "end"}),
        ("close", (), {}),
    ]
