"""Test that derived state is stored behind a checkpoint of the high watermark, and loaded at a start [A3]."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import NS_PER_S, FlushMode, FlushPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish.dedup_window import StoredId
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.state_file import StateCapture, state_names
from liftpy.core.publish.state_writer import GIVE_UP_NS
from liftpy.core.wire.batch import parse_batch
from liftpy.errors import NoSpaceError, StorageError
from sidecar.partition.flushing import StateCheckpoints, StateFileMatch, load_state_file, read_state_file
from sidecar.runtime.timers import Timers
from tests.batches import build_batch
from tests.unit.partition import test_state_file_writes
from tests.unit.partition.shell_parts import FlushedPartition, flusher_of
from tests.until import until

KEY = PartitionKey("s", "u1", 0)


class Bench:
    def __init__(self, pool: concurrent.futures.Executor, storage: MemoryStorage) -> None:
        self.log = Log.open(storage, StreamConfig())[0]
        self.log_state = LogState(self.log, 120 * NS_PER_S, 1 << 20, lambda: 0)
        self.flusher = flusher_of(FlushedPartition(self.log, self._failed), pool, Timers())
        config = ReplicationConfig(state_checkpoint_bytes=4096)
        partition: Any = SimpleNamespace(key=KEY, log=self.log, log_state=self.log_state, mark_changed=lambda: None)
        self.states = StateCheckpoints(partition, config, self.flusher, pool)

    def _failed(self, error: Exception) -> None:
        raise error

    def append(self, message_id: bytes, size_bytes: int = 5000) -> None:
        batch = build_batch(
            [b"v" * size_bytes], headers=[[("Nats-Msg-Id", message_id)]], base_offset=self.log.log_end_offset, leader_epoch=1,
            timestamp_ns=1,
        )  # fmt: skip
        self.log.append(batch)
        self.log_state.fetched([parse_batch(batch)])
        self.log.flush()
        self.log.raise_high_watermark(self.log.newest_offset)
        self.log_state.committed(self.log.newest_offset)


@pytest.fixture
async def bench(pool: concurrent.futures.Executor) -> AsyncIterator[Bench]:
    made = Bench(pool, MemoryStorage())
    yield made
    await made.flusher.close()


async def test_state_file_is_written_after_the_high_watermark_once_the_log_has_grown(bench: Bench) -> None:
    order: list[str] = []
    storage: Any = bench.log.storage
    real = storage.replace

    def replace(name: str, data: bytes) -> None:
        order.append(name)
        real(name, data)

    storage.replace = replace
    bench.append(b"a", 10)
    bench.states.checkpoint()
    await until(lambda: order and not bench.flusher.under_way_s)
    assert "state-00000000000000000001" not in order, "that is not worth a file"
    bench.append(b"b")
    bench.states.checkpoint()
    bench.states.checkpoint()
    await until(lambda: bench.states.writer.written and bench.states._writing is None)
    assert order[-1] == "state-00000000000000000002"
    assert "high-watermark" in order[1:-1]
    bench.append(b"c")
    bench.append(b"d")
    bench.log.close(clean=False)
    bench.states._unwritten = bench.states.writer.begin()
    bench.states._write()
    assert bench.states._writing is None, "a log that has failed is left alone"


async def test_state_of_records_deleted_on_a_full_disk_is_stored_in_the_space_that_they_leave(bench: Bench) -> None:
    """[A16] The next process knows their message ids."""
    log, storage = bench.log, bench.log.storage
    assert isinstance(storage, MemoryStorage)
    for name in (b"a", b"b", b"c"):
        bench.append(name)
        log.roll()
    log.flush()
    log.checkpoint()
    storage.capacity_bytes = storage.used_bytes()
    with pytest.raises(NoSpaceError):
        bench.append(b"d")
    log.config = StreamConfig(retention_records=1)
    assert log.apply_retention(0)
    assert log.is_full
    bench.states.store_after_deletion()
    await until(lambda: bench.states.writer.written and not bench.states.writer.is_wanted)
    bench.states.store_after_deletion()
    assert not bench.states.writer.is_wanted, "the file covers the deleted records"
    again = Log.open(storage.crash(), StreamConfig())[0]
    state = load_state_file(again, KEY).state
    assert (again.log_start_offset, state is not None and state.end_offset) == (2, 3)


async def test_state_of_unflushed_records_is_stored_after_the_flush_before_the_close(bench: Bench) -> None:
    """[A16] The state of a log with the flush policy ``none`` waits for the flush that a full disk has prevented."""
    log, storage = bench.log, bench.log.storage
    assert isinstance(storage, MemoryStorage)
    log.config = StreamConfig(flush=FlushPolicy(FlushMode.NONE))
    bench.append(b"a")
    log.roll()
    log.flush()
    log.checkpoint()
    flush, log.flush = log.flush, lambda: 0  # type: ignore[method-assign]
    bench.append(b"b")
    log.flush = flush  # type: ignore[method-assign]
    storage.capacity_bytes = storage.used_bytes()
    with pytest.raises(NoSpaceError):
        bench.append(b"c")
    log.asked_start = 1
    assert log.apply_retention(0)
    assert bench.states.writer.want(log.log_start_offset)
    stored: list[bool] = []
    bench.states.checkpoint(lambda: stored.append(True))
    await until(lambda: stored)
    assert bench.states.writer.is_wanted
    assert log.flush_before_close()
    store_state = await bench.states.close()
    log.checkpoint()
    store_state()
    log.close(clean=False)
    again = Log.open(storage.crash(), StreamConfig())[0]
    state = load_state_file(again, KEY).state
    assert (again.log_start_offset, state is not None and state.end_offset) == (1, 2)


async def test_records_are_deleted_without_a_state_file_after_a_time_and_a_warning(
    pool: concurrent.futures.Executor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0]
    monkeypatch.setattr("sidecar.runtime.clock.now_ns", lambda: now[0])
    made = Bench(pool, MemoryStorage())
    made.append(b"a")
    assert not made.states.may_drop(1)
    now[0] = GIVE_UP_NS
    assert made.states.may_drop(1)
    assert "records deleted without a stored state partition=s/0 below=1" in caplog.text
    await made.flusher.close()


async def test_checkpoint_tells_its_caller_only_when_the_disk_has_stored_it(pool: concurrent.futures.Executor) -> None:
    storage = MemoryStorage()
    made, stored = Bench(pool, storage), list[int]()
    made.append(b"a")
    for capacity_bytes in (0, 1 << 20):
        storage.capacity_bytes = capacity_bytes
        assert made.states.checkpoint(lambda: stored.append(storage.capacity_bytes))
        await until(lambda: not made.flusher.under_way_s)
    assert stored == [1 << 20]
    await made.flusher.close()


async def test_state_file_writes_run_one_at_a_time(bench: Bench) -> None:
    states, go_on = bench.states, threading.Event()
    real = states.writer.write

    def write(unwritten: StateCapture) -> None:
        go_on.wait(60)
        real(unwritten)

    states.writer.write = write  # type: ignore[method-assign]
    try:
        bench.append(b"a")
        states.checkpoint()
        await until(lambda: states._writing is not None and not bench.flusher.under_way_s)
        bench.append(b"b")
        states.checkpoint()
        assert states._unwritten is None, "the one before is not stored yet"
        closing = asyncio.ensure_future(states.close())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
    finally:
        go_on.set()
    await closing
    assert (states.writer.written, states._writing) == (1, None)


async def test_state_file_written_at_a_clean_stop_is_loaded_at_the_next_start(
    bench: Bench, pool: concurrent.futures.Executor
) -> None:
    storage: Any = bench.log.storage
    bench.append(b"a", 300_000)
    bench.states.checkpoint()
    bench.append(b"b", 300_000)
    await until(lambda: bench.states._unwritten is None)
    store = await bench.states.close()
    assert bench.states._writing is None or bench.states._writing.done()
    await bench.flusher.close()
    bench.log.close()
    store()
    assert state_names(storage) == ["state-00000000000000000002"]
    storage.files["state-00000000000000000009"] = storage.files["high-watermark"]
    again = Bench(pool, storage)
    found = load_state_file(again.log, KEY)
    assert found.state is not None
    assert (found.left_out, again.log_state.restore(found.state), again.log_state.is_complete) == (1, True, True)
    assert again.log_state.ids.find(b"a", 0) == StoredId(0, 0)
    made = read_state_file(found, again.log, "s", StreamConfig(), ReplicationConfig())
    assert made is not None
    assert (made.ids.find(b"b", 0), made.is_complete) == (StoredId(1, 1), True)
    assert read_state_file(found, again.log, "s", StreamConfig(dedup_window_s=500), ReplicationConfig()) is None, (
        "it knows too little"
    )
    assert read_state_file(StateFileMatch(), again.log, "s", StreamConfig(), ReplicationConfig()) is None
    assert again.log_state.replayed_bytes == 0
    assert load_state_file(again.log, PartitionKey("s", "u2", 0)) == StateFileMatch(None, 1)
    assert StateFileMatch() == (None, 0)
    (await again.states.close())()
    assert state_names(storage) == []


async def test_state_file_is_not_written_when_the_high_watermark_could_not_be_stored(
    pool: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = test_state_file_writes.Bench(pool, test_state_file_writes.MemoryStorage())
    bench.append(b"1")
    stored = bench.log.checkpoint

    def fails() -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(bench.log, "checkpoint", fails)
    bench.states.checkpoint()
    await until(lambda: not bench.flusher.under_way_s)
    assert (bench.states._writing, bench.states.writer.written) == (None, 0)
    monkeypatch.setattr(bench.log, "checkpoint", stored)
    bench.states.checkpoint()
    await until(lambda: bench.states.writer.written == 1)
    await bench.flusher.close()
