"""Test heartbeats, commits and rebalances of a group member with the coordinator state machine in memory."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import ConsumedRecord, GroupOptions, GroupRejectedError
from liftpy.client import group as group_module
from liftpy.client.group import Group
from liftpy.client.in_flight import now_ns
from liftpy.config import NS_PER_S
from liftpy.core.groups import commands
from liftpy.core.groups.commands import decode_command
from liftpy.core.groups.machine import GroupMachine
from liftpy.errors import NotAllowedError, UnavailableError
from liftpy.nats.transport import RequestTimeoutError
from tests.unit.client.memory_node import Node, consumer
from tests.until import until


class Coordinated:
    """One stream with one partition by default, and a coordinator. ``stuck``: the coordinator answers no commit."""

    def __init__(self, partitions: int = 1) -> None:
        self.machine = GroupMachine()
        self.nodes = [Node() for _ in range(partitions)]
        self.node = self.nodes[0]
        self.stuck = False
        self.beats = self.left = self.unanswered = 0
        self.commits = asyncio.Event()
        self.streams: Any = self
        self.services = SimpleNamespace(call=self.call_service)

    async def stream(self, name: str = "_groups") -> Any:
        return SimpleNamespace(name=name, uid="u1", partitions=[SimpleNamespace(partition=p) for p in range(len(self.nodes))])

    async def list_streams(self) -> list[Any]:
        return [await self.stream("orders")]

    async def newest_streams(self) -> list[Any]:
        return await self.list_streams()

    def consume(self, stream: str, partition: int, start: Any, **how: Any) -> Any:
        return consumer(self.nodes[0], start)  # any of them: they hold the same

    async def call_service(self, service: str, stream: str, command: bytes, *, partition: int, timeout_s: float) -> Any:
        asked = decode_command(command)
        if asked.HasField("commit") and not asked.HasField("beat"):
            self.commits.set()
            if self.stuck:
                await asyncio.sleep(timeout_s)
                raise UnavailableError("no ack arrived")
        self.left += asked.HasField("leave")
        self.beats += asked.HasField("beat")
        if self.unanswered and asked.HasField("beat"):
            self.unanswered -= 1
            raise UnavailableError("no ack arrived")
        return SimpleNamespace(value=self.machine.apply(command, time.time_ns(), 1))


async def test_group_member_with_an_unanswered_commit_keeps_its_session() -> None:
    home = Coordinated()
    home.node.append(b"a", b"b")
    options = GroupOptions(session_s=commands.MIN_SESSION_MS / 1000, auto_commit_s=0.05)
    group = await Group(home, "bills", ["orders"], "", options, None, None).open()
    async with group, asyncio.timeout(8):
        part = await anext(group.batches())
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
        await anext(group.batches())


def committed(home: Coordinated) -> dict[int, int]:
    return {at.partition: at.position for at in home.machine.groups["bills"].readers.all_positions()}


async def test_group_rebalance_moves_a_partition_only_after_its_unfinished_records_are_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for interval in ("QUICK_HEARTBEAT_MS", "WAITING_HEARTBEAT_MS"):
        monkeypatch.setattr(commands, interval, 20)
    home = Coordinated(partitions=2)
    home.node.append(b"a", b"b")
    options = GroupOptions(session_s=commands.MIN_SESSION_MS / 1000, auto_commit_s=3600)
    async with asyncio.timeout(30), await Group(home, "bills", ["orders"], "", options, None, None).open() as group:
        parts = {part.key: part for part in [await group.take(), await group.take()] if part is not None}
        async with await Group(home, "bills", ["orders"], "", options, None, None).open() as other:
            before = home.beats
            while home.beats < before + 12:
                await asyncio.sleep(0.01)
            assert (len(parts), other.owned, committed(home)) == (2, [], {}), "they are in the application's hand"
            for part in parts.values():
                group.finished(part)
            while not other.owned:
                await asyncio.sleep(0.01)
            (key,) = other.owned
            assert committed(home)[key.partition] == 2


def suspend(home: Coordinated, patch: pytest.MonkeyPatch) -> None:
    """Let an hour pass on the member's clock, and let the coordinator answer no heartbeat afterwards."""
    home.unanswered = 1 << 20
    patch.setattr(group_module, "now_ns", lambda: now_ns() + 3600 * NS_PER_S)


async def test_group_that_fails_while_it_waits_for_a_heartbeat_commits_only_finished_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def deny(subject: str, payload: bytes, timeout_s: float) -> bytes:
        raise NotAllowedError("no permission to read")

    home = Coordinated()
    home.node.append(b"a", b"b", b"c")
    async with asyncio.timeout(8), await Group(home, "bills", ["orders"], "", GroupOptions(), None, None).open() as group:
        assert [(await anext(group)).offset for _ in range(2)] == [0, 1]
        suspend(home, monkeypatch)
        monkeypatch.setattr(home.node, "request", deny)
        with pytest.raises(NotAllowedError):
            await anext(group)
    assert committed(home) == {0: 1}


