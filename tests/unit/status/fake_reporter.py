"""Stand-ins of partitions and of a reporter with a figure for each metric."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

from prometheus_client.parser import text_string_to_metric_families

from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.base.partition import PartitionState
from liftpy.core.groups.lag import GroupLag
from liftpy.core.log.flush import FlushScheduler
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.partition.reads import ReadBudget
from liftpy.core.publish.ingest import IngestCounters
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire.decode_errors import REFUSED
from sidecar.partition import metric_sums
from sidecar.partition.metric_sums import OTHERS, NodeCounts, StreamLabels
from sidecar.quorum.transport import DIVERGENCES
from sidecar.runtime import clock
from sidecar.status import figures as figures_module
from sidecar.status.figures import Figures, NodeFigures
from sidecar.status.metrics import exposition

SETTINGS = SimpleNamespace(node_id="n1", rack="r1", namespace="ns", data=Path("/"))


def a_worker(stream: str = "s", partition: int = 0, role: RoleName = RoleName.LEADER, **more: Any) -> Any:
    state = PartitionState(
        partition=partition, replicas=("n1", "n2", "n3"), isr=more.pop("isr", ("n1", "n2", "n3")), leader="n1", leader_epoch=1, epoch=1,
        joining=more.pop("joining", ""), copy_epoch=more.pop("copy_epoch", 0),
    )  # fmt: skip
    counters = IngestCounters(records=10, size_bytes=1000, batches=2, duplicates=3)
    counters.refused["overloaded"] = 4
    counters.dropped["not_leader"] = 5
    counters.throttled["token"] = 6
    return StandIn(**{
        "key": PartitionKey(stream, "u1", partition), "node_id": "n1", "state": state, "config": StreamConfig(min_isr=2),
        "ingest": SimpleNamespace(counters=counters, reader=SimpleNamespace(poison_envelopes=6, refused_replies=7)),
        "log_state": SimpleNamespace(
            ids=SimpleNamespace(evicted_count=8), producers=SimpleNamespace(evicted_count=9), replayed_bytes=11,
            subjects=SimpleNamespace(state="ready"),
        ),
        "states": SimpleNamespace(writer=SimpleNamespace(written=12, failed=13)),
        "reads": SimpleNamespace(record_count=14, size_bytes=15, waiting_count=16),
        "standby": SimpleNamespace(
            report=lambda: {"held_bytes": 17, "appended": 18, "lost": 19}, heard=SimpleNamespace(size_bytes=17), has_counted=True
        ),
        "log": SimpleNamespace(size_bytes=20, log_end_offset=30, truncated_records=21), "acks": SimpleNamespace(count=22),
        "replica": SimpleNamespace(
            role=role, phase="-", high_watermark=26, lag=lambda: (23 + partition, clock.now_ns() - 24 * 10**9, (1, 1 << 62)),
            worst_lag=lambda now_ns: (23 + partition, 24 * 10**9, 1),
        ),
        "fetches": SimpleNamespace(fragment_reassembly_bytes=25),
        "services": SimpleNamespace(report=list, left_services=list, known=False),
        "quarantined_files": (), "storage_failed": False, **more,
    })  # fmt: skip


class StandIn(SimpleNamespace):
    """Compare by identity."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class AllOfThem(set[Any]):
    """Report all partitions as changed. Stand-ins do not report changes."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self._held, self._begun = held, WeakSet[Any]()

    def __iter__(self) -> Iterator[Any]:
        for worker in self._held:
            if worker not in self._begun:
                self._begun.add(worker)
                self._held.counts.opened(worker)
        return iter(list(self._held))


class Held(list[Any]):
    """Stands for ``Partitions``."""

    def __init__(self, workers: list[Any], streams: tuple[str, ...] = ()) -> None:
        super().__init__(workers)
        self.counts = NodeCounts(StreamLabels(streams), AllOfThem(self))
        self.failed: dict[Any, str] = {}
        self.copy_limit, self.state_memory = CatchupThrottle(copied_bytes=31), NodeStateMemory()

    @property
    def standby_bytes(self) -> int:
        return sum(worker.standby.heard.size_bytes for worker in self)


def a_room() -> MemoryBudget:
    room = MemoryBudget(74)
    room.waited_ns = 1_500_000_000
    return room


def a_reporter(workers: list[Any], streams: tuple[str, ...] = (), **more: Any) -> Any:
    link = SimpleNamespace(
        name="ingest", is_connected=True, unsent_bytes=41, stats={"reconnects": 42}, waiting_bytes=43,
        disconnect_loss=SimpleNamespace(lost_messages=44, unknown=45),
    )  # fmt: skip
    image = SimpleNamespace(
        index=5, feature_level=1, controllers=ControllerList(), streams={"s": 1}, waiting=frozenset(),
        nodes={n: SimpleNamespace(fenced=n == "b", leaving=n == "c") for n in "abcd"},
    )  # fmt: skip
    group = SimpleNamespace(
        leader="n1", is_controller=True, image=image, ticks=lambda: {"late": 46},
        counters={DIVERGENCES: 7}, held={"journal_file_bytes": 47},
        status=lambda: [SimpleNamespace(nodeId="n1", commitIndex=48, appliedIndex=49, term=50, lag=0, connected=False, leader=True)],
    )  # fmt: skip
    counters = {"slow_flush": 51, "no incident": 52, f"{REFUSED}checksum": 53}
    nats = {f"{way}_{what}": 60 for way in ("in", "out") for what in ("msgs", "bytes")}
    errors = {"late_pong": 61, "server: who knows": 62, "SomeError": 63, "server: else": 1}
    return SimpleNamespace(**{
        "partitions": Held(workers, streams), "settings": SETTINGS, "node_id": "n1", "group": group, "instruments": Instruments(),
        "links": SimpleNamespace(all=lambda: [link], ingest=link), "nats": lambda: {"connected": True, "errors": errors, **nats},
        "flush_place": FlushScheduler(), "clock": lambda: {"doubt": "why", "skew_s": 2.5},
        "scrub": lambda: {"checked_bytes": 64, "findings": 65, "last_full_pass_s": time.time() - 66},
        "descriptors": lambda: {"open": 67, "limit": 68, "maps": 69, "partition_budget": 70}, "coordinators": list,
        "group_lags": lambda: {"billing": GroupLag(75, 7.5, 2), OTHERS: GroupLag(76, 0.5, 3)},
        "named_counters": lambda: counters, "cluster_watch": ControllerMetrics(), "inflight": NodeInflight(71, 72),
        "read_budget": ReadBudget(1, 73),
        "room": a_room(), "uptime_s": 9.0,
        **more,
    })  # fmt: skip


def gathered(reporter: Any) -> Figures:
    with patch.object(figures_module, "MOST_S", 60.0), patch.object(metric_sums, "ROWS_PER_STEP", 1 << 20):
        return asyncio.run(NodeFigures(reporter).gather())


def shown(found: Figures) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("liftpy_"), *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(exposition(found).decode())
        for sample in family.samples
    }
