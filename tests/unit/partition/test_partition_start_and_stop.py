"""Test what the replica manager and the partition workers pass on to replicas and logs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.publish.state_file import State
from liftpy.core.replication.events import DataPathChanged, StopRequested
from liftpy.errors import StorageError
from sidecar.partition import replica_manager as partitions_module
from sidecar.partition import worker as worker_module
from sidecar.partition.flushing import StateFileMatch
from sidecar.partition.worker import PartitionWorker

KEY = PartitionKey("orders", "u1", 3)
OTHER = PartitionKey("orders", "u1", 4)


class Held:
    """A worker that keeps what it is fed."""

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.leads = True
        self.events: list[Any] = []
        self.feed = self.events.append

    async def stop(self, *, delete: bool) -> bool:
        return True


def partitions(*workers: Held) -> Any:
    settings = SimpleNamespace(node_id="n1", replication=ReplicationConfig())
    deletions = SimpleNamespace(close=lambda: None)
    made: Any = partitions_module.Partitions(SimpleNamespace(settings=settings, fatal=pytest.fail, deletions=deletions))  # type: ignore[arg-type]
    for one in workers:
        made._workers[one.key] = made._by_name[one.key.stream, one.key.partition] = one
        made._leading[one.key] = one
    return made


# ---- the partitions of a node --------------------------------------------------------------------------------------------------
async def test_replica_manager_reports_a_data_path_change_to_each_replica() -> None:
    """A follower must not accuse a leader when its own data path is down."""
    one, other = Held(KEY), Held(OTHER)
    node = partitions(one, other)
    for is_up in (False, True):
        node.data_path_changed(is_up)
    assert one.events == other.events == [DataPathChanged(is_up=False), DataPathChanged(is_up=True)]


async def test_replica_manager_extends_no_lease_of_a_closed_partition() -> None:
    one, other = Held(KEY), Held(OTHER)
    node = partitions(one, other)
    await node._end(one)
    assert list(node._leading) == [OTHER]
    assert node.services_of("orders", 3) is None


async def test_replica_manager_stop_waits_for_cancelled_openings() -> None:
    node = partitions()
    closed: list[str] = []

    async def opening() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            closed.append("the log that was being opened")

    node._busy[KEY] = asyncio.create_task(opening())
    await asyncio.sleep(0)
    assert await node.stop()
    assert closed == ["the log that was being opened"]


# ---- a worker ------------------------------------------------------------------------------------------------------------------
def test_partition_flush_failure_fails_the_replica() -> None:
    failed: list[Exception] = []
    broken: Any = SimpleNamespace(executor=SimpleNamespace(log_failed=failed.append))
    error = StorageError("the disk fails")
    PartitionWorker._flush_failed(broken, error)
    assert failed == [error]


@pytest.mark.parametrize("failed", [False, True])
async def test_partition_with_failed_storage_closes_its_log_as_unclean(failed: bool) -> None:
    told: list[Any] = []

    def part(name: str) -> Any:
        return SimpleNamespace(**{
            what: lambda *_, what=what: told.append(f"{name} {what}") for what in ("stop", "drop", "close", "forget", "join")
        })  # fmt: skip

    async def flushed() -> None:
        told.append("flusher close")
        assert ended.has_ended

    async def settled() -> str:
        told.append("states close")
        return "store the state"

    def close(healthy: bool, delete: bool, store_state: str) -> bool:
        told.append(("log", healthy, delete, store_state))
        return healthy

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ended: Any = SimpleNamespace(
            key=KEY, feed=told.append, _driver=part("driver"), _traces=None, ingest=part("ingest"), replication=part("replication"),
            standby=part("standby"), acks=part("acks"), reads=part("reads"), fetches=part("fetches"), services=part("services"),
            executor=SimpleNamespace(storage_failed=failed, close=lambda: told.append("executor close")),
            flusher=SimpleNamespace(close=flushed), states=SimpleNamespace(close=settled), _close=close,
            derived=part("derived"), _node=SimpleNamespace(pool=pool, notifications=part("notifications")),
        )  # fmt: skip
        assert await PartitionWorker.stop(ended) is (not failed)
    assert told[0] == StopRequested()
    end = ["flusher close", "states close", ("log", not failed, False, "store the state")]
    assert told[-3:] == end, "what is under way is flushed before the log is closed"
    wanted = {"driver stop", "ingest stop", "replication stop", "acks drop", "reads close", "fetches close", "services close",
              "standby stop", "executor close", "notifications forget", "derived join"}  # fmt: skip
    assert wanted <= set(told[1:-3])


@pytest.mark.parametrize("clean_stop", [False, True])
async def test_partition_log_is_opened_as_clean_only_after_a_clean_stop_of_the_node(
    clean_stop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def opened(where: Any, config: StreamConfig, **more: Any) -> Any:
        given.update(more)
        raise StorageError("seen enough")

    monkeypatch.setattr(worker_module.Log, "open", opened)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        node: Any = SimpleNamespace(
            identity=SimpleNamespace(flushes_lazily=lambda: None, previous=SimpleNamespace(clean_stop=clean_stop)),
            pool=pool, folder=SimpleNamespace(partition_path=lambda key: Path("there"), partition_storage=lambda key: "made"),
            recovered=SimpleNamespace(take=lambda path: None), promises=SimpleNamespace(epoch_of=lambda key: 0),
        )  # fmt: skip
        with pytest.raises(StorageError, match="seen enough"):
            await worker_module.open_worker(node, KEY, "shop", StreamConfig())
    assert given["clean"] is clean_stop


async def test_partition_state_file_is_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding a large state takes a second."""
    told: list[Any] = []
    log: Any = SimpleNamespace(log_start_offset=0, newest_offset=8, high_watermark=8)
    state, made = State("s-u/0", 9, 1, {}), object()
    config = StreamConfig()

    def restored(found: StateFileMatch, *of: Any) -> Any:
        told.append((threading.get_ident() != loop_thread, found, of))
        return made if found.left_out else None

    class Worker:
        def __init__(self, *given: Any) -> None:
            told.append(given[-1])

        def begin(self) -> None:
            told.append("begins")

    loop_thread, opened = threading.get_ident(), SimpleNamespace(cut_bytes=0, damage=(), set_aside=())
    monkeypatch.setattr(worker_module.Log, "open", lambda *_, **more: (log, opened))
    monkeypatch.setattr(worker_module, "read_state_file", restored)
    monkeypatch.setattr(worker_module, "PartitionWorker", Worker)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        node: Any = SimpleNamespace(
            identity=SimpleNamespace(previous=SimpleNamespace(clean_stop=True)), pool=pool, counters=Counter(),
            instruments=Instruments(),
            folder=SimpleNamespace(partition_path=lambda key: Path("there"), partition_storage=lambda key: "made", mark_held=str),
            recovered=SimpleNamespace(take=lambda path: None), promises=SimpleNamespace(epoch_of=lambda key: 0),
            settings=SimpleNamespace(replication="the bounds"),
        )  # fmt: skip
        for left_out in (1, 0):
            found = StateFileMatch(state, left_out)
            monkeypatch.setattr(worker_module, "found_state", lambda *_, found=found: found)
            await worker_module.open_worker(node, KEY, "shop", config)
    of = (log, "shop.3", config, "the bounds")
    assert told == [
        (True, StateFileMatch(state, 1), of), made, "begins",
        (True, StateFileMatch(state, 0), of), None, "begins",
    ]  # fmt: skip
    assert node.counters == {"dedup_state_discarded": 2, "dedup_state_restored": 1}


# ---- the settings of the stream ---------------------------------------------------------------------------------------------
