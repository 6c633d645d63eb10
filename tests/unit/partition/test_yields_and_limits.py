"""Test turns of the event loop between pieces of long work, and the clock of periodic stores."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import events
from sidecar.metadata.member import STEP_ASIDE_TIMEOUT_S
from sidecar.partition import driver
from sidecar.partition import replica_manager as partitions_module
from sidecar.partition import scrub as scrub_module
from sidecar.partition.driver import ReplicaDriver
from sidecar.partition.housekeeping import Housekeeping
from sidecar.runtime import logs
from sidecar.runtime.logs import InfoLogRateLimit
from tests.only_in import only_in
from tests.unit.partition.shell_parts import KEY
from tests.unit.partition.test_housekeeping_rounds import FakeWorker, FakeWorkers
from tests.unit.partition.test_replica_manager import RecordingWorker, partitions
from tests.unit.partition.test_scrub import FAST, partition, scrub_of


# ---- housekeeping --------------------------------------------------------------------------------------------------------------
async def turns_of(work: Any, done: list[str]) -> list[str]:
    """What ``work`` does, with the turns that others have meanwhile."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    while not task.done():
        done.append("turn")
        await asyncio.sleep(0)
    await task
    return done


async def test_housekeeping_yields_to_the_event_loop_after_each_sixteen_partitions(tmp_path: Path) -> None:
    done: list[str] = []
    workers = FakeWorkers([FakeWorker(str(number)) for number in range(40)])
    for worker in workers:
        worker.done, worker.set_aside, worker.config = done, (), StreamConfig(retention_bytes=1)
    keeping = Housekeeping(workers, 1.0, tmp_path, pytest.fail)  # type: ignore[arg-type]
    in_turns = [*["x"] * 16, "turn", *["x"] * 16, "turn", *["x"] * 8]
    assert await turns_of(keeping._checkpoints(), done) == [{"x": "checkpoint"}.get(what, what) for what in in_turns]
    done.clear()
    assert await turns_of(keeping._retention(), done) == [{"x": "retention"}.get(what, what) for what in in_turns]
    done.clear()
    for worker in workers[:20]:
        worker.high_watermark = 5
    assert await turns_of(keeping._checkpoints(), done) == [*["checkpoint"] * 16, "turn", *["checkpoint"] * 4], (
        "who has nothing to store counts for nothing"
    )


# ---- the scrub -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("in_order", [True, False])
async def test_scrub_stores_its_position_every_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_order: bool
) -> None:
    """A restart rereads at most ten seconds of work."""
    monkeypatch.setattr(scrub_module, "PIECE_BYTES", 9000)
    now_s = [1000.0]
    monkeypatch.setattr(scrub_module, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=time.time))
    one = partition(tmp_path, "a")
    scrub, _ = scrub_of(tmp_path, one)
    segment = one.log.segments[0]
    scrub.progress.partition, scrub.progress.base_offset = "a", segment.base_offset
    scrub._store()
    seen: list[tuple[float, int]] = []
    rested: list[float] = []
    loop_of = asyncio.get_running_loop

    async def rest(seconds: float) -> None:
        rested.append(seconds)
        seen.append((now_s[0], scrub_of(tmp_path)[0].progress.position))
        now_s[0] += 6.0
        await asyncio.sleep(0)

    monkeypatch.setattr(scrub_module, "asyncio", SimpleNamespace(sleep=rest, get_running_loop=loop_of))  # of nobody else
    await scrub._scan(one, segment, 0, 1000, 5, **({"in_order": True} if in_order else {}))
    monkeypatch.undo()
    await scrub.close()
    assert [at for at, _ in seen] == [1000.0, 1006.0, 1012.0]
    stored = [position for _, position in seen]
    if in_order:
        assert stored[:2] == [0, 0]
        assert 0 < stored[2] == scrub.progress.position == segment.size_bytes
    else:
        assert (stored, scrub.progress.position) == ([0, 0, 0], 0)
    assert scrub.read_bytes >= segment.size_bytes
    assert sum(rested) == pytest.approx(scrub.read_bytes / 1000), "the rate, in bytes read a second"


async def test_scrub_pauses_in_proportion_to_its_read_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000, 2000, 3))
    monkeypatch.setattr(scrub_module, "time", SimpleNamespace(monotonic=lambda: float(next(clock)), time=time.time))
    rested: list[float] = []

    async def rest(seconds: float) -> None:
        rested.append(seconds)

    only_in(monkeypatch, scrub_module, "asyncio", sleep=rest)
    one = partition(tmp_path, "a")
    scrub, _ = scrub_of(tmp_path, one)
    await scrub._scan(one, one.log.segments[0], 0, FAST, 19)
    assert rested == [3.0 * 19], "a thread that works 5 % of the time, however fast the disk is"
    await scrub.close()


