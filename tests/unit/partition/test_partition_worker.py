"""Test one partition of a node: damage, clean stops, the log start, lazily flushed streams."""

from __future__ import annotations

import concurrent.futures
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import FlushPolicy, ReplicationConfig, StreamConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.errors import NoSpaceError, StorageError
from sidecar.disk.data_folder import LAZY_FLUSH
from sidecar.partition import worker as worker_module
from sidecar.partition.worker import PartitionWorker
from sidecar.status.metric_names import INCIDENTS
from tests.each import each
from tests.unit.partition.shell_parts import KEY, worker

close_partition = PartitionWorker._close


@each("healthy", [True, False])
@each("delete", [True, False])
@each("fails", [None, StorageError("no"), OSError("no")])
def test_partition_close_is_clean_only_if_storage_is_healthy_and_the_log_close_succeeds(
    healthy: bool, delete: bool, fails: Exception | None
) -> None:
    closed: list[bool] = []

    def close(*, clean: bool) -> None:
        closed.append(clean)
        if fails is not None:
            raise fails

    ended = worker(log=SimpleNamespace(close=close))
    assert close_partition(ended, healthy, delete) is (healthy and fails is None)
    assert closed == [healthy and not delete]
    assert ended.told == ([KEY, KEY.folder] if delete and fails is None else []), "the promise goes with the folder"


@each("flushed", [True, False])
@each("fails", [None, NoSpaceError("full"), StorageError("I/O error")])
def test_partition_close_after_a_full_disk_stores_the_state_only_after_the_flushed_high_watermark(
    flushed: bool, fails: Exception | None
) -> None:
    order: list[str] = []

    def checkpoint() -> None:
        order.append("checkpoint")
        if fails is not None:
            raise fails

    log = SimpleNamespace(
        flush_before_close=lambda: flushed, checkpoint=checkpoint, close=lambda *, clean: order.append(f"closed {clean}")
    )
    ended = worker(log=log, no_space=True, storage_failed=True)
    PartitionWorker.flush_full_log(ended)
    assert not close_partition(ended, False, False, lambda: order.append("state"))
    stored = ["checkpoint"] + ["state"] * (fails is None)
    assert order == [*(stored if flushed else []), "closed False"]
    assert ended.has_flushed_all is flushed


@each("fails", [None, StorageError("no")])
def test_partition_deleted_after_a_full_disk_lacks_no_flush(fails: Exception | None) -> None:
    """Otherwise the node would count as incomplete for a log that it does not have any more."""

    def delete(key: Any) -> None:
        if fails is not None:
            raise fails

    node = SimpleNamespace(
        folder=SimpleNamespace(delete_partition=delete), promises=SimpleNamespace(forget=lambda folder: None)
    )
    ended = worker(log=SimpleNamespace(close=lambda *, clean: None), no_space=True, storage_failed=True, _node=node)
    assert not close_partition(ended, False, True)
    assert ended.has_flushed_all is (fails is None)


@each("error", [None, StorageError("I/O error")])
@each("no_space", [True, False])
def test_partition_retention_that_moved_the_log_start_reports_it_also_after_an_error(
    error: Exception | None, no_space: bool
) -> None:
    """A full disk at a roll stops the partition, and leaves its log open. The state of deleted records is stored there, too."""
    log: Any = SimpleNamespace(log_start_offset=3, closed="", is_full=False)

    def retain(*_: Any) -> None:
        log.log_start_offset = 7
        if error is not None:
            raise error

    log.apply_retention = retain
    node = SimpleNamespace(settings=SimpleNamespace(replication=ReplicationConfig()))
    one = worker(log=log, no_space=no_space, services=SimpleNamespace(retain_from=lambda: None), _node=node)
    one.states = SimpleNamespace(may_drop=None, store_after_deletion=lambda: one.told.append("state"))
    assert PartitionWorker.apply_retention(one, 0)
    assert one.told == ["settled", events.LogStartMoved(log_start_offset=7), *(["state"] if no_space else [])]


@pytest.mark.parametrize("cause", do.TransferCause)
def test_partition_worker_counts_a_requested_transfer_by_its_cause(cause: do.TransferCause) -> None:
    leader: Any = SimpleNamespace(key=KEY, counters=Counter[str](), prepare_transfer=lambda *_: None)
    effect = do.TransferLeadership(leader_epoch=3, toward="n2", reason="r", cause=cause)
    PartitionWorker.transfer_leadership(leader, effect)
    (label,) = leader.counters
    assert label == f"transfer_{cause.value}"
    assert label in INCIDENTS


@pytest.mark.parametrize(("policy", "marked"), [("always", 0), ("interval:50", 1), ("none", 1)])
async def test_node_identity_records_a_flush_policy_other_than_always_before_the_log_opens(
    policy: str, marked: int, pool: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Any] = []
    found: dict[Path, Any] = {Path("there"): SimpleNamespace(storage="recovered", is_complete=True, has_states=False)}
    folder = SimpleNamespace(
        partition_path=lambda key: Path("there"), partition_storage=lambda key: "made", set_mark=lambda name: order.append(name)
    )
    node: Any = SimpleNamespace(
        pool=pool, folder=folder, recovered=SimpleNamespace(take=lambda path: found.pop(path, None), unrecovered=set()),
        promises=SimpleNamespace(epoch_of=lambda key: 7 if key == KEY.folder else 0),
    )  # fmt: skip

    def opened(where: Any, config: StreamConfig, **more: Any) -> Any:
        order.append({"where": where, **more})
        raise StorageError("seen enough")

    monkeypatch.setattr(worker_module.Log, "open", opened)
    recovered = found[Path("there")]
    for where, taken in (("recovered", recovered), ("made", None)):
        order.clear()
        with pytest.raises(StorageError):
            await worker_module.open_worker(node, KEY, "shop", StreamConfig(flush=FlushPolicy.parse(policy)))
        assert order[:-1] == [LAZY_FLUSH] * marked
        assert (order[-1].get("clean", False), order[-1]["recovered"], order[-1]["where"]) == (False, taken, where)
        assert order[-1]["promised_epoch"] == 7


def test_partition_worker_with_a_log_closed_by_another_component_reports_one_failure() -> None:
    failures: list[Exception] = []

    def failed(error: Exception) -> None:
        failures.append(error)
        worker.storage_failed = True

    worker: Any = SimpleNamespace(log=SimpleNamespace(closed=""), storage_failed=False, log_failed=failed)
    error = StorageError("compaction failed")
    PartitionWorker.log_was_closed(worker, error)
    assert not failures
    worker.log.closed = "compaction failed"
    PartitionWorker.log_was_closed(worker, error)
    PartitionWorker.log_was_closed(worker, error)
    assert failures == [error]
