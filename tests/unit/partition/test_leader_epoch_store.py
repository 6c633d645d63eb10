"""Test the store of promised leader epochs: concurrent ones share a flush, and each is reported after its flush."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter
from collections.abc import Callable

from liftpy.core.log.epoch_promises import PromiseJournal
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import StorageError
from sidecar.partition.promises import OnStored, Promises
from tests.until import until


class Bench:
    def __init__(self, pool: concurrent.futures.Executor) -> None:
        self.storage = MemoryStorage()
        self.counters: Counter[str] = Counter()
        self.broken: list[Exception] = []
        self.promises = Promises(PromiseJournal(self.storage), pool, self.counters, self.broken.append)
        self.may_flush = threading.Event()
        self.may_flush.set()
        self.error: Exception | None = None
        """What the next flush meets."""
        self.storage.fault = self._fault
        self.told: list[tuple[str, StorageError | None]] = []

    def _fault(self, what: str) -> None:
        if what == "sync":
            assert self.may_flush.wait(10)
            if self.error is not None:
                raise self.error

    def tells(self, key: str) -> OnStored:
        return lambda error: self.told.append((key, error))

    def on_disk(self) -> Callable[[str], int]:
        return PromiseJournal(self.storage.crash()).epoch_of


async def test_leader_epoch_store_writes_epochs_requested_during_a_flush_together(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.may_flush.clear()
    for number in range(50):
        bench.promises.store(f"a/{number}", 3, bench.tells("first"))
    await until(lambda: bench.counters["promise_flushes"] == 1, "it has begun")
    for number in range(50):
        bench.promises.store(f"b/{number}", 4, bench.tells("second"))
    bench.promises.store("b/7", 5, bench.tells("the last one counts"))
    assert bench.told == [], "nobody is told, and the loop does not wait"
    assert bench.on_disk()("a/0") == 0
    bench.may_flush.set()
    await until(lambda: len(bench.told) == 100, "all are told")
    assert bench.counters == {"promise_flushes": 2, "leader_epoch_promises": 100}
    assert bench.told.count(("the last one counts", None)) == 1
    assert [bench.on_disk()(key) for key in ("a/0", "b/0", "b/7")] == [3, 4, 5]
    await bench.promises.close()


async def test_leader_epoch_store_write_error_is_reported_to_all_waiters(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.error = StorageError("simulated")
    bench.promises.store("a/0", 3, bench.tells("a"))
    bench.promises.store("a/1", 3, bench.tells("b"))
    await until(lambda: len(bench.told) == 2, "told")
    bench.promises.store("a/2", 3, bench.tells("c"))
    await until(lambda: len(bench.told) == 3, "told")
    assert all(isinstance(error, StorageError) for _, error in bench.told)
    assert bench.broken == []
    await bench.promises.close()


async def test_leader_epoch_store_of_a_deleted_partition_returns_zero(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.promises.store("s-u1/0", 5, bench.tells("first"))
    await until(lambda: bench.told)
    assert bench.promises.epoch_of("s-u1/0") == 5
    bench.promises.store("s-u1/0", 6, bench.tells("deleted"))
    bench.promises.forget("s-u1/0")
    assert bench.promises.epoch_of("s-u1/0") == 0
    bench.promises.store("t-u2/0", 3, bench.tells("other"))
    await until(lambda: len(bench.told) == 2)
    assert (bench.promises.epoch_of("s-u1/0"), bench.promises.epoch_of("t-u2/0")) == (0, 3)
    await bench.promises.close()


async def test_leader_epoch_store_exception_in_the_journal_stops_the_node(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.error = ZeroDivisionError("a bug")
    bench.promises.store("a/0", 3, bench.tells("a"))
    await until(lambda: bench.broken)
    assert (bench.broken, bench.told) == ([bench.error], [])
    bench.error = None
    await bench.promises.close()


async def test_leader_epoch_store_close_waits_for_the_running_write(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.may_flush.clear()
    bench.promises.store("a/0", 3, bench.tells("a"))
    await until(lambda: bench.counters["promise_flushes"] == 1)
    closing = asyncio.ensure_future(bench.promises.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    bench.may_flush.set()
    await closing
    assert (bench.on_disk()("a/0"), bench.told) == (3, [])


async def test_leader_epoch_store_close_drops_writes_that_have_not_started(pool: concurrent.futures.Executor) -> None:
    bench = Bench(pool)
    bench.promises.store("a/0", 3, bench.tells("a"))
    await bench.promises.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (bench.on_disk()("a/0"), bench.told) == (0, [])
