"""Every part of a shipped worker says where it changes something that figures show: random histories of two nodes' workers on one loop.

Between any two turns of the loop the figures that are kept by change are those of a walk over the partition. Publishes of all kinds
come, readers read and wait, leaderships move, ISRs shrink, partitions are paused, the bus is cut, segments expire and are compacted, a
disk refuses in the end.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionMetadata, Pause
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import MAGIC
from liftpy.errors import StorageError
from sidecar.partition.housekeeping import Housekeeping
from sidecar.partition.metric_sums import StreamLabels
from sidecar.runtime import clock
from tests.conformance.two_workers import KEY, NODES, SUBJECT, TwoWorkers
from tests.unit.status.full_metrics_scan import kept, walked

_STREAM = StreamConfig(
    min_isr=2, retention_records=40, segment_bytes=4096, compaction=True, dedup_window_s=0.05, max_message_bytes=300
)
_IN_THREADS = ("partitions_with_quarantined_files", "derived_states_written", "derived_states_failed")
"""They change in threads, and it is said when those are done."""
_READ = "liftpy.orders.0.read."


class WorkerHistory:
    """Two workers, and what happens to them."""

    def __init__(self, t: TwoWorkers, rng: random.Random) -> None:
        self.t, self.rng = t, rng
        self.leader, self.epoch = "n1", 1
        self.done: set[str] = set()
        self.housekeeping: dict[str, Any] = {
            name: Housekeeping(_Only(node.worker), 1.0, None, lambda why: None) for name, node in t.nodes.items()  # type: ignore[arg-type]
        }  # fmt: skip
        self.jobs: list[asyncio.Future[Any]] = []

    def compare(self, what: str, but: tuple[str, ...] = _IN_THREADS) -> None:
        """Of both nodes; ``but``: what is left out."""
        now_ns = clock.now_ns()
        for name, node in self.t.nodes.items():
            expected, held = walked([node.worker], StreamLabels(), now_ns), kept(node.counts.open, now_ns)
            sums, others = held.pop("sums")[""], expected.pop("sums")[""]
            wrong = {
                figure: (sums[figure], true) for figure, true in others.items() if sums[figure] != true and figure not in but
            }
            assert not wrong, f"{name} after {what}"
            assert held == expected, f"{name} after {what}"

    def step(self) -> str:
        rng = self.rng
        kinds: dict[str, Callable[[], object]] = {
            "publish": self.publish, "publishes": lambda: [self.publish() for _ in range(rng.randrange(2, 30))],
            "strange": self._strange, "read": self._read, "lead": self._lead, "image": self._image, "cut": self._cut,
            "flushes": self._flushes, "housekeeping": self._housekeeping, "checkpoint": self._checkpoint, "heard": self._heard,
            "quarantine": self._set_aside, "unread": self._unread,
        }  # fmt: skip
        what = rng.choices([*kinds], (9, 6, 4, 6, 2, 2, 1, 2, 2, 2, 2, 1, 1))[0]
        kinds[what]()
        self.done.add(what)
        return what

    def publish(self) -> None:
        self.t.publish(b"x" * self.rng.randrange(400))  # some are too large

    def _strange(self) -> None:
        """What can't be read, may not be answered, or was sent before."""
        reply, payload, headers = self.rng.choice((
            (b"_INBOX.1", MAGIC + b"\x00junk", b""), (b"not.an.inbox", b"x", b""), (b"", b"x", b""),
            (b"_INBOX.2", b"x", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % self.rng.randrange(3)),
            (b"_INBOX.3", b"x", b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1\r\n\r\n"),
        ))  # fmt: skip
        for _, subject, sink in list(self.t.table):
            if subject == SUBJECT:
                sink(SUBJECT.encode(), reply, payload, headers)

    def _unread(self) -> None:
        """Too many have come: some are refused before they are looked at."""
        self.t.nodes[self.leader].worker.ingest.reject_unread([b"_INBOX.4"])

    def _read(self) -> None:
        node, wait_ms = self.rng.choice(NODES), self.rng.choice((0, 20))
        log = self.t.nodes[node].log
        request = client_pb2.ReadRequest(
            offset=max(0, log.log_end_offset - self.rng.randrange(9)), maxBytes=4096, waitMs=wait_ms
        )
        self.t.nodes[node].bus.send(_READ + node, (frames.encode(request),), "_INBOX.a.reader")

    def _lead(self) -> None:
        self.epoch, self.leader = self.epoch + 1, self.rng.choice(NODES)
        self.t.metadata(self.leader, self.epoch, candidate=True)
        self.t.metadata(self.leader, self.epoch)

    def _image(self) -> None:
        """Another ISR, settings, a pause, a target."""
        rng = self.rng
        for node in self.t.nodes.values():
            if (state := node.worker.state) is None:
                continue
            self.t.epoch_now += 1
            state = replace(
                state, epoch=self.t.epoch_now, isr=rng.choice((NODES, (self.leader,))), target=rng.choice(((), (*NODES, "n3"))),
                pause=rng.choice((Pause.NOT_PAUSED, Pause.NOT_PAUSED, Pause.UNTIL_RESUMED)),
            )  # fmt: skip
            config = replace(_STREAM, min_isr=rng.choice((1, 2)), quota_records_per_s=rng.choice((0, 1)))
            node.worker.update(PartitionMetadata(key=KEY, config=config, state=state), {"n1": 1, "n2": 2})

    def _cut(self) -> None:
        for node in self.t.nodes.values():
            node.bus.cut = self.rng.random() < 0.3

    def _flushes(self) -> None:
        """A disk stands still for a moment."""
        flushes = self.t.nodes[self.rng.choice(NODES)].flushes
        flushes.clear()
        threading.Timer(0.01, flushes.set).start()

    def _housekeeping(self) -> None:
        name = self.rng.choice(NODES)
        if all(job.done() for job in self.jobs):
            for job in self.jobs:
                job.result()
            self.jobs = [asyncio.ensure_future(self.housekeeping[name]._retention())]

    def _checkpoint(self) -> None:
        self.t.nodes[self.rng.choice(NODES)].worker.states.checkpoint()

    def _heard(self) -> None:
        for node in self.t.nodes.values():
            node.beat()

    def _set_aside(self) -> None:
        worker = self.t.nodes[self.rng.choice(NODES)].worker
        worker.quarantined_files = ("1.log.damaged",)
        worker.mark_changed()  # at an opening, in truth


class _Only(list[Any]):
    """Stands for ``Partitions``."""

    def __init__(self, worker: Any) -> None:
        super().__init__([worker])
        self.clocks = SimpleNamespace(time_of_age_ns=time.time_ns)

    def has_everything(self, worker: Any) -> bool:
        return True


@pytest.mark.parametrize("seed", range(6))
async def test_metrics_updated_incrementally_equal_recomputed_metrics_after_any_history(seed: int) -> None:
    met: set[str] = set()
    async with TwoWorkers(_STREAM) as t:
        for node in t.nodes.values():
            node.audit._check = lambda *told: None  # type: ignore[method-assign]  # it knows of no retention
        told = WorkerHistory(t, random.Random(seed))
        t.metadata("n1", 1)
        for number in range(400):
            what = told.step()
            for _ in range(told.rng.choice((0, 1, 1, 4))):
                await asyncio.sleep(0)
                told.compare(f"{number}: {what}")
            if number % 20 == 19:
                await asyncio.sleep(0.005)  # for threads and timers
                told.compare(f"{number}: {what}")
        for node in t.nodes.values():
            node.refuse = StorageError("the disk refuses")
            node.flushes.set()
            node.bus.cut = False
        for _ in range(50):
            told.publish()
            await asyncio.sleep(0.001)
            told.compare("a disk refuses")
        await asyncio.gather(*told.jobs)
        await t.until(lambda: all(node.worker.states._writing is None for node in t.nodes.values()), "states are written")
        told.compare("all of it", but=())
        for node in t.nodes.values():
            met |= {name for name, figure in walked([node.worker], StreamLabels(), 0)["sums"][""].items() if figure}
