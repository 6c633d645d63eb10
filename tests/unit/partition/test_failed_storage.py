"""Test a log whose disk failed: the node restarts, unless the disk is full [S4, S8]."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import CorruptionError, LogClosedError, NoSpaceError, StorageError
from sidecar.partition.worker import PartitionWorker


@pytest.mark.parametrize(
    ("error", "starts_anew"),
    [
        (StorageError("flush failed: Input/output error"), True),
        (CorruptionError("a flipped bit"), True),
        (LogClosedError("The log is closed"), True),
        (NoSpaceError("flush failed: No space left on device"), False),
    ],
)
def test_partition_storage_error_restarts_the_node_unless_the_disk_is_full(error: StorageError, starts_anew: bool) -> None:
    reasons: list[str] = []
    worker: Any = SimpleNamespace(key="orders/0", _node=SimpleNamespace(repair=reasons.append))
    PartitionWorker._storage_failed(worker, error)
    assert reasons == ([f"orders/0: {error}"] if starts_anew else [])


def test_partition_whose_log_was_closed_by_another_component_reports_one_failure() -> None:
    failures: list[Exception] = []

    def failed(error: Exception) -> None:
        failures.append(error)
        worker.executor.storage_failed = True

    worker: Any = SimpleNamespace(
        log=SimpleNamespace(closed=""), executor=SimpleNamespace(storage_failed=False, log_failed=failed)
    )
    error = StorageError("compaction failed")
    PartitionWorker.log_was_closed(worker, error)
    assert not failures
    worker.log.closed = "compaction failed"
    PartitionWorker.log_was_closed(worker, error)
    PartitionWorker.log_was_closed(worker, error)
    assert failures == [error]
