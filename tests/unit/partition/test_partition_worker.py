"""Test one partition of a node with its log on a disk in memory: failed appends, full disks, fetched batches and the end."""

from __future__ import annotations

import concurrent.futures
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.base.instruments import Instruments
from liftpy.core.base.partition import PartitionState
from liftpy.core.log.compaction_point import Horizon
from liftpy.core.log.log import Log
from liftpy.core.replication import effects as do
from liftpy.core.wire.batch import split_batches
from liftpy.errors import NoSpaceError, StorageError
from sidecar.disk.data_folder import LAZY_FLUSH, DataDirectory
from sidecar.partition.recovery import RecoveredLogs
from sidecar.partition.worker import PartitionWorker, count_isr, open_worker
from sidecar.status.metric_names import INCIDENTS
from tests.batches import build_batch
from tests.conformance.two_workers import KEY, TwoWorkers, WorkerNode

FAILURES = pytest.mark.parametrize("error", [StorageError("I/O error"), NoSpaceError("full")])


@pytest.fixture
async def pair() -> AsyncIterator[TwoWorkers]:
    """Two nodes. Node n1 leads, and both have one record."""
    async with TwoWorkers() as made:
        made.metadata("n1", 1)
        inbox = made.publish(b"a")
        await made.until(lambda: made.answer(inbox) is not None, "the ack")
        yield made


async def fail_append(pair: TwoWorkers, error: Exception) -> WorkerNode:
    """Publish a record that the disk of the leader does not take. Return the leader."""
    leader = pair.nodes["n1"]
    leader.refuse = error
    pair.publish(b"b")
    await pair.until(lambda: leader.worker.storage_failed, "the failure")
    leader.refuse = None
    return leader


@FAILURES
async def test_partition_worker_after_a_failed_append_restarts_the_node_once_unless_the_disk_is_full(
    pair: TwoWorkers, error: StorageError
) -> None:
    leader = await fail_append(pair, error)
    leader.worker.log_failed(StorageError("the next error"))
    is_full = isinstance(error, NoSpaceError)
    assert leader.repairs == ([] if is_full else [f"{KEY}: {error}"])
    assert (leader.worker.no_space, leader.worker.counters["storage_failure"]) == (is_full, 1)


async def test_partition_worker_with_a_log_closed_by_another_component_reports_one_failure(pair: TwoWorkers) -> None:
    """For example by a compaction that failed."""
    leader, error = pair.nodes["n1"], StorageError("compaction failed")
    leader.worker.log_was_closed(error)
    assert not leader.repairs, "the log is open"
    leader.log.close(clean=False)
    leader.worker.log_was_closed(error)
    leader.worker.log_was_closed(error)
    assert leader.repairs == [f"{KEY}: compaction failed"]


@pytest.mark.parametrize("error", [None, StorageError("no"), OSError("no")])
async def test_partition_stop_is_clean_only_if_the_log_can_be_closed(pair: TwoWorkers, error: Exception | None) -> None:
    leader = pair.nodes["n1"]
    leader.refuse_replace = error
    assert await leader.worker.stop() is (error is None)
    assert Log.open(leader.storage.crash(), StreamConfig())[0].log_end_offset == 1


@FAILURES
async def test_partition_stop_after_a_failure_is_unclean_and_flushes_the_log_of_a_full_disk(
    pair: TwoWorkers, error: StorageError
) -> None:
    leader = await fail_append(pair, error)
    high_watermark = leader.worker.high_watermark
    assert not await leader.worker.stop()
    is_full = isinstance(error, NoSpaceError)
    assert leader.worker.has_flushed_all is is_full
    if is_full:
        assert Log.open(leader.storage.crash(), StreamConfig())[0].high_watermark == high_watermark


@FAILURES
async def test_partition_deleted_after_a_failure_lacks_no_flush(pair: TwoWorkers, error: StorageError) -> None:
    """Otherwise the node would count as incomplete for a log that it does not have any more."""
    leader = await fail_append(pair, error)
    assert not await leader.worker.stop(delete=True)
    assert leader.worker.has_flushed_all


@pytest.mark.parametrize(("last_offset", "appended"), [(5, 3), (4, 2), (3, 2), (2, 1), (1, 1)])
async def test_partition_worker_appends_fetched_batches_only_up_to_the_given_offset(last_offset: int, appended: int) -> None:
    async with TwoWorkers() as pair:
        follower = pair.nodes["n2"]
        data = b"".join(build_batch([b"b"], base_offset=offset, offset_deltas=[1], leader_epoch=1) for offset in (0, 2, 4))
        fetched: Any = SimpleNamespace(buffer=memoryview(data), batches=split_batches(data))
        follower.worker.fetched[1] = fetched
        effect = do.AppendFetched(token=1, last_offset=last_offset, leader_high_watermark=1, leader_epoch=4)
        PartitionWorker.execute(follower.worker, effect)
        assert follower.log.log_end_offset == 2 * appended
        assert follower.log.horizon == Horizon(2, 4), "the compaction of the leader has seen records up to its high watermark"
        assert follower.worker.fetched == {}


@pytest.mark.parametrize(("policy", "is_marked"), [("always", False), ("interval:50", True), ("none", True)])
async def test_partition_with_a_lazy_flush_policy_marks_the_data_directory_before_its_log_opens(
    policy: str, is_marked: bool, tmp_path: Path, pool: concurrent.futures.Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataDirectory(tmp_path)
    found: list[tuple[bool, int]] = []

    def opened(*_: Any, promised_epoch: int, **__: Any) -> None:
        found.append((folder.has_mark(LAZY_FLUSH), promised_epoch))
        raise StorageError("not opened")

    monkeypatch.setattr(Log, "open", opened)
    node: Any = SimpleNamespace(
        pool=pool, folder=folder, recovered=RecoveredLogs(), promises=SimpleNamespace(epoch_of=lambda name: 7)
    )
    with pytest.raises(StorageError):
        await open_worker(node, KEY, "shop", StreamConfig(flush=FlushPolicy.parse(policy)))
    assert found == [(is_marked, 7)]
    folder.close()


@pytest.mark.parametrize("cause", do.TransferCause)
def test_leadership_transfer_of_each_cause_counts_as_an_incident(cause: do.TransferCause) -> None:
    assert f"transfer_{cause.value}" in INCIDENTS


def test_isr_change_counter_grows_on_the_leader_only() -> None:
    small = PartitionState(partition=0, replicas=("n1", "n2"), isr=("n1",), leader="n1", leader_epoch=1, epoch=1)
    large = PartitionState(partition=0, replicas=("n1", "n2"), isr=("n1", "n2"), leader="n1", leader_epoch=1, epoch=2)
    counted = {}
    for node in ("n1", "n2"):
        instruments = Instruments()
        for before, after in ((None, small), (small, large), (large, large), (large, small), (small, large)):
            count_isr(instruments, node, before, after)
        counted[node] = instruments.isr_expands, instruments.isr_shrinks
    assert counted == {"n1": (2, 1), "n2": (0, 0)}
