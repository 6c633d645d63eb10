"""Test the check of group lags on a node: known ends, requests to other nodes, and yielding to the event loop."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

import sidecar.groups.coordinators as module
from liftpy.client.progress import ReadProgress
from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.group import ConsumerGroup
from liftpy.core.groups.lag import GroupLabels, GroupLag
from liftpy.core.groups.machine import GroupRecord
from liftpy.errors import NotFoundError, UnavailableError
from sidecar.groups.coordinators import MAX_REQUESTS_PER_ROUND, GroupLags

UID = "000001-1"
TRANSPORT: Any = object()


def a_key(partition: int) -> PartitionKey:
    return PartitionKey("s", UID, partition)


def a_group(*positions: int) -> GroupRecord:
    """Return a group with committed offset ``positions[N]`` in partition N."""
    readers = ConsumerGroup()
    readers.learn("s", UID)
    readers.positions = {("s", partition): (position, 1) for partition, position in enumerate(positions)}
    return GroupRecord(readers)


def coordinators(*of: tuple[dict[str, GroupRecord], bool]) -> Any:
    return iter([(SimpleNamespace(groups=groups), leads) for groups, leads in of])


class Elsewhere:
    """Stand in for readers of partitions. ``ends``: log ends or raised errors. ``stored_ns``: time of each record. 0: no answer."""

    def __init__(self) -> None:
        self.asked: list[PartitionKey] = []
        self.at_once = self.most_at_once = 0
        self.ends: dict[int, int | Exception] = {}
        self.stored_ns = 0
        self.read: list[tuple[PartitionKey, int]] = []

    def reader(self, transport: Any, subjects: Any, stream: str, partition: int, options: Any) -> Any:
        assert transport is TRANSPORT
        return SimpleNamespace(bounds=lambda uid: self._bounds(PartitionKey(stream, uid, partition)), fetch=self._fetch)

    async def _fetch(self, progress: ReadProgress, max_bytes: int) -> list[Any]:
        self.read.append((PartitionKey(progress.stream, progress.uid, progress.partition), progress.next_offset))
        batch = SimpleNamespace(timestamps_ns=lambda: [0, self.stored_ns])
        return [SimpleNamespace(batch=batch, first_index=1)] if self.stored_ns else []

    async def _bounds(self, key: PartitionKey) -> Any:
        self.asked.append(key)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        end = self.ends.get(key.partition, 10)
        if isinstance(end, Exception):
            raise end
        return SimpleNamespace(end_offset=end, log_start_offset=0), 0


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    made = Elsewhere()
    monkeypatch.setattr(module, "PartitionReader", made.reader)
    return made


async def test_group_lag_check_requests_ends_only_of_partitions_without_local_replica(elsewhere: Elsewhere) -> None:
    lags = GroupLags(lambda key: (0, 12) if key.partition == 0 else None, "ns")
    groups = {"g": a_group(5, 4)}
    await lags.measure(coordinators((groups, True)), TRANSPORT)
    assert elsewhere.asked == [a_key(1)]
    assert lags.by_label["g"].records == 7
    assert lags.by_label["g"].unknown == 1
    await lags.measure(coordinators((groups, True)), TRANSPORT)
    assert (lags.by_label["g"].records, lags.by_label["g"].unknown) == (13, 0)
    assert lags.by_label["g"].seconds > 0


async def test_group_lag_check_of_a_coordinator_that_does_not_lead_sends_no_request_and_reports_nothing(
    elsewhere: Elsewhere,
) -> None:
    now = [0]
    lags = GroupLags(lambda key: (0, 12) if key.partition == 0 else None, "ns")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module.clock, "now_ns", lambda: now[0])
        await lags.measure(coordinators(({"g": a_group(5, 4)}, False)), TRANSPORT)
        assert (lags.by_label, elsewhere.asked) == ({}, [])
        now[0] = 60 * 10**9
        await lags.measure(coordinators(({"g": a_group(5, 4)}, True)), None)
    assert lags.by_label == {"g": GroupLag(7, 60.0, 1)}
    assert elsewhere.asked == []


async def test_group_lag_check_reads_the_age_of_a_record_stored_before_the_first_check(elsewhere: Elsewhere) -> None:
    lags = GroupLags(lambda key: (0, 12), "ns")
    groups = {"g": a_group(5)}
    await lags.measure(coordinators((groups, True)), TRANSPORT)
    assert lags.by_label["g"].seconds < 60
    elsewhere.stored_ns = time.time_ns() - 3600 * 10**9
    for _ in range(2):
        await lags.measure(coordinators((groups, True)), TRANSPORT)
    assert 3600 <= lags.by_label["g"].seconds < 3700
    assert elsewhere.read == [(a_key(0), 5), (a_key(0), 5)], "again after no answer, and not after one"


async def test_group_lag_check_sends_a_bounded_number_of_requests(elsewhere: Elsewhere) -> None:
    lags = GroupLags(lambda key: None, "ns")
    groups = {"g": a_group(*[0] * (2 * MAX_REQUESTS_PER_ROUND))}
    for looks in (1, 2):
        await lags.measure(coordinators((groups, True)), TRANSPORT)
        assert len(elsewhere.asked) == len({*elsewhere.asked}) == looks * MAX_REQUESTS_PER_ROUND
    assert elsewhere.most_at_once == module.REQUESTS_AT_ONCE


async def test_group_lag_check_without_an_answer_uses_the_last_known_partition_end(elsewhere: Elsewhere) -> None:
    lags = GroupLags(lambda key: None, "ns")
    groups = {"g": a_group(5, 5)}
    await lags.measure(coordinators((groups, True)), TRANSPORT)
    elsewhere.ends = {0: UnavailableError("nobody"), 1: NotFoundError("gone")}
    for _ in range(2):
        await lags.measure(coordinators((groups, True)), TRANSPORT)
    assert (lags.by_label["g"].records, lags.by_label["g"].unknown) == (5, 1)


async def test_group_lag_of_a_deleted_stream_is_not_counted(elsewhere: Elsewhere) -> None:
    there = {0, 1, 2}
    lags = GroupLags(lambda key: (0, 9) if key.partition == 0 else None, "ns", exists=lambda key: key.partition in there)
    groups = {"g": a_group(5, 5, 5)}
    for _ in range(2):
        await lags.measure(coordinators((groups, True)), TRANSPORT)
    assert lags.by_label["g"].records == 14
    there.clear()
    elsewhere.asked.clear()
    await lags.measure(coordinators((groups, True)), TRANSPORT)
    assert (lags.by_label["g"], elsewhere.asked) == (GroupLag(), [])
    assert lags.lag_at(a_key(1), 5) == (None, 0, 0.0)


async def test_group_lag_check_of_many_partitions_yields_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def slept(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", slept)
    monkeypatch.setattr(module, "SLICE_S", -1.0)
    lags = GroupLags(lambda key: (0, 9), "ns", GroupLabels(1))
    groups = {f"g{number}": a_group(*[8] * 64) for number in range(3)}
    await lags.measure(coordinators((groups, True)), None)
    assert pauses == [module.PAUSE_S] * 3
    assert {name: lag.records for name, lag in lags.by_label.items()} == {"g0": 64, "(other)": 128}


async def test_group_lag_check_includes_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PARTITIONS", 2)
    lags = GroupLags(lambda key: (0, 9), "ns")
    await lags.measure(coordinators(({"g": a_group(8, 8, 8)}, True)), None)
    assert (lags.by_label["g"].records, lags.by_label["g"].unknown) == (2, 1)


async def test_group_lag_check_drops_deleted_groups_and_skips_cursors(elsewhere: Elsewhere) -> None:
    lags = GroupLags(lambda key: (0, 12), "ns")
    groups = {"g": a_group(5, 4), "h": a_group(3), "c": a_group(3)}
    groups["c"].cursor = 7
    await lags.measure(coordinators((groups, True)), None)
    assert set(lags.by_label) == {"g", "h"}
    assert [row["lag_records"] for row in lags.history("g")] == [15]
    await lags.measure(coordinators(({"h": groups["h"]}, True)), None)
    assert set(lags.by_label) == {"h"}, "an alert on a group ends with it"
    assert lags.history("g") == []
    assert len(lags._ends) == 1, "or there is no room for what is read later"
    await lags.measure(coordinators(({"h": groups["h"]}, False)), None)
    assert lags.by_label == {}, "another leads"
