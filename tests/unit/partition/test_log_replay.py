"""Test that a log is replayed in slices, and that the replica gets progress and result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from liftpy.config import NS_PER_S, StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish.log_state import REPLAY_BYTES, LogState
from liftpy.core.replication import events
from liftpy.core.wire.batch import parse_batch
from liftpy.errors import StorageError
from sidecar.partition.recovery import LogReplay
from tests.batches import build_batch
from tests.until import until


class Bench:
    def __init__(self, batches: int = 5) -> None:
        self.log, _ = Log.open(MemoryStorage(), StreamConfig())
        for offset in range(batches):
            self.log.append(
                build_batch(
                    [b"v" * REPLAY_BYTES], headers=[[("Nats-Msg-Id", b"m%d" % offset)]], base_offset=offset, leader_epoch=1,
                    timestamp_ns=1,
                )
            )  # fmt: skip
        self.log_state = LogState(self.log, NS_PER_S, 1 << 20, lambda: 0)
        self.fed: list[events.Event] = []
        self.failed: list[StorageError] = []
        self.done: list[str] = []
        self.replay = self.replay_of(self.log_state)

    def replay_of(self, log_state: LogState) -> LogReplay:
        partition: Any = SimpleNamespace(
            log_state=log_state, feed=self.fed.append, log_failed=self.failed.append, mark_changed=lambda: None
        )
        return LogReplay(partition)

    def says(self, what: str) -> Callable[[], None]:
        return lambda: self.done.append(what)


async def test_log_replay_reports_its_progress_in_slices_and_its_completion() -> None:
    bench = Bench()
    bench.replay.run(bench.says("done"))
    assert bench.done == []
    assert bench.log_state.end_offset == 1, "one slice, then it is others' turn"
    await until(lambda: bench.done)
    assert bench.done == ["done"]
    assert bench.fed == [events.ReplayProgressed(end_offset=offset) for offset in range(1, 5)]
    assert len(bench.log_state.ids) == 5
    bench.replay.run(bench.says("at once"))
    assert bench.done == ["done", "at once"]


async def test_log_replay_that_is_restarted_reports_only_the_completion_of_the_last_run() -> None:
    bench = Bench()
    bench.replay.run(bench.says("first"))
    bench.replay.run(bench.says("second"))
    await until(lambda: bench.done)
    assert bench.done == ["second"]
    bench = Bench()
    bench.replay.run(bench.says("gone"))
    bench.replay.forget()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (bench.done, bench.log_state.end_offset) == ([], 1)
    bench.replay.forget()
    bench.replay.run(bench.says("back"))
    await until(lambda: bench.done)
    assert bench.done == ["back"]


async def test_log_replay_of_an_unreadable_log_reports_a_failure() -> None:
    bench = Bench()
    bench.replay.run(bench.says("done"))
    bench.log.close(clean=False)
    await until(lambda: bench.failed)
    assert bench.done == []
    assert isinstance(bench.failed[0], StorageError)


async def test_log_replay_reads_backward_until_the_subject_index_is_complete() -> None:
    bench = Bench(0)
    for offset in range(40):
        bench.log.append(
            build_batch([b"v" * 40_000], subjects=[f"s.{offset}"], base_offset=offset, leader_epoch=1, timestamp_ns=1)
        )
    for fails in (False, True):
        log_state = LogState(bench.log, 0, 1 << 20, lambda: 0, subject="s.>", partition_subject_index_bytes=1 << 20)
        log_state.first_read_bytes = 0
        replay = bench.replay_of(log_state)
        while not log_state.replay():
            pass
        assert log_state.last_of("s.0") is None
        if fails:
            bench.log.close(clean=False)
            await until(lambda: bench.failed)
            assert isinstance(bench.failed[0], StorageError)
        else:
            await until(lambda log_state=log_state: not log_state.subjects.lacks)
            assert log_state.last_of("s.0") == 0
        replay.close()
    gone = LogState(bench.log, 0, 1 << 20, lambda: 0, subject="s.>", partition_subject_index_bytes=1 << 20)
    replay = bench.replay_of(gone)
    replay.close()
    gone.on_lacking()
    gone.on_lacking()
    assert replay._read_timer is None


async def test_log_replay_of_a_follower_continues_in_the_background_with_fetched_batches() -> None:
    bench = Bench(0)
    batches = [
        build_batch(
            [b"v" * 300_000], headers=[[("Nats-Msg-Id", b"m%d" % n)]], base_offset=n, leader_epoch=1, timestamp_ns=n + 1
        )
        for n in range(9)
    ]
    for batch in batches[:7]:
        bench.log.append(batch)
    log_state = LogState(bench.log, 1 << 40, 1 << 20, lambda: 0)
    replay = bench.replay_of(log_state)
    for batch in batches[7:]:
        bench.log.append(batch)
        log_state.fetched([parse_batch(batch)])
    assert log_state.lacks
    await until(lambda: not log_state.lacks)
    assert (log_state.end_offset, log_state.is_complete, bench.fed) == (9, True, [])
    late = build_batch([b"v"], headers=[[("Nats-Msg-Id", b"late")]], base_offset=9, leader_epoch=1, timestamp_ns=99)
    bench.log.append(late)
    log_state.fetched([parse_batch(late)])
    assert (log_state.is_complete, log_state.lacks) == (True, False)
    assert [log_state.ids.find(b"m%d" % n, 99) is not None for n in range(9)] == [True] * 9
    assert log_state.ids.find(b"late", 99) is not None
    replay.close()


async def test_log_replay_background_read_stops_at_the_first_failure() -> None:
    bench = Bench()
    reads: list[int] = []

    def read_missing_records() -> bool:
        reads.append(1)
        raise StorageError("the disk is gone")

    bench.log_state.read_missing_records = read_missing_records  # type: ignore[method-assign]
    bench.log_state.on_lacking()
    await until(lambda: bench.failed)
    assert bench.replay._read_timer is None, "the replica has been told, and the node comes back"
    assert len(reads) == len(bench.failed) == 1
