"""Test that the effect executor passes on each field of each effect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.log.compaction_point import Horizon
from liftpy.core.log.log import RecheckResult
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.wire.batch import build_batch
from sidecar.partition.worker import PartitionWorker
from tests.unit.partition.shell_parts import PARTS, executing_worker


class Recorded:
    """Takes every call; ``calls`` has its name and what it was given."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], name: str, **more: Any) -> None:
        self.__dict__.update(more, _calls=calls, _name=name)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            self._calls.append((f"{self._name}.{name}", args, more))
            return {"complaint": RecheckResult.SOUND, "alone": False}.get(name, b"batch")

        return call


def executor(**replaced: Any) -> tuple[PartitionWorker, list[tuple[str, tuple[Any, ...], dict[str, Any]]], list[events.Event]]:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    fed: list[events.Event] = []
    parts: dict[str, Any] = {name: Recorded(calls, name) for name in PARTS}
    parts["fetches"] = Recorded(calls, "fetches", fetched={})
    log = Recorded(calls, "log", log_end_offset=5, log_start_offset=0)
    return executing_worker(fed, parts | replaced, log), calls, fed


@pytest.mark.parametrize(("last_offset", "taken"), [(10, 3), (9, 2), (8, 2), (7, 1), (6, 1)])
def test_effect_executor_appends_fetched_batches_only_up_to_the_given_offset(last_offset: int, taken: int) -> None:
    runner, calls, _ = executor()
    data = b"".join(build_batch([b"a", b"b"], base_offset=offset, leader_epoch=1) for offset in (5, 7, 9))
    from liftpy.core.wire.batch import split_batches

    batches = split_batches(data)
    runner.fetched[1] = SimpleNamespace(buffer=memoryview(data), batches=batches)
    runner.execute(do.AppendFetched(token=1, last_offset=last_offset, leader_high_watermark=6, leader_epoch=4))
    name, args, more = calls[0]
    assert name == "log.append_batches"
    assert [batch.base_offset for batch in args[1]] == [5, 7, 9][:taken]
    assert len(args[0]) == sum(len(batch.view) for batch in batches[:taken])
    assert more == {"compacted": Horizon(7, 4)}, "all that the leader's compaction can have seen: up to HW, inclusive"
    assert calls[-1][0] == "flusher.appended"
    assert runner.fetched == {}
