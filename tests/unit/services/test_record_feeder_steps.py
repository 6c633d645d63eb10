"""Test the steps of the record feeder: the epoch check, rewinds, skipped records and reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.batch_view import BatchSlice
from liftpy.client.progress import ReadProgress
from liftpy.core.services.bad_records import BadRecordError, DecisionMissedError, FailedUnit, NextStep, Unit
from liftpy.core.wire.batch import Record, build_batch, parse_batch
from liftpy.errors import OffsetOutOfRangeError, UnavailableError
from liftpy.service import Outbox, Role, Service, ServiceFailedError
from liftpy.service.record_feeder import _PAUSE_S
from tests.unit.services.test_record_feeder import FakeLog, Node


class Emitting:
    """An output writer that counts its calls."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def wake(self) -> None:
        self.said.append("wake")

    def reread_end(self) -> None:
        self.said.append("look again")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Any]:
    made: Any = Node(FakeLog(), tmp_path)
    made.feeder._emitter = made.told = Emitting()
    made.waited = []

    async def woken(timeout_s: float) -> None:
        made.waited.append(timeout_s)

    made.feeder._wait_for_wake = woken
    yield made
    await made.close()


def record(offset: int, value: bytes = b"x", epoch: int = 1) -> Record:
    return Record(offset, 0, None, value, (), "", None, epoch)


def failing(offset: int, timer: str = "", **more: Any) -> FailedUnit:
    return FailedUnit(BadRecordError(Unit(offset, timer), record(offset), "it raised"), **more)


def applied(node: Any, count: int) -> None:
    node.machine.apply([record(offset) for offset in range(count)])


async def saved(node: Any, count: int) -> None:
    for snapshot in node.machine.apply([record(offset) for offset in range(count)]).snapshots:
        await node.keeper.save(snapshot)


def slices(first: int, *epochs: int) -> list[BatchSlice]:
    made = [parse_batch(build_batch([b"v"], base_offset=first + n, leader_epoch=epoch)) for n, epoch in enumerate(epochs)]
    return [piece for batch in made if (piece := BatchSlice.between(batch, 0, None))]


# ---- what it asks for ------------------------------------------------------------------------------------------------------
async def test_service_record_feeder_restart_reads_from_the_record_before_its_snapshot(node: Any) -> None:
    await node.feeder.restart(0)
    progress = node.feeder._progress
    assert (progress.stream, progress.partition, progress.next_offset, progress.uid) == ("in", 0, 0, "u1")
    await saved(node, 10)
    await node.feeder.restart(0)
    assert (node.feeder._next_read(), node.feeder._verifying) == (9, True)
    assert node.feeder._progress.next_offset == 9
    assert node.keeper.digests == [], "the log has not shown yet that the state is its own"
    await node.feeder.restart(10)
    assert (node.feeder._next_read(), node.feeder._verifying) == (10, False)
    assert [at for at, _ in node.keeper.digests] == [10], "there is no record to look at"


async def test_service_record_feeder_rewinds_if_the_record_before_its_snapshot_has_another_leader_epoch(node: Any) -> None:
    await node.feeder.restart(0)
    await saved(node, 10)
    await node.feeder.restart(0)
    await node.feeder._apply_slices(slices(9, 1, 1))
    assert (node.machine.position, node.services[-1].values) == (11, ["x"] * 10 + ["v"])
    assert [at for at, _ in node.keeper.digests] == [10]
    await node.feeder.restart(0)
    await node.feeder._apply_slices(slices(9, 2, 2))
    assert (node.machine.position, node.feeder._truncated_at) == (10, 9)
    assert node.keeper.digests == [], "it is of another log"