async def test_group_that_closes_while_it_waits_for_a_heartbeat_ends_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Coordinated()
    home.node.append(b"a", b"b", b"c")
    async with asyncio.timeout(8):
        group = await Group(home, "bills", ["orders"], "", GroupOptions(), None, None).open()
        assert [(await anext(group)).offset for _ in range(2)] == [0, 1]
        suspend(home, monkeypatch)

        async def read_rest() -> list[ConsumedRecord]:
            return [record async for record in group]

        reading = asyncio.create_task(read_rest())
        while not group.counters["held_back"]:
            await asyncio.sleep(0.01)
        await group.close()
        assert await reading == []
    assert committed(home) == {0: 1}


async def test_group_close_commits_only_finished_records() -> None:
    home = Coordinated()
    home.node.append(b"a")
    home.node.append(b"b")
    async with asyncio.timeout(20), await Group(home, "bills", ["orders"], "", GroupOptions(), None, None).open() as group:
        assert [(await anext(group.batches())).slice.last_offset for _ in range(2)] == [0, 1]
    assert committed(home) == {0: 1}


async def test_group_member_after_the_end_of_its_session_cannot_commit_and_receives_its_records_again() -> None:
    home = Coordinated()
    home.node.append(b"a", b"b")
    options = GroupOptions(auto_commit_s=0)
    async with asyncio.timeout(20), await Group(home, "bills", ["orders"], "", options, None, None).open() as group:
        assert (await anext(group)).record.offset == 0
        readers = home.machine.groups["bills"].readers
        readers.leave(*readers.members)
        with pytest.raises(GroupRejectedError, match=r"has lost orders/0\. The next owner receives these records again"):
            await group.commit()
        while (await anext(group)).record.offset != 0:
            pass  # it does not know yet that its session has ended
        await group.commit()
        assert committed(home) == {0: 1}


async def test_group_member_after_its_session_ends_at_the_first_commit_joins_again() -> None:
    home = Coordinated()
    home.node.append(b"a")
    real, ended = home.call_service, list[str]()

    async def call(service: str, stream: str, command: bytes, **how: Any) -> Any:
        if decode_command(command).HasField("commit") and not ended:
            readers = home.machine.groups["bills"].readers
            ended.extend(readers.members)
            readers.leave(*ended)
        return await real(service, stream, command, **how)

    home.services.call = call
    async with (
        asyncio.timeout(20),
        await Group(home, "bills", ["orders"], "", GroupOptions(start="new"), None, None).open() as group,
    ):
        coming = asyncio.ensure_future(anext(group))
        await until(lambda: len(home.machine.groups) and committed(home) == {0: 1}, "the start is committed")
        home.node.append(b"b")
        assert (await coming).record.offset == 1
        assert ended


@pytest.mark.parametrize(("instance", "left"), [("", 1), ("till-7", 0)])
async def test_group_member_with_an_instance_id_does_not_leave_on_close(instance: str, left: int) -> None:
    home = Coordinated()
    home.node.append(b"a")
    async with (
        asyncio.timeout(20),
        await Group(home, "bills", ["orders"], instance, GroupOptions(), None, None).open() as group,
    ):
        assert await group.take() is not None
    assert home.left == left


async def test_group_commit_excludes_a_finished_batch_of_an_earlier_generation() -> None:
    home = Coordinated()
    home.node.append(b"a")
    options = GroupOptions(auto_commit_s=0)
    async with asyncio.timeout(20), await Group(home, "bills", ["orders"], "", options, None, None).open() as group:
        first = await group.take()
        readers = home.machine.groups["bills"].readers
        readers.leave(*readers.members)
        again = await group.take()
        assert first is not None
        assert again is not None
        assert (again.slice.first_offset, again.generation > first.generation) == (0, True)
        group.finished(first)
        await group.commit()
        assert committed(home) == {}
        group.finished(again)
        await group.commit()
        assert committed(home) == {0: 1}


async def test_group_member_with_a_possibly_expired_session_returns_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Coordinated()
    home.node.append(b"a", b"b")
    async with asyncio.timeout(20), await Group(home, "bills", ["orders"], "", GroupOptions(), None, None).open() as group:
        assert (await anext(group)).offset == 0
        suspend(home, monkeypatch)
        coming = asyncio.ensure_future(anext(group))
        while not group.counters["held_back"]:
            await asyncio.sleep(0.01)
        assert not coming.done()
        home.unanswered = 0
        assert (await coming).offset == 1


async def test_group_member_retries_a_read_that_times_out() -> None:
    """A process that was suspended longer than the read timeout continues if its session is still valid."""
    home, failures = Coordinated(), [RequestTimeoutError("no answer"), UnavailableError("nobody")]
    made = home.consume

    class Stopped:
        def __init__(self, *given: Any, **how: Any) -> None:
            self.inner = made(*given, **how)
            self.batches = self.inner.batches

        def passed_position(self) -> None:
            return None

        async def begin(self) -> Any:
            if failures:
                raise failures.pop()
            return await self.inner.begin()

    home.consume = Stopped  # type: ignore[method-assign, assignment]
    home.node.append(b"a")
    async with await Group(home, "bills", ["orders"], "", GroupOptions(), None, None).open() as group, asyncio.timeout(10):
        assert (await anext(group.batches())).slice.keys() == [b"a"]
        assert group.counters["unread"] == 2
