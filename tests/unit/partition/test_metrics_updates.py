"""Test that the parts of a partition report each change of a figure."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire._pb import service_pb2
from sidecar.partition.driver import ReplicaDriver
from tests.unit.partition import test_log_replay, test_state_file_writes
from tests.unit.partition.shell_parts import until
from tests.unit.partition.test_partition_worker_wiring import Wired
from tests.unit.publish.test_standby import Bench as StandbyBench
from tests.unit.services.test_service_endpoint import World as ServiceBench

_LOOK, _RETRY = do.SetDeadline(kind=ev.Deadline.LAG, at_ns=1), do.ConfirmQuiescence(token=1)
_REACHED, _HEARD = ev.DeadlineReached(kind=ev.Deadline.LAG), ev.LeaseChanged()
_QUIET = ev.QuiescentFetchReceived(token=1, replica="n2", incarnation=1, leader_epoch=1, request_id=1)
_ROLE = do.RoleChanged(role=RoleName.LEADER, phase="x", leader_epoch=1)


def test_partition_change_in_any_component_marks_the_partition_for_a_metrics_update(monkeypatch: pytest.MonkeyPatch) -> None:
    wired = Wired(monkeypatch)
    worker, parts = wired.worker, wired.parts
    for part in (parts["ReplicaDriver"], parts["Ingest"].reader, worker.standby, worker.reads, worker.replay, worker.states,
                 worker.services):  # fmt: skip
        assert not wired.node.touched
        part.touched()
        assert wired.node.touched == {worker}, part
        wired.node.touched.clear()
    wired.given["Ingest"]["on_drop"]("why", 3)
    assert wired.node.touched == {worker}
    assert wired.dropped == [(str(worker.key), "why", 3)]


@pytest.mark.parametrize(
    ("event", "effects", "times"),
    [
        (_HEARD, [], 0), (_HEARD, [_LOOK], 0), (_HEARD, [_LOOK, _ROLE], 1), (_REACHED, [], 0), (_REACHED, [_LOOK], 0),
        (_REACHED, [_ROLE], 1), (_QUIET, [], 0), (_QUIET, [_RETRY], 0), (ev.NotificationReceived(), [], 1),
        (ev.LogFlushed(end_offset=1), [], 1),
    ],
)  # fmt: skip
def test_replica_driver_step_without_changes_does_not_mark_the_partition_for_metrics(
    event: ev.Event, effects: list[do.Effect], times: int
) -> None:
    class Steps:
        def step(self, event: ev.Event, now_ns: int) -> list[do.Effect]:
            return effects

    touched: list[bool] = []
    steps: Any = Steps()
    driver = ReplicaDriver(PartitionKey("s", "u1", 0), steps, pytest.fail)
    driver.execute, driver.touched = lambda effect: None, lambda: touched.append(True)
    driver.feed(event)
    assert len(touched) == times


def test_standby_change_marks_the_partition_for_a_metrics_update() -> None:
    bench, touched = StandbyBench(), []
    bench.standby.touched = lambda: touched.append(bench.standby.report())
    bench.heard(b"a", b"b")
    assert len(touched) == 1
    bench.given_up(5)
    assert touched[-1]["lost"] == 5
    taken = bench.begins_to_lead()
    assert taken
    assert touched[-1] == bench.standby.report() | {"held_bytes": touched[-1]["held_bytes"]}
    assert touched[-1]["appended"] == 2


async def test_log_replay_slice_marks_the_partition_for_a_metrics_update() -> None:
    bench, touched = test_log_replay.Bench(), []
    bench.replay.touched = lambda: touched.append(bench.derived.replayed_bytes)
    bench.replay.run(bench.says("done"))
    await until(lambda: bench.done)
    assert touched[-1] == bench.derived.replayed_bytes > 0


async def test_log_replay_background_read_marks_the_partition_for_a_metrics_update() -> None:
    bench, touched = test_log_replay.Bench(), []
    bench.replay.touched = lambda: touched.append(True)
    bench.derived.read_beside = lambda: True  # type: ignore[method-assign]
    bench.replay._read_some()
    assert touched


async def test_state_file_write_marks_the_partition_for_a_metrics_update() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        bench = test_state_file_writes.Bench(pool, MemoryStorage())
        touched: list[int] = []
        bench.states.touched = lambda: touched.append(bench.states.writer.written)
        bench.append(b"m1")
        bench.states.checkpoint()
        await until(lambda: touched)
        assert touched == [1]
        await bench.flusher.close()


def test_partition_with_its_first_service_is_marked_for_a_metrics_update() -> None:
    bench, touched = ServiceBench(), []
    bench.services.touched = lambda: touched.append(bench.services.known)
    hello = service_pb2.ServiceHello(stream="s", partition=0, streamUid="u1", service="svc", instance=1)
    for _ in range(2):
        bench.services.hello(hello, "_INBOX.x")
    assert touched == [True]
