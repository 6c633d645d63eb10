"""Test the parts of a partition when it closes or fails: what they await, report and release."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME
from sidecar.disk.data_folder import DataDirectory
from sidecar.disk.files import DirectoryStorage
from sidecar.partition import leadership
from sidecar.partition.promises import Promises
from sidecar.partition.recovery import RecoveredLogs
from tests.open_files import open_files
from tests.unit.log.small_logs import add
from tests.unit.partition.shell_parts import KEY
from tests.unit.partition.test_replica_manager import RecordingWorker, partitions
from tests.unit.partition.test_scrub import flip, partition, scrub_of
from tests.until import until


# ---- promises ----------------------------------------------------------------------------------------------------------------
class Journal:
    """Takes promises when the test lets it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.error: Exception | None = None

    def store(self, promises: Any) -> None:
        self.calls.append(dict(promises))
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.calls.append("closed")

    def forget(self, key: str) -> None:
        self.calls.append(f"forgotten {key}")


class Pool:
    """Runs what is submitted when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[concurrent.futures.Future[Any], Any]] = []

    def submit(self, work: Any, *args: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.work.append((future, lambda: work(*args)))
        return future

    def run(self) -> None:
        future, work = self.work.pop(0)
        assert future.set_running_or_notify_cancel()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)


def a_promises(journal: Journal, pool: Pool) -> tuple[Promises, list[Exception]]:
    fatal: list[Exception] = []
    return Promises(journal, pool, Counter(), fatal.append), fatal  # type: ignore[arg-type]


async def test_leader_epoch_store_close_waits_for_the_running_write_and_closes_its_journal() -> None:
    journal, pool = Journal(), Pool()
    promises, _ = a_promises(journal, pool)
    told: list[Any] = []
    promises.store("a/0", 3, told.append)
    await until(lambda: pool.work)
    future, work = pool.work.pop()
    future.set_running_or_notify_cancel()
    closing = asyncio.ensure_future(promises.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert (closing.done(), journal.calls) == (False, [])
    future.set_result(work())
    await closing
    assert (journal.calls, told) == ([{"a/0": 3}, "closed"], [])


async def test_leader_epoch_store_close_cancels_writes_that_have_not_started() -> None:
    journal, pool = Journal(), Pool()
    promises, _ = a_promises(journal, pool)
    promises.store("a/0", 3, lambda _: None)
    await until(lambda: pool.work)
    await promises.close()
    assert (journal.calls, pool.work[0][0].cancelled()) == (["closed"], True)


async def test_leader_epoch_store_exception_in_the_journal_stops_the_node() -> None:
    journal, pool = Journal(), Pool()
    promises, fatal = a_promises(journal, pool)
    journal.error = ZeroDivisionError("a bug")
    told: list[Any] = []
    promises.store("a/0", 3, told.append)
    promises.store("a/1", 3, told.append)
    promises.forget("a/1")
    await until(lambda: pool.work)
    pool.run()
    await until(lambda: fatal)
    assert (fatal, told) == ([journal.error], [])
    assert journal.calls == ["forgotten a/1", {"a/0": 3}]
    await promises.close()


# ---- recovered logs ------------------------------------------------------------------------------------------------------------
async def test_log_recovery_closes_recovered_logs_that_no_partition_takes(
    tmp_path: Path, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    folder = DataDirectory(tmp_path)
    for name in ("b-1/0", "a-1/0", "a-1/1"):
        storage = DirectoryStorage(folder.path / "streams" / name)
        log, _ = Log.open(storage, StreamConfig())
        add(log)
        log.close()
        if name != "a-1/1":
            storage.replace(FLUSH_FAILED_NAME, b"once")
    killed = RecoveredLogs()
    await killed.run(folder, pool, clean_stop=True)
    killed.close()
    logs = RecoveredLogs()
    await logs.run(folder, pool, clean_stop=True)
    assert (logs.suspect, logs.damaged) == (["a-1/0", "b-1/0"], []), "the killed process had not registered"
    assert logs.names == {"a-1/0", "a-1/1", "b-1/0"}
    streams = folder.path / "streams"
    assert len(open_files(streams)) == 3
    taken = logs.take(streams / "a-1" / "0")
    assert taken is not None
    await logs.forget_failed_flushes(folder, pool)
    assert not list(streams.glob(f"*/*/{FLUSH_FAILED_NAME}"))
    logs.close()
    assert open_files(streams) == [str(streams / "a-1" / "0" / f"{0:020d}.log")]
    for segment in taken.segments:
        segment.file.close()
    folder.close()


# ---- the scrub -----------------------------------------------------------------------------------------------------------------
async def test_scrub_closes_its_file_after_success_damage_and_errors(tmp_path: Path) -> None:
    for damaged in (False, True):
        folder = tmp_path / str(damaged)
        one = partition(folder, "a")
        if damaged:
            flip(folder, "a", 0)
        before = open_files(folder)
        scrub, counters = scrub_of(folder, one)
        await scrub._scan(one, one.log.segments[0], 0, 1 << 30, 0)
        assert open_files(folder) == before
        assert counters == ({"scrub_damage": 1} if damaged else {})
        assert (len(one.told), scrub.progress.findings) == (damaged, damaged)
        await scrub.close()
        one.log.close(clean=False)


# ---- stepping aside ------------------------------------------------------------------------------------------------------------
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
    for all_lost, heir, asked in (
        (False, True, ["hands over"]),
        (False, False, ["hands over", "back"]),
        (True, True, ["back"]),
    ):
        one = RecordingWorker(KEY, leads=True)
        links = SimpleNamespace(are_up=False, ingest=SimpleNamespace(all_have_lost_it=all_lost))
        node = partitions(one, links=links)
        one.transfer_after_lost_publishes = lambda one=one, heir=heir: (one.asked.append("hands over"), heir)[1]  # type: ignore[attr-defined]
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
        ingest = SimpleNamespace(all_have_lost_it=True)

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


async def test_leader_epoch_store_close_drops_a_store_requested_in_the_same_turn() -> None:
    journal, pool = Journal(), Pool()
    promises, _ = a_promises(journal, pool)
    promises.store("a/0", 3, lambda _: None)
    await promises.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (pool.work, journal.calls) == ([], ["closed"])
