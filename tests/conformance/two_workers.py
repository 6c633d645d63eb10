"""Two nodes' workers of one partition on one event loop: the shipped ``PartitionWorker`` with all that it wires, over disks in memory
and a bus that is a table of listeners. What the metadata group says, the test says.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from liftpy.config import NS_PER_S, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.base.partition import PartitionMetadata, PartitionState, PartitionStatus
from liftpy.core.log.epoch_promises import PromiseJournal
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.standby import NodeStandbyMemory
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import Lease
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.disk.flush_thread import FlushThread, NodeFlushTimes
from sidecar.partition.combined_fetches import FetchCombiner, FetchSender
from sidecar.partition.metric_sums import NodeCounts
from sidecar.partition.promises import Promises
from sidecar.partition.reads import ReadTools
from sidecar.partition.replica_manager import NotifyHandler
from sidecar.partition.replication import AnswerRouter, Notifications
from sidecar.partition.worker import PartitionWorker
from sidecar.runtime import clock
from sidecar.runtime.timers import Timers
from tests.conformance.contract_audit import Audit, ContractBroken

KEY = PartitionKey("orders", "u1", 0)
SUBJECT = "shop.orders"
NODES = ("n1", "n2")
CONFIG = ReplicationConfig(fetch_timeout_s=0.2, max_idle_wait_s=0.1)


class Bus:
    """One node's connection; all nodes share ``table``. What it sends arrives in a later turn of the loop."""

    max_payload = 1 << 20
    has_room = True

    def __init__(self, node_id: str, table: list[tuple[str, str, Callable[..., None]]]) -> None:
        self.node_id = node_id
        self.inbox = f"liftpy.inbox.{node_id}"
        self.audit: Audit | None = None
        self.cut = False
        self.table = table
        self.broken: list[Exception] = []

    def listen(
        self, subject: str, sink: Callable[..., None], queue: str = "", on_dropped: Any = None, rejector: Any = None
    ) -> Any:
        entry = (self.node_id, subject, sink)
        self.table.append(entry)
        gone = lambda: self.table.remove(entry) if entry in self.table else None  # noqa: E731
        return SimpleNamespace(close=gone, leave=gone)

    def retire(self, listeners: Sequence[Any]) -> None:
        for listener in listeners:
            listener.close()

    def hold(self) -> None:
        """What is sent leaves in order all the same."""

    def release(self) -> None:
        """That was all of a step."""

    def call_after_read(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def when_subscribed(self, heard: Callable[[], None]) -> None:
        heard()

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        self.broken.append(error)

    def send(self, subject: str, pieces: Sequence[Any], reply: str = "") -> bool:
        payload = b"".join(bytes(piece) for piece in pieces)
        self._look(payload)
        if not self.cut:
            for node_id, listens, sink in list(self.table):
                if _matches(listens, subject):
                    asyncio.get_running_loop().call_soon(self._arrive, node_id, sink, subject, reply, payload)
        return not self.cut

    def _arrive(self, node_id: str, sink: Callable[..., None], subject: str, reply: str, payload: bytes) -> None:
        sink(subject.encode(), reply.encode(), payload, b"")

    def send_lines(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            head, _, rest = line.partition(b"\r\n")
            _, subject, size = head.split()
            answer = json.loads(rest[: int(size)])
            if self.audit is not None and "error" not in answer:
                self.audit.sends_ack(answer["seq"] - 1)
            self.send(subject.decode(), (rest[: int(size)],))

    def _look(self, payload: bytes) -> None:
        if self.audit is None or not payload.startswith(envelope.MAGIC):
            return
        kind, body = envelope.decode(payload)
        if kind is MessageType.REPLICATION_REQUEST:
            self.audit.sends_fetch(frames.parse(body, pb.ReplicationRequest).offset)
        elif kind is MessageType.REPLICATION_RESPONSE:
            response = frames.parse_replication_response(body)
            self.audit.sends_batches(response.high_watermark, response.batches)


def _matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    return len(wanted) == len(given) and all(w in ("*", g) for w, g in zip(wanted, given, strict=True))


class Place:
    """Every flush runs in a thread."""

    waiting = 0
    on_loop = False

    def takes(self, size_bytes: int, seals: bool) -> bool:
        return False

    def record_thread_flush(self, took_s: float, size_bytes: int) -> None: ...


class Asked:
    """In the place of Proposals: what was asked of the metadata group."""

    def __init__(self) -> None:
        self.effects: list[do.Effect] = []

    def propose_isr(self, key: PartitionKey, effect: do.ProposeIsr, feed: Any) -> None:
        self.effects.append(effect)

    def __getattr__(self, name: str) -> Any:
        return lambda key, effect, *more: self.effects.append(effect)


class AuditedWorker(PartitionWorker):
    """A worker whose effects are checked."""

    audit: Audit

    def execute(self, effect: do.Effect) -> None:
        self.audit.carries_out(effect, lambda: PartitionWorker.execute(self, effect))


class WorkerNode:
    """One node: its disk (``flushes`` may be held up), its bus, its worker."""

    def __init__(self, node_id: str, incarnation: int, table: Any, pool: Any, stream: StreamConfig) -> None:
        self.node_id = node_id
        self.storage = MemoryStorage()
        self.flushes = threading.Event()
        self.flushes.set()
        self.refuse: Exception | None = None
        """What the next append meets."""
        self.refuse_replace: Exception | None = None
        self.refuse_sync: Exception | None = None
        self.log, _ = Log.open(self.storage, stream)
        self.storage.fault = self._fault
        self.promises = MemoryStorage()
        self.asked = Asked()
        self.counts = NodeCounts()
        self.errors: list[Exception] = []
        self.repairs: list[str] = []
        """Reasons for a restart of the node."""
        self.bus = Bus(node_id, table)
        self.timers = Timers()
        self.lease = Lease(round(CONFIG.lease_s * NS_PER_S))
        subjects = Subjects()
        bus: Any = self.bus
        counters: Counter[str] = Counter()
        inboxes = InboxRule((subjects.inboxes(),))
        router = AnswerRouter(bus)
        quiet = FetchCombiner(
            router, subjects, FetchSender(node_id, incarnation), inboxes, CONFIG, self.timers, self._noticed, counters
        )
        notifications = Notifications(bus, subjects)
        partitions: Any = SimpleNamespace(deliver=self._noticed, serves=lambda question: False)
        NotifyHandler(bus, subjects.notify(node_id), inboxes, partitions, quiet.answer_question, counters)
        tools: Any = SimpleNamespace(
            folder=SimpleNamespace(partition_path=lambda key: Path(key.folder)),
            changed_partitions=self.counts.changed_partitions,
            clocks=SimpleNamespace(time_of_age_ns=time.time_ns, stamp_ns=time.time_ns),
            settings=SimpleNamespace(node_id=node_id, replication=CONFIG), incarnation=incarnation,
            links=SimpleNamespace(ingest=bus, replication=bus, standby=None), inflight=NodeInflight(),
            lease=self.lease, copy_limit=CatchupThrottle(), standby_memory=NodeStandbyMemory(1 << 20),
            state_memory=NodeStateMemory(),
            drops=SimpleNamespace(count=lambda *a: None), subjects=subjects, tracing=SimpleNamespace(traces_of=lambda key: None),
            reads=ReadTools(bus, subjects, InboxRule(("_INBOX.",)), self.timers, counters),
            node_inboxes=inboxes, router=router, notifications=notifications, fetch_combiner=quiet,
            probes=SimpleNamespace(ask=lambda *a: None), proposals=self.asked, timers=self.timers, pool=pool,
            counters=counters, flush_times=NodeFlushTimes(counters), flush_runner=FlushThread(Place()),
            instruments=Instruments(), memory_budget=MemoryBudget(), transfers=SimpleNamespace(begin=lambda *a: None),
            process=SimpleNamespace(fatal=self.errors.append, repair=self.repairs.append),
            promises=Promises(PromiseJournal(self.promises), pool, counters, self.errors.append),
        )  # fmt: skip
        self.worker = AuditedWorker(tools, KEY, SUBJECT, stream, self.log)
        self.counts.opened(self.worker)
        self.audit = self.bus.audit = Audit(node_id, self.log, lambda: self.storage, lambda: self.promises, threads=True)
        self.audit.watch(self.worker.replica)
        self.worker.audit = self.audit
        self.worker.feed_log_opened()

    def _fault(self, what: str) -> None:
        if what == "sync":
            self.flushes.wait(10)
            if self.refuse_sync is not None:
                raise self.refuse_sync
        if what == "append" and self.refuse is not None:
            raise self.refuse
        if what == "replace" and self.refuse_replace is not None:
            raise self.refuse_replace

    def beat(self) -> None:
        """A heartbeat that is sent now is answered at once."""
        if self.lease.extend(clock.now_ns(), 0, clock.now_ns()):
            self.worker.feed(ev.LeaseChanged())

    def _noticed(self, stream: str, partition: int, uid: str, event: ev.Event) -> None:
        self.worker.feed(event)


class TwoWorkers:
    """Use as an async context manager."""

    def __init__(self, stream: StreamConfig | None = None) -> None:
        self._stream = stream or StreamConfig()

    async def __aenter__(self) -> TwoWorkers:
        ContractBroken.seen.clear()
        self._pool = concurrent.futures.ThreadPoolExecutor(4)
        self.table: list[Any] = []
        self.nodes = {
            name: WorkerNode(name, number, self.table, self._pool, self._stream) for number, name in enumerate(NODES, 1)
        }
        self.epoch_now = 0
        self._answers: dict[str, dict[str, Any]] = {}
        self.table.append(("publisher", "_INBOX.*", self._answered))
        self._numbers = iter(range(1, 1 << 30))
        return self

    async def __aexit__(self, *error: object) -> None:
        for node in self.nodes.values():
            node.flushes.set()
            node.refuse = None
        for node in self.nodes.values():
            node.worker._driver.stop()
            await node.worker.flusher.close()
            node.timers.close()
        self._pool.shutdown()

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        self._answers[subject.decode()] = json.loads(payload)

    def metadata(self, leader: str, leader_epoch: int, *, candidate: bool = False) -> None:
        """What the image shows from now on; everybody has a lease."""
        self.epoch_now += 1
        status = PartitionStatus.CANDIDATE_FOUND if candidate else PartitionStatus.ONLINE
        state = PartitionState(
            partition=0, replicas=NODES, isr=NODES, leader="" if candidate else leader, leader_epoch=leader_epoch,
            epoch=self.epoch_now, status=status, candidate=leader if candidate else "",
            leaderships=leader_epoch if not candidate else leader_epoch - 1,
        )  # fmt: skip
        held = PartitionMetadata(key=KEY, config=StreamConfig(min_isr=2), state=state)
        live = {name: number for number, name in enumerate(NODES, 1)}
        for node in self.nodes.values():
            node.worker.announce_change()
            node.worker.update(held, live)
            node.beat()

    def publish(self, payload: bytes) -> str:
        """A message on the data subject; where its answer goes."""
        inbox = f"_INBOX.{next(self._numbers)}"
        for _, subject, sink in list(self.table):
            if subject == SUBJECT:
                sink(SUBJECT.encode(), inbox.encode(), payload, b"")
        return inbox

    def answer(self, inbox: str) -> dict[str, Any] | None:
        return self._answers.get(inbox)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Let both go on until ``holds``; every breach of the contract ends it."""
        deadline = asyncio.get_running_loop().time() + 10
        while not holds():
            self.look()
            assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
            await asyncio.sleep(0.001)
        self.look()

    def look(self) -> None:
        """Raise what anybody has found, and what stopped a replica."""
        if ContractBroken.seen:
            raise ContractBroken.seen[0]
        for node in self.nodes.values():
            for error in (*node.errors, *node.bus.broken):
                raise error