async def test_record_feeder_skips_the_epoch_check_if_retention_deleted_the_record_before_its_snapshot(node: Any) -> None:
    async def fails() -> list[BatchSlice]:
        raise OffsetOutOfRangeError("gone")

    async def result() -> Any:
        task = asyncio.ensure_future(fails())
        await asyncio.wait([task])
        return node.feeder._result(task)

    await node.feeder.restart(0)
    await saved(node, 10)
    await node.feeder.restart(0)
    assert await result() is None
    assert (node.feeder._verifying, node.feeder._log_start_offset) == (False, 0)
    assert [at for at, _ in node.keeper.digests] == [10]
    node.feeder._align()
    assert await result() is None
    assert node.feeder._log_start_offset == 11, "the record at the state's position is gone as well"


@pytest.mark.parametrize(("log_start", "verifying"), [(0, True), (9, True), (10, False)])
async def test_service_record_feeder_in_a_new_leader_epoch_repeats_the_epoch_check(
    node: Any, log_start: int, verifying: bool
) -> None:
    await node.feeder.restart(0)
    applied(node, 10)
    node.feeder._verifying = False
    node.feeder._wake.clear()
    node.feeder.verify(log_start)
    assert (node.feeder._verifying, node.feeder._wake.is_set()) == (verifying, True)
    node.feeder.verify(3)
    assert node.feeder._log_start_offset == max(3, log_start), "a log's start never falls"


async def test_service_record_feeder_reports_each_reached_stop_position_once(node: Any) -> None:
    await node.feeder.restart(0)
    node.feeder.stop_at(5)
    applied(node, 5)
    node.feeder._report_stop_reached()
    node.feeder._report_stop_reached()
    assert node.stops == 1
    node.feeder.stop_at(5)
    node.feeder._report_stop_reached()
    assert node.stops == 1
    node.feeder.stop_at(6)
    node.feeder._report_stop_reached()
    assert node.stops == 1
    node.feeder.stop_at(4)
    node.feeder._report_stop_reached()
    assert node.stops == 2


# ---- ways back ---------------------------------------------------------------------------------------------------------------
async def test_service_record_feeder_quarantines_a_diverged_snapshot_and_later_snapshots(node: Any) -> None:
    node.store._kept = 5
    await node.feeder.restart(0)
    await saved(node, 20)
    await node.feeder.restart(0, lambda snapshot: snapshot.position == 20)
    node.feeder.disproven()
    assert await node.feeder._go_back()
    assert (node.store.positions(), node.machine.position) == ([10], 10)
    assert node.told.said == ["look again"]
    assert not await node.feeder._go_back(), "once"


async def test_service_record_feeder_with_missing_outputs_rewinds_only_as_leader(node: Any) -> None:
    node.store._kept = 5
    await node.feeder.restart(0)
    await saved(node, 30)
    node.outbox.restart(30)
    node.outbox.emitted_end = 20
    assert node.outbox.must_rewind
    assert not await node.feeder._go_back(), "a follower lacks nothing"
    node.role = Role.LEADER
    node.machine.change_role(Role.LEADER, 2)
    assert await node.feeder._go_back()
    assert (node.machine.position, node.outbox.must_rewind) == (20, False)


# ---- what can't be applied ---------------------------------------------------------------------------------------------------
def decider(decided: list[FailedUnit], error: Exception | None = None) -> Any:
    async def decide(what: FailedUnit) -> None:
        if error is not None:
            raise error
        decided.append(what)

    return SimpleNamespace(decide_to_skip=decide)


async def test_service_record_feeder_writes_a_skip_decision_once_and_reports_a_rejected_decision(node: Any) -> None:
    await node.feeder.restart(0)
    what, decided = failing(3), []
    node.feeder._host = decider(decided)
    before_s = time.monotonic()
    await node.feeder._do(NextStep.DECIDE, what)
    assert decided == [what]
    assert before_s <= what.decided_s <= time.monotonic()
    assert node.waited == []
    refused = failing(4)
    node.feeder._host = decider(decided, UnavailableError("no ack"))
    await node.feeder._do(NextStep.DECIDE, refused)
    assert (refused.decided_s, node.waited) == (None, [_PAUSE_S])
    assert node.feeder.problem == f"{refused.error}; giving up on it: UNAVAILABLE: no ack"
    await node.feeder._do(NextStep.WAIT, refused)
    assert (node.waited, refused.decided_s, decided) == ([_PAUSE_S] * 2, None, [what])


