"""Test single rules of the partitions' shell: retention, deletions, timers, reads, services, scrub."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.services.snapshot import DIGEST_SIZE_BYTES, StateComparison
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2, service_pb2
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.partition.housekeeping import Housekeeping
from sidecar.partition.reads import ReadSubjects, ReadTools
from sidecar.partition.services import PartitionServices
from tests.scripts.replication_bench import FakeBus
from tests.unit.partition.shell_parts import KEY, Clocked
from tests.unit.partition.test_housekeeping import FakeWorker, FakeWorkers
from tests.unit.replication.test_reads import Source
from tests.unit.services.test_service_endpoint import World, hello

# ---- partitions ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "does"),
    [
        ({"retention_age_s": 1.0}, ["retention"]), ({"retention_bytes": 1}, ["retention"]), ({"retention_records": 1}, ["retention"]),
        ({"compaction": True}, ["run", "settle", "complete", "told", "report"]), ({}, []), ({"asked": 1}, ["retention"]),
        ({"max_per_subject": 1}, ["run", "settle", "complete", "told", "report"]),
        ({"purges": 1}, ["retention", "retention", "run", "settle", "complete", "told", "report"]),
    ],
)  # fmt: skip
async def test_housekeeping_runs_retention_and_compaction_only_for_streams_with_such_settings(
    config: dict[str, Any], does: list[str], tmp_path: Path
) -> None:
    one = FakeWorker("a")
    one.log.asked_start = config.pop("asked", 0)
    one.log.cleaning.purges = config.pop("purges", 0)
    one.config, one.quarantined_files = StreamConfig(**config), ()
    keeping = Housekeeping(FakeWorkers([one]), 1.0, tmp_path, pytest.fail)  # type: ignore[arg-type]
    one.flusher.stalls = True
    await keeping._retention()
    await keeping._clean()
    assert one.done == [], "while the disk holds something up all of it waits"
    one.flusher.stalls = False
    await keeping._retention()
    await keeping._clean()
    assert one.done == does


# ---- reads ---------------------------------------------------------------------------------------------------------------------
async def test_long_poll_read_is_answered_when_the_partition_closes() -> None:
    bus: Any = FakeBus()
    source: Any = Source()
    tools = ReadTools(bus, Subjects(), InboxRule(("_INBOX.",)), Clocked(), Counter())
    reads = ReadSubjects(tools, PartitionKey("s", "u1", 0), "n1", source)
    bus.deliver("liftpy.s.0.read.n1", frames.encode(client_pb2.ReadRequest(waitMs=10_000, minHighWatermark=-1)), "_INBOX.a")
    assert (reads.waiting_count, bus.sent) == (1, [])
    assert reads.waiting_bytes > 1000
    reads.close()
    ((to, answer),) = bus.sent
    head, _ = frames.decode_read_response(answer)
    assert (to, head.error, head.detail) == ("_INBOX.a", head.NO_SUCH_PARTITION, "this node is removing its replica")
    assert (reads.waiting_count, reads.waiting_bytes) == (0, 0)


# ---- services ------------------------------------------------------------------------------------------------------------------
def test_partition_services_ignore_messages_of_other_partitions_and_unknown_nodes() -> None:
    world = World()
    world.say(hello())
    world.say(frames.encode(service_pb2.ServiceAck(service="bank", stream="s", partition=7)))
    world.say(frames.encode(service_pb2.SnapshotRequest(service="bank", stream="s", partition=7)))
    assert world.counters == {}
    heard: list[Any] = []
    world.services._wellness = SimpleNamespace(record_states=lambda *told: heard.append(told))  # type: ignore[assignment]
    told = [service_pb2.ServiceReport.State(service="bank", position=4)]
    for node, uid in (("n2", "u0"), ("n1", "u1"), ("n9", "u1"), ("n2", "u1")):
        world.services.record_states(service_pb2.ServiceReport(node=node, streamUid=uid, services=told))
    assert [node for node, *_ in heard] == ["n2"]


RIGHT, WRONG = (letter * DIGEST_SIZE_BYTES for letter in (b"r", b"w"))


def test_partition_service_state_is_compared_with_the_states_of_its_process_only() -> None:
    told: list[Any] = []
    sessions = SimpleNamespace(differs=lambda name, difference: told.append((name, difference is not None)) or [])
    made: Any = SimpleNamespace(
        key=KEY, _node_id="n1", _agreements={}, _differences={}, _sessions=sessions, _carry_out=lambda effects: None
    )
    others = made._agreements["counts"] = StateComparison()
    for node in ("n2", "n3"):
        others.set_digests(node, 1, {10: RIGHT, 20: RIGHT})
    for process, digests in ((1, {10: WRONG}), (2, {}), (2, {20: WRONG})):
        PartitionServices._compare(made, {"counts": (process, digests)})
    assert told == [("counts", True), ("counts", False), ("counts", True)]
    PartitionServices._compare(made, {"other": (1, {})})
    assert set(made._agreements) == {"other"}, "a service that is gone is compared with nothing"
