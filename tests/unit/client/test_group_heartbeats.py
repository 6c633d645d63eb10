"""A member of a group whose coordinator is the machine itself: heartbeats wait for nothing."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import GroupOptions
from liftpy.client.group import Group
from liftpy.client.transport import NoAnswerError
from liftpy.errors import UnavailableError
from liftpy.group import limits
from liftpy.group.commands import decode_command
from liftpy.group.machine import GroupMachine
from tests.unit.client.test_consuming import Node, consumer


class Coordinated:
    """One stream of one partition, and a coordinator; ``stuck``: nobody answers a commit."""

    def __init__(self) -> None:
        self.machine = GroupMachine()
        self.node = Node()
        self.stuck = False
        self.beats = 0
        self.commits = asyncio.Event()

    async def stream(self, name: str) -> Any:
        return SimpleNamespace(name=name, uid="u1", partitions=(SimpleNamespace(partition=0),))

    async def groups_stream(self) -> Any:
        return await self.stream("_groups")

    async def list_streams(self) -> list[Any]:
        return [await self.stream("orders")]

    def consume(self, stream: str, partition: int, **how: Any) -> Any:
        return consumer(self.node, how["start"], after_epoch=how["after_epoch"])

    async def call_service(self, service: str, stream: str, command: bytes, *, partition: int, timeout_s: float) -> Any:
        asked = decode_command(command)
        if asked.HasField("commit") and not asked.HasField("beat"):
            self.commits.set()
            if self.stuck:
                await asyncio.sleep(timeout_s)
                raise UnavailableError("nobody answers")
        self.beats += asked.HasField("beat")
        return SimpleNamespace(value=self.machine.apply(command, time.time_ns(), 1))


async def test_where_a_group_begins_at_the_end_is_committed_before_anything_comes() -> None:
    home = Coordinated()
    home.node.append(b"a", b"b")
    options = GroupOptions(start="new", auto_commit_s=0)
    group = await Group(home, "bills", ["orders"], "", options, None, None).open()
    async with group, asyncio.timeout(8):
        await home.commits.wait()
        home.node.append(b"c")
        assert (await anext(aiter(group))).slice.keys() == [b"c"]
        assert [at.position for at in home.machine.groups["bills"].readers.all_positions()] == [2]


async def test_a_commit_that_nobody_answers_ends_no_session() -> None:
    home = Coordinated()
    home.node.append(b"a", b"b")
    options = GroupOptions(session_s=limits.MIN_SESSION_MS / 1000, auto_commit_s=0.05)
    group = await Group(home, "bills", ["orders"], "", options, None, None).open()
    async with group, asyncio.timeout(8):
        part = await anext(aiter(group))
        assert part.slice.record_count == 2
        home.stuck = True
        committing = asyncio.create_task(group.commit())
        await home.commits.wait()
        before = home.beats
        while home.beats < before + 3:
            assert not committing.done()
            await asyncio.sleep(0.01)
        committing.cancel()
        await asyncio.wait([committing])
        home.stuck = False
        await group.commit()
        assert [key.partition for key in group.owned] == [0]
    with pytest.raises(StopAsyncIteration):
        await anext(aiter(group))


async def test_a_read_that_nobody_answered_in_time_is_asked_again() -> None:
    """So it is for a process that was stopped for longer than its patience: its group goes on, if its session does."""
    home, failures = Coordinated(), [NoAnswerError("no answer"), UnavailableError("nobody")]
    made = home.consume

    class Stopped:
        passed_offset = None

        def __init__(self, *given: Any, **how: Any) -> None:
            self.inner = made(*given, **how)
            self.batches = self.inner.batches

        async def begin(self) -> Any:
            if failures:
                raise failures.pop()
            return await self.inner.begin()

    home.consume = Stopped  # type: ignore[method-assign, assignment]
    home.node.append(b"a")
    async with await Group(home, "bills", ["orders"], "", GroupOptions(), None, None).open() as group, asyncio.timeout(10):
        assert (await anext(aiter(group))).slice.keys() == [b"a"]
        assert group.counters["unread"] == 2