async def test_service_record_feeder_retries_a_failing_record_from_the_snapshot_before_the_record(node: Any) -> None:
    node.store._kept = 5
    await node.feeder.restart(0)
    await saved(node, 30)
    await node.feeder._do(NextStep.TRY, failing(20))
    assert (node.machine.position, node.told.said, node.waited) == (20, ["look again"], [])
    await node.feeder._do(NextStep.TRY, failing(19))
    assert node.machine.position == 10
    assert list(node.machine._skips) == []


@pytest.mark.parametrize(("timer", "more"), [("", ""), ("a b", " --timer 'a b'")])
async def test_service_record_feeder_with_on_error_stop_names_the_skip_command_at_a_failing_record(
    node: Any, timer: str, more: str
) -> None:
    await node.feeder.restart(0)
    with pytest.raises(ServiceFailedError) as raised:
        await node.feeder._do(NextStep.STOP, failing(7, timer))
    assert str(raised.value) == (
        "it raised: the record at offset 7 can't be applied. To skip this record on all nodes: "
        f"liftpy service skip sum --stream in --partition 0 --offset 7{more}"
    )


async def test_service_record_feeder_that_missed_a_skip_decision_rewinds_before_the_skipped_record(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.store._kept = 5
    await node.feeder.restart(0)
    await saved(node, 20)

    async def missed(_: object) -> None:
        raise DecisionMissedError(Unit(12))

    monkeypatch.setattr(node.feeder, "_apply_slices", missed)
    await node.feeder._apply_or_undo([])
    assert (node.store.positions(), node.machine.position) == ([10], 10)
    assert (list(node.machine._skips), node.told.said) == ([Unit(12)], ["look again"])


async def test_service_record_feeder_counts_repeated_failures_of_one_record(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.feeder.restart(0)
    raised: list[BadRecordError] = [failing(5).error, failing(5).error, failing(8).error]

    async def poisoned(_: object) -> None:
        raise raised[0]

    monkeypatch.setattr(node.feeder, "_apply_slices", poisoned)
    await node.feeder._apply_or_undo([])
    first = node.feeder._failing
    assert (first.unit, first.tries, first.scanned, first.undone) == (Unit(5), 1, 6, True)
    assert (node.feeder.problem, node.feeder.failing) == (str(raised[0]), first)
    first.undone = False
    del raised[0]
    await node.feeder._apply_or_undo([])
    assert (node.feeder._failing, first.tries, first.undone) == (first, 2, True)
    del raised[0]
    await node.feeder._apply_or_undo([])
    assert node.feeder._failing is not first
    assert (node.feeder._failing.unit, node.feeder._failing.tries, node.feeder._failing.scanned) == (Unit(8), 1, 9)


async def test_service_record_feeder_after_applying_a_record_that_failed_clears_its_failure(node: Any) -> None:
    await node.feeder.restart(0)
    node.feeder._failing = what = failing(5)
    applied(node, 5)
    assert node.feeder.failing is what
    node.machine.apply([record(5)])
    assert node.feeder.failing is None


@pytest.mark.parametrize(
    ("stop", "at", "stored", "until"),
    [(None, 7, False, 7), (5, 7, False, 5), (9, 7, False, 7), (9, 7, True, 9), (None, 7, True, None), (9, None, False, 9)],
)
async def test_service_record_feeder_stops_once_before_a_failing_record_for_a_snapshot(
    node: Any, stop: int | None, at: int | None, stored: bool, until: int | None
) -> None:
    await node.feeder.restart(0)
    node.feeder.stop_at(stop)
    node.feeder._failing = failing(at, stored=stored) if at is not None else None
    assert node.feeder._stop_before_failing() == until


async def test_service_record_feeder_stores_a_snapshot_at_the_position_of_the_failing_record(node: Any) -> None:
    await node.feeder.restart(0)
    assert not await node.feeder._keep_below_failing()
    node.feeder._failing = what = failing(7)
    applied(node, 6)
    assert not await node.feeder._keep_below_failing()
    assert (what.stored, node.store.positions()) == (False, [])
    node.machine.apply([record(6)])
    assert await node.feeder._keep_below_failing()
    assert (what.stored, node.store.positions()) == (True, [7])
    assert not await node.feeder._keep_below_failing(), "once"
    node.feeder._failing = what = failing(6)
    assert await node.feeder._keep_below_failing()
    assert (what.stored, node.store.positions()) == (True, [7]), "it is past it already: nothing to store"


async def test_service_record_feeder_scan_for_a_skip_decision_resumes_at_the_last_scanned_offset(node: Any) -> None:
    await node.feeder.restart(0)
    node.feeder._failing = what = failing(3, scanned=4)
    asked: list[tuple[Any, ...]] = []
    answers: list[Any] = [(slices(4, 1, 1), 6), ([], 9), OffsetOutOfRangeError("gone")]

    async def fetch(progress: ReadProgress) -> list[BatchSlice]:
        asked.append((progress.stream, progress.partition, progress.next_offset, progress.uid))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        progress.next_offset = answer[1]
        found: list[BatchSlice] = answer[0]
        return found

    node.feeder._reader = SimpleNamespace(fetch=fetch)
    assert await node.feeder._scan(what) is None, "there may be more"
    assert (what.scanned, node.feeder.problem) == (6, str(what.error))
    assert await node.feeder._scan(what) is False, "all that is committed was looked through"
    assert what.scanned == 9
    assert await node.feeder._scan(what) is None
    assert (what.scanned, node.waited) == (9, [_PAUSE_S])
    assert asked == [("in", 0, 4, "u1"), ("in", 0, 6, "u1"), ("in", 0, 9, "u1")]


# ---- what comes ----------------------------------------------------------------------------------------------------------------
async def test_service_record_feeder_of_the_leader_counts_read_bytes_and_wakes_the_output_writer(node: Any) -> None:
    node.role = Role.LEADER
    await node.feeder.restart(0)
    came = slices(0, 1, 1, 1)
    size_bytes = sum(piece.batch.header.size_bytes for piece in came)
    await node.feeder._apply_slices(came)
    assert node.keeper._fresh_bytes == size_bytes > 0
    assert (node.machine.position, node.told.said) == (3, ["wake"])


async def test_service_record_feeder_of_a_follower_does_not_wake_the_output_writer(node: Any) -> None:
    await node.feeder.restart(0)
    await node.feeder._apply_slices(slices(0, 1, 1, 1))
    assert (node.machine.position, node.told.said) == (3, [])


async def test_service_record_feeder_of_the_leader_with_a_full_outbox_waits_and_wakes_the_output_writer(node: Any) -> None:
    node.role = Role.LEADER
    await node.feeder.restart(0)
    node.outbox._max_records = 2
    applied(node, 1)
    assert (node.feeder._must_wait(), node.told.said) == (False, [])
    applied(node, 2)
    assert (node.feeder._must_wait(), node.told.said) == (True, ["wake"])
    node.feeder._emitter = None
    assert node.feeder._must_wait()
    node.feeder.stop_at(2)
    node.outbox._max_records = 99
    assert node.feeder._must_wait(), "the stop is reached"
    node.feeder.stop_at(3)
    assert not node.feeder._must_wait()


@pytest.mark.parametrize(
    ("meanwhile", "position"),
    [
        (None, 6),
        (lambda feeder: feeder.cut_at(0), 1),
        (lambda feeder: feeder.verify(0), 1),
        (lambda feeder: feeder.stop_at(3), 3),
    ],
)
async def test_service_record_feeder_applies_no_more_records_after_a_truncation_or_stop(
    node: Any, meanwhile: Any, position: int
) -> None:
    await node.feeder.restart(0)
    node.feeder._settings = replace(node.feeder._settings, step_s=0.001)
    node.feeder._chunk_records = 1
    node.feeder._adapt_chunk = lambda took_s: time.sleep(0.002)  # each record is a step of its own
    turns: list[int] = []

    def turn() -> None:
        turns.append(node.machine.position)
        if meanwhile is not None and len(turns) == 1:
            meanwhile(node.feeder)
        if node.machine.position < 6:
            asyncio.get_running_loop().call_soon(turn)

    asyncio.get_running_loop().call_soon(turn)
    node.feeder._progress.next_offset = 6
    await node.feeder._apply_slices(slices(0, *[1] * 6))
    assert node.machine.position == position
    if meanwhile is None:
        assert turns[:5] == [1, 2, 3, 4, 5]


async def test_service_record_feeder_waits_for_its_snapshot_turn_or_a_stop_position(node: Any) -> None:
    await node.feeder.restart(0)
    left_s, waits = [30.0], []
    node.keeper.turn_s = lambda: left_s[0]

    async def woken(timeout_s: float) -> None:
        waits.append((node.feeder._wake.is_set(), 0 < timeout_s <= 30))
        if len(waits) == 3:
            node.feeder.stop_at(3)

    node.feeder._wait_for_wake = woken
    node.feeder._wake.set()
    assert await node.feeder._is_its_turn()
    assert waits == [(False, True)] * 3, "a promotion waits: it is its turn now"
    assert await node.feeder._is_its_turn()
    node.feeder.stop_at(None)
    left_s[0] = 0.0
    assert await node.feeder._is_its_turn()
    assert len(waits) == 3
    left_s[0] = 60.0

    async def cut(timeout_s: float) -> None:
        node.feeder.cut_at(0)

    node.feeder._wait_for_wake = cut
    assert not await node.feeder._is_its_turn(), "the records are to be read anew"
    node.feeder._truncated_at = None
    node.feeder._machine.role = Role.LEADER
    assert await node.feeder._is_its_turn(), "a leader waits for nobody"


async def test_service_record_feeder_stores_a_snapshot_in_a_range_of_compacted_offsets(node: Any) -> None:
    await node.feeder.restart(0)
    await node.feeder._skip(9)
    assert node.store.positions() == []
    await node.feeder._skip(25)
    assert (node.machine.position, node.store.positions()) == (25, [20])


async def test_service_record_feeder_of_a_service_without_outputs_rewinds_after_a_truncation(tmp_path: Path) -> None:
    class Plain(Service):
        def on_start(self, snapshot: bytes | None) -> None: ...

        def on_record(self, record: Record) -> None: ...

        def take_snapshot(self) -> bytes:
            return b"s"

    node: Any = Node(FakeLog(), tmp_path)
    node.feeder._outbox, node.feeder._factory, node.keeper._outbox = None, Plain, None
    await node.feeder.restart(0)
    await saved(node, 20)
    for step in (lambda: node.feeder.cut_at(15), node.feeder.disproven, lambda: node.feeder.verify(0)):
        step()
        await node.feeder._go_back()
    assert (node.machine.position, isinstance(node.machine.outbox, Outbox)) == (0, False)


async def test_service_record_feeder_scan_for_a_skip_decision_that_is_interrupted_cancels_its_fetch(node: Any) -> None:
    await node.feeder.restart(0)
    asked: list[Any] = []

    async def fetch(progress: ReadProgress) -> list[BatchSlice]:
        asked.append(asyncio.current_task())
        await asyncio.Event().wait()
        return []

    node.feeder._reader = SimpleNamespace(fetch=fetch)
    node.feeder._wake.clear()
    scan = asyncio.ensure_future(node.feeder._scan(failing(3, scanned=4)))
    while not asked:
        await asyncio.sleep(0)
    node.feeder.stop_at(3)
    assert await scan is None
    await asyncio.wait(asked)
    assert asked[0].cancelled()
