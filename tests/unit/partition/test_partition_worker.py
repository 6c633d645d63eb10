"""Test one partition of a node: damage, clean stops, the log start, lazily flushed streams."""

from __future__ import annotations

import concurrent.futures
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.replication import effects as do
from liftpy.errors import StorageError
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


@each("no_space", [True, False])
@each("delete", [True, False])
@each("flushed", [True, False])
def test_partition_close_after_a_full_disk_flushes_the_log_first(no_space: bool, delete: bool, flushed: bool) -> None:
    order: list[str] = []

    def flush() -> bool:
        order.append("flushed")
        return flushed

    log = SimpleNamespace(flush_before_close=flush, close=lambda *, clean: order.append("closed"))
    ended = worker(log=log, no_space=no_space, has_flushed_all=False)
    assert not close_partition(ended, False, delete)
    assert order == (["flushed", "closed"] if no_space and not delete else ["closed"])
    assert ended.has_flushed_all is (no_space and not delete and flushed)


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
