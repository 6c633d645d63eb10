"""Test leadership transfers of a node: requests to resign, and leaders that lost publishes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from sidecar.metadata.controller import TRANSFER_REQUEST_TIMEOUT_S
from sidecar.partition import leadership
from tests.only_in import only_in
from tests.unit.partition.shell_parts import KEY
from tests.unit.partition.test_replica_manager import RecordingWorker, partitions
from tests.until import until


async def test_resign_request_resumes_publishes_after_a_delay_unless_the_node_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    for ends in ("a while", "a stop", "a second question"):
        monkeypatch.setattr(leadership, "_BACK_AFTER_S", 0.001 if ends == "a while" else 60.0)
        one = RecordingWorker(KEY, leads=True)
        node = partitions(one)
        asked = {"stream": "orders", "partition": 3, "uid": "u1", "leader_epoch": 4}
        node.transfer_leadership(**asked, done=lambda one=one: one.asked.append("done"))
        await until(lambda one=one: "done" in one.asked)
        if ends == "a while":
            await until(lambda one=one: one.asked == ["leave", "done", "back"])
            assert node.transfers.tasks == {}
        elif ends == "a stop":
            assert set(node.transfers.tasks) == {KEY}
            assert await node.stop()
            assert one.asked == ["leave", "done"]
        else:
            first = node.transfers.tasks[KEY]
            node.transfer_leadership(**asked, done=lambda one=one: one.asked.append("again"))
            await until(lambda one=one: one.asked == ["leave", "done", "leave", "again"])
            assert first.cancelled()
            await node.stop()


async def test_leader_that_lost_publishes_transfers_its_leadership() -> None:
    for all_lost, new_leader, asked in (
        (False, True, ["hands over"]),
        (False, False, ["hands over", "back"]),
        (True, True, ["back"]),
    ):
        one = RecordingWorker(KEY, leads=True)
        links = SimpleNamespace(are_up=False, ingest=SimpleNamespace(missed_by_all_nodes=all_lost))
        node = partitions(one, links=links)
        one.transfer_after_lost_publishes = lambda one=one, new_leader=new_leader: (one.asked.append("hands over"), new_leader)[
            1
        ]  # type: ignore[attr-defined]
        transfers = node.transfers
        transfers.begin_after_lost_publishes(one, one.transfer_after_lost_publishes)  # type: ignore[attr-defined]
        first = transfers.tasks[KEY]
        transfers.begin_after_lost_publishes(one, one.transfer_after_lost_publishes)  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        assert (one.asked, first.cancelling()) == ([], 1)
        links.are_up = True
        await until(lambda one=one, asked=asked: one.asked == asked)
        assert node.transfers.tasks == {}
        await node.stop()
        transfers.begin_after_lost_publishes(one, one.transfer_after_lost_publishes)  # type: ignore[attr-defined]
        assert node.transfers.tasks == {}


async def test_leaders_that_lost_publishes_share_one_wait_for_the_connections() -> None:
    """An outage of NATS can last hours, and a node leads thousands of partitions."""
    workers = [RecordingWorker(replace(KEY, partition=number), leads=True) for number in range(50)]
    readers: list[Any] = []
    restored = False

    class Links:
        ingest = SimpleNamespace(missed_by_all_nodes=True)

        @property
        def are_up(self) -> bool:
            readers.append(asyncio.current_task())
            return restored

    node = partitions(*workers, links=Links())
    for one in workers:
        node.transfers.begin_after_lost_publishes(one, lambda: False)
    await until(lambda: len(readers) >= 70)
    assert len(set(readers[60:])) == 1
    restored = True
    await until(lambda: all(one.asked == ["back"] for one in workers))
    await node.stop()


@pytest.mark.parametrize("wrong", [{}, {"uid": "u2"}, {"leader_epoch": 5}, {"partition": 2}])
async def test_resign_request_completes_when_ingest_is_idle(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "_BACK_AFTER_S", 0.01)
    one = RecordingWorker(KEY, leads=True)
    node, order = partitions(one), one.asked
    one.ingest.is_idle = False
    asked = {"stream": "orders", "partition": 3, "uid": "u1", "leader_epoch": 4} | wrong
    node.transfer_leadership(**asked, done=lambda: order.append("done"))
    if wrong:
        assert order == ["done"], "it is not about this leadership: who asks need not wait"
        return
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert order == ["leave"], "publishers are still answered"
    one.ingest.is_idle = True
    await until(lambda: order == ["leave", "done", "back"])
    await node.stop()


async def test_leadership_transfer_requested_after_the_stop_starts_no_task() -> None:
    """A request of the metadata leader may arrive until the connections are closed."""
    leader = RecordingWorker(KEY, leads=True)
    node = partitions(leader)
    await node.transfers.close()
    node.transfers.begin(leader, pytest.fail)
    assert (node.transfers.tasks, leader.asked) == ({}, [])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_resign_request_waits_no_longer_than_the_timeout_of_its_requester(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    one = RecordingWorker(KEY, leads=True)
    node = partitions(one)

    async def settled(timeout_s: float) -> None:
        waits.append(timeout_s)

    async def rest(seconds: float) -> None:
        waits.append(seconds)

    transfers = node.transfers
    node.links.wait_until_processed = settled
    only_in(monkeypatch, leadership, "asyncio", sleep=rest)
    transfers.begin(one, lambda: waits.append("done"))
    await transfers.tasks[KEY]
    aside_s, done, back_s = waits
    assert done == "done"
    assert one.asked == ["leave", "back"]
    assert 0.1 <= aside_s < 0.75 * TRANSFER_REQUEST_TIMEOUT_S, "a slow disk's flush has its time, and the answer is in time"
    assert TRANSFER_REQUEST_TIMEOUT_S <= aside_s + back_s <= 1.5 * ReplicationConfig().session_s