# ---- the driver ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_replica_driver_logs_its_steps_only_at_debug_level(
    level: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    caplog.set_level(level, logger="liftpy.driver")
    replica: Any = SimpleNamespace(step=lambda event, now_ns: ["effect"] if event == "event" else [])
    made = ReplicaDriver(KEY, replica, pytest.fail)
    made.execute = asked.append  # type: ignore[assignment]
    debug = driver.logger.debug
    monkeypatch.setattr(driver.logger, "debug", lambda *given: asked.append("debug") or debug(*given))
    made.feed("event")  # type: ignore[arg-type]
    assert asked == (["debug", "effect"] if level == logging.DEBUG else ["effect"])
    assert caplog.messages == (
        ["replica step partition=orders/3 event=event effects=['effect']"] if level == logging.DEBUG else []
    )
    made.feed(events.LeaseExtended(sent_ns=1))
    assert len(made.story) == 1, "a heartbeat that changes nothing is no part of the story"


def test_replica_driver_stores_fewer_past_steps_with_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    replica: Any = SimpleNamespace()
    for others in (0, 1023, 1024, 2047, 8191, 100_000):
        monkeypatch.setattr(driver, "_drivers", Count(others))
        lengths.append(ReplicaDriver(KEY, replica, pytest.fail).story.maxlen)
    assert lengths == [64, 64, 63, 32, 8, 8]


class Count:
    """So many drivers, and those that are added."""

    def __init__(self, count: int) -> None:
        self.count = count

    def add(self, _: object) -> None:
        self.count += 1

    def __len__(self) -> int:
        return self.count


# ---- the end of a node's partitions --------------------------------------------------------------------------------------------
async def test_replica_manager_stop_cancels_pending_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    node = partitions()
    seen: list[PartitionKey] = []
    keys = [PartitionKey("orders", "u1", number) for number in range(3)]
    loop = asyncio.get_running_loop()
    handles = [loop.call_later(3600, seen.append, key) for key in keys]
    closed: list[str] = []
    node._node.deletions.close = lambda: closed.append("deletions")
    node._retries.update(zip(keys, handles, strict=True))
    assert await node.stop()
    assert [handle.cancelled() for handle in handles] == [True, True, True]
    assert closed == ["deletions"], "who asks whether data may go is not waited for"
    node._changed.add(keys)
    node._leases.add([RecordingWorker(KEY)])
    assert (len(node._changed), len(node._leases), seen) == (0, 0, [])


# ---- stepping aside ------------------------------------------------------------------------------------------------------------
async def test_resign_request_waits_no_longer_than_the_timeout_of_its_requester(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    one = RecordingWorker(KEY, leads=True)
    node = partitions(one)

    async def settled(timeout_s: float) -> None:
        waits.append(timeout_s)

    async def rest(seconds: float) -> None:
        waits.append(seconds)

    node._node.links.wait_until_processed = settled
    node._aside[KEY] = None
    only_in(monkeypatch, partitions_module, "asyncio", sleep=rest)
    await node._step_aside(one, lambda: waits.append("done"))
    aside_s, done, back_s = waits
    assert done == "done"
    assert one.asked == ["leave", "back"]
    assert 0.1 <= aside_s < 0.75 * STEP_ASIDE_TIMEOUT_S, "a slow disk's flush has its time, and the answer is in time"
    assert STEP_ASIDE_TIMEOUT_S <= aside_s + back_s <= 1.5 * ReplicationConfig().session_s


# ---- what is said --------------------------------------------------------------------------------------------------------------
def test_log_limiter_uses_less_than_a_hundredth_of_a_core() -> None:
    line_s = 20e-6
    assert 0.001 <= logs.MAX_LINES_PER_S * line_s <= 0.01


def test_log_limiter_writes_lines_again_in_the_next_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [7.0]
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    said: list[str] = []
    logger: Any = SimpleNamespace(info=lambda text, *given: said.append(text % given))
    made = InfoLogRateLimit()
    for number in range(logs.MAX_LINES_PER_S + 2):
        made.info(logger, "%d", number)
    assert said == [str(number) for number in range(logs.MAX_LINES_PER_S)]
    said.clear()
    now_s[0] = 7.999
    made.info(logger, "late")
    assert (said, made.left_out_count) == ([], 3)
    now_s[0] = 8.0
    made.info(logger, "next")
    assert said == ["log lines about partitions suppressed count=3", "next"]
    now_s[0] = 9.0
    made.info(logger, "last")
    assert (said[2:], made.left_out_count) == (["last"], 3)
