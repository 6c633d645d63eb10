"""The run: a stream of many partitions under acknowledged load while nodes join, are drained and removed, and die.

Beside the load run what applications run, from the beginning to the end: a reader of a partition, and on a stream of its own, which
gets partitions that move as well, the client's publishers and consumers and a Spark job. None may notice anything but a wait. The
controllers change too: three become five and three again, and one that is killed for good is replaced.

Each step is measured: the longest time for which any partition acknowledged nothing, and the time to an ack (p99) beside that of the
quiet time before. At the end the logs of all replicas are read from their files: every ack is kept, all replicas are equal, nobody else
holds anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liftpy.client import Client, connect
from liftpy.client.placement_plans import PlacementOptions
from liftpy.config import StreamConfig
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import LiftError
from liftpy.nats.cancellation import end_tasks
from sidecar.dev.cluster import DevCluster
from tests.system.faults.check import Verdict, check, partition_folder
from tests.system.faults.load import Load
from tests.system.moving.bank import Banks
from tests.system.moving.others import Others

STREAM, SUBJECT = "moved", "data.moved"
OTHER, OTHER_SUBJECT = "other", "data.other"
"""Of the client's publisher."""
FIRST, JOIN_LATER, SPARE = ("n1", "n2", "n3"), ("n4", "n5"), "n6"
"""The last one joins only where a controller is to be replaced."""
GRACE_S = 2.0
_POLL_S = 0.1
_LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    partitions: int = 20
    workers: int = 2
    """Messages in flight, of each partition."""
    pace_s: float = 0.05
    quiet_s: float = 5.0
    fill_bytes: int = 10_000_000
    """In each partition, before anything moves."""
    record_bytes: int = 10_000
    deadline_s: float = 300.0
    """Of each step."""
    late: bool = True
    """The nodes that join are not there in the beginning; else they only hold nothing."""
    settings: Mapping[str, str] = field(default_factory=dict)
    bank: bool = True
    """A replicated service is called all the time."""
    kills: bool = True
    """The rebalance's command and the metadata leader are killed in the middle of their steps."""
    controllers: bool = True
    """They change, and one of them is killed for good."""
    more_partitions: bool = True
    """The other stream gets some, which move to the node that is drained."""
    spark: bool = False
    """A Spark job reads the other stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a step was like for those who publish."""

    name: str
    took_s: float
    acks: int
    longest_gap_s: float
    """Of partitions whose leader was not killed meanwhile."""
    killed_gap_s: float
    """Of the others; 0: there are none."""
    p50_s: float
    p99_s: float


@dataclass(slots=True)
class Outcome:
    """Of a whole run."""

    phases: list[Phase] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """Anything that is not as it should be at the end."""

    @property
    def right(self) -> bool:
        return not self.wrong and bool(self.verdicts) and all(verdict.right for verdict in self.verdicts.values())


class Run:
    """``go`` does all of it."""

    client: Client

    def __init__(self, size: Size, show: Callable[[str], None], on_line: Callable[[str, str], None] | None = None) -> None:
        self._size = size
        self._show = show
        settings = {"LIFTPY_REPLICATION_REPLACEMENT_GRACE_S": str(GRACE_S), **size.settings}
        self._late = (*(JOIN_LATER if size.late else ()), *((SPARE,) if size.controllers else ()))
        self._cluster = DevCluster(len(FIRST) + len(JOIN_LATER) + size.controllers, settings=settings, on_line=on_line)
        self._loads: list[Load] = []
        self._uid = ""
        self._bank: Banks | None = None
        self._reader: list[asyncio.Task[None]] = []
        self._read: list[bytes | None] = []
        """The values of partition 0, as the reader got them."""
        self._others: Others | None = None
        self._beheaded: set[int] = set()
        """Partitions whose leader was killed in this step."""
        self.outcome = Outcome()

    async def go(self) -> Outcome:
        """The whole run."""
        try:
            await self._open()
            await self._phase("quiet", self._wait_quietly)
            if self._size.late:
                await self._phase("two nodes join", self._join)
            if self._size.controllers:
                await self._phase("three controllers become five, and three again", self._five)
            if self._size.more_partitions:
                await self._phase("partitions are added, and move", self._more_partitions)
            await self._phase("a rebalance", self._rebalance)
            await self._phase("one is drained and removed", self._drain)
            await self._phase("one is killed and replaced", self._die)
            if self._size.controllers:
                await self._phase("a controller is killed for good and replaced", self._replace)
            await self._close_logs()
        finally:
            await end_tasks(self._reader)
            if self._others is not None:
                await self._others.close()
            if self._bank is not None:
                await self._bank.close()
            for load in self._loads:
                await load.close()
            if "client" in self.__dict__:
                await self.client.close()
            await asyncio.to_thread(self._cluster.stop)
        return self.outcome

    # ---- steps -------------------------------------------------------------------------------------------------------
    async def _open(self) -> None:
        await asyncio.to_thread(self._cluster.start)
        self.client = await connect(self._cluster.nats_url)
        for node in self._late:
            assert await asyncio.to_thread(self._cluster.nodes[node].terminate) == 0
            await self._liftpy("node", "remove", node, "--timeout", "30")
        places = tuple((number, _turned(FIRST, number)) for number in range(self._size.partitions))
        made = await self.client.create_stream(
            STREAM,
            SUBJECT,
            partitions=self._size.partitions,
            config=StreamConfig(min_isr=2),
            placement=PlacementOptions(policy="manual", assignment=places),
        )
        self._uid = made.uid
        await asyncio.gather(*map(self._fill, range(self._size.partitions)))
        for number in range(self._size.partitions):
            load = Load(
                self._cluster.nats_url,
                STREAM,
                data_subject(SUBJECT, number),
                workers=self._size.workers,
                pace_s=self._size.pace_s,
                attempt_s=2.0,
            )
            self._loads.append(load)
            await load.start()
        await self.client.create_stream(
            OTHER,
            OTHER_SUBJECT,
            config=StreamConfig(min_isr=2),
            placement=PlacementOptions(policy="manual", assignment=places[:1]),
        )
        if self._size.bank:
            self._bank = Banks(self.client, self._cluster.nats_url)
            await self._bank.open(FIRST)
        self._reader = [asyncio.create_task(self._read_all())]
        self._others = Others(self.client, OTHER, self._size.pace_s)
        self._others.follow(0)
        if self._size.spark:
            await self._others.start_spark(self._cluster.nats_url)
        await asyncio.gather(*(load.acked_more(3, self._size.deadline_s) for load in self._loads))

    async def _read_all(self) -> None:
        async for record in self.client.consume(STREAM, 0, start="earliest"):
            assert record.offset == len(self._read), f"the reader got offset {record.offset} after {len(self._read) - 1}"
            self._read.append(record.value)

    async def _fill(self, number: int) -> None:
        size = self._size
        async with self.client.publisher(STREAM, number) as publisher:
            for record in range(size.fill_bytes // size.record_bytes):
                await publisher.publish((b"fill %d %d " % (number, record)).ljust(size.record_bytes, b"."))
            await publisher.flush()

    async def _wait_quietly(self) -> None:
        await asyncio.sleep(self._size.quiet_s)  # what is measured is this time itself

    async def _join(self) -> None:
        await self._start(JOIN_LATER)

    async def _start(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            self._cluster.nodes[node].start()
        for node in nodes:
            await asyncio.to_thread(self._cluster.nodes[node].wait_ready)
        if self._bank is not None:
            self._bank.start(nodes)

    async def _five(self) -> None:
        """Each change by a command of its own; the metadata leader leaves, too, if it is one of those that joined."""
        for words, wanted in (
            (("add", "n4"), 4), (("add", "n5"), 5), (("remove", "n4"), 4), (("remove", "n5"), 3),
        ):  # fmt: skip
            said = await self._liftpy("controllers", *words, "--timeout", str(self._size.deadline_s))
            self._expect(len(said["controllers"]) == wanted, f"controllers {' '.join(words)}: {said['controllers']}")

    async def _more_partitions(self) -> None:
        """All of them go to the node that is drained later: it leads them, and readers read from it."""
        places = PlacementOptions(policy="manual", assignment=tuple((number, _turned(FIRST, number)) for number in (1, 2)))
        stream = await self.client.admin.add_partitions(OTHER, placement=places, ready_s=self._size.deadline_s)
        assert self._others is not None
        for number in range(1, 3):
            self._others.follow(number)
        for number in range(3):
            await self.client.admin.reassign(stream, number, ("n4", *_turned(FIRST, number)[:2]))
        await self._until("they have moved", _rests)
        for number in range(3):
            await self._led_by("n4", number)

    async def _led_by(self, node: str, number: int) -> None:
        give_up_at = time.monotonic() + self._size.deadline_s
        while (await self.client.stream(OTHER)).partitions[number].leader != node:
            assert time.monotonic() < give_up_at, f"{OTHER}/{number} is not led by {node}"
            with contextlib.suppress(LiftError):  # it is on its way, or has come
                await self.client.admin.elect_leader(OTHER, number, node)
            await asyncio.sleep(_POLL_S)

    async def _replace(self) -> None:
        """The metadata leader dies, and its replicas and its place among the controllers go to a node that has just come."""
        await self._start((SPARE,))
        dead = (await self.client.admin.describe_cluster()).metadata_leader
        await self._kill(dead)
        await self._liftpy("controllers", "replace", dead, SPARE, "--timeout", str(self._size.deadline_s))
        await self._until(
            f"{dead} is replaced", lambda image: _rests(image) and not any(dead in p.replicas for p in _all_partitions(image))
        )
        await self._liftpy("node", "remove", dead, "--timeout", "30")
        left = {c.node_id for c in (await self.client.admin.describe_cluster()).controllers}
        self._expect(left == {*FIRST, SPARE} - {dead}, f"controllers: {sorted(left)}")

    async def _rebalance(self) -> None:
        if self._size.kills:
            command = subprocess.Popen(  # noqa: ASYNC220 - it is killed before it has said anything
                [*_LIFTPY, "rebalance", "--nats", self._cluster.nats_url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            await self._until("a rebalance begins", lambda image: any(p.target for p in _partitions(image)))
            command.send_signal(signal.SIGKILL)
            command.wait()
        said = await self._liftpy("rebalance", "--timeout", str(self._size.deadline_s))
        self._expect(max(said["held"].values()) - min(said["held"].values()) <= 1, f"the plan is not even: {said['held']}")
        await self._until("the rebalance is done", _rests)

    async def _drain(self) -> None:
        killed = ""
        draining = asyncio.create_task(self._liftpy("node", "drain", "n4", "--wait", "--timeout", str(self._size.deadline_s)))
        if self._size.kills:
            await self._until("a drain begins", lambda image: any(p.joining for p in _partitions(image)))
            killed = (await self.client.admin.describe_cluster()).metadata_leader
            await self._kill(killed)
            self._cluster.nodes[killed].start()
        await draining
        if self._others is not None and not self._size.kills:
            self._expect(not self._others.unknown, f"{self._others.unknown} publishes had no answer, and nobody was killed")
        await self._until("the drain is done", _rests)
        self._expect(not await asyncio.to_thread(self._holds, "n4"), "n4 is drained and has folders of partitions still")
        assert await asyncio.to_thread(self._cluster.nodes["n4"].terminate) == 0
        await self._liftpy("node", "remove", "n4", "--timeout", "30")

    async def _kill(self, node: str) -> None:
        now = await self.client.stream(STREAM)
        self._beheaded |= {p.partition for p in now.partitions if p.leader == node}
        self._cluster.nodes[node].kill()

    async def _die(self) -> None:
        await self._kill("n5")
        await self._until(
            "n5 is replaced", lambda image: _rests(image) and not any("n5" in p.replicas for p in _partitions(image))
        )
        await self._liftpy("node", "remove", "n5", "--timeout", "30")

    async def _close_logs(self) -> None:
        """Stop publishing, wait until all replicas are whole and have committed all, stop, and compare their files."""
        for load in self._loads:
            await load.pause()
        assert self._others is not None
        await self._others.check(self._size.deadline_s)
        self.outcome.wrong += self._others.wrong
        self._show(f"{self._others.unknown} publishes of the client's had no answer")
        if self._others.batches:
            self._show(f"Spark's batches: {', '.join(map(str, self._others.batches))} records")
        image = await self._until("all are in sync", lambda now: all(set(p.isr) == set(p.replicas) for p in _partitions(now)))
        await self._equal(image)
        await self._check_apps(self._reader[0])
        partitions = _partitions(image)
        data = Path(self._cluster.data)
        for node in self._cluster.nodes.values():
            node.interrupt()
        for partition, load in zip(partitions, self._loads, strict=True):
            folders = {
                node: partition_folder(data, node, STREAM, self._uid).with_name(str(partition.partition))
                for node in partition.replicas
            }
            self._expect(len(folders) == 3, f"partition {partition.partition} lies on {sorted(folders)}")
            self.outcome.verdicts[partition.partition] = check(load.acked, folders)

    async def _check_apps(self, reader: asyncio.Task[None]) -> None:
        """The bank has every cent; the reader has the whole partition."""
        if self._bank is not None:
            await self._bank.check(self._size.deadline_s)
            self.outcome.wrong += self._bank.wrong
            self._show(
                f"the bank answered {self._bank.answered} deposits, one after {self._bank.longest_s:.2f} s at the latest; "
                f"{self._bank.restarts} services were started again"
            )
        end = (await self.client.bounds(STREAM, 0)).high_watermark + 1
        async with asyncio.timeout(self._size.deadline_s):
            while len(self._read) < end and not reader.done():
                await asyncio.sleep(_POLL_S)
        if reader.done():
            await reader
        held = [record.value async for record in self.client.consume(STREAM, 0, start="earliest", until="end")]
        self._expect(held == self._read, "the reader did not read what partition 0 holds")

    # ---- helpers -----------------------------------------------------------------------------------------------------
    async def _phase(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        began = time.monotonic()
        self._beheaded = set()
        async with asyncio.timeout(2 * self._size.deadline_s):
            await step()
        now = time.monotonic()
        await asyncio.gather(*(load.acked_since(now, self._size.deadline_s) for load in self._loads))
        took = sorted(a.acked_at - a.sent_at for load in self._loads for a in load.acked if began <= a.sent_at <= now)
        if self._bank is not None:
            await self._bank.answered_more(1, self._size.deadline_s)
        if self._others is not None:
            await self._others.batch()
        phase = Phase(
            name=name,
            took_s=now - began,
            acks=len(took),
            longest_gap_s=self._longest_gap_s(set(range(len(self._loads))) - self._beheaded, began, now),
            killed_gap_s=self._longest_gap_s(self._beheaded, began, now),
            p50_s=_quantile(took, 0.5),
            p99_s=_quantile(took, 0.99),
        )
        self.outcome.phases.append(phase)
        beheaded = f" ({phase.killed_gap_s:.2f} s where the leader was killed)" if self._beheaded else ""
        unknown = f", {self._others.unknown} publishes had no answer so far" if self._others and self._others.unknown else ""
        self._show(
            f"{phase.name}: {phase.took_s:.1f} s, {phase.acks} acks, longest gap {phase.longest_gap_s:.2f} s{beheaded}, "
            f"p50 {1000 * phase.p50_s:.1f} ms, p99 {1000 * phase.p99_s:.1f} ms{unknown}"
        )

    def _longest_gap_s(self, partitions: set[int], began: float, ended: float) -> float:
        return max((self._loads[number].longest_gap_s(began, ended) for number in partitions), default=0.0)

    async def _liftpy(self, *words: str) -> Any:
        command = [*_LIFTPY, *words, "--json", "--nats", self._cluster.nats_url]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        out, err = await process.communicate()
        assert process.returncode == 0, f"liftpy {' '.join(words)}: {err.decode()[-800:]}"
        return json.loads(out)

    async def _until(self, what: str, holds: Callable[[ClusterImage], bool]) -> ClusterImage:
        give_up_at = time.monotonic() + self._size.deadline_s
        while True:
            image = (await self.client.admin.describe_cluster()).image
            if holds(image):
                return image
            assert time.monotonic() < give_up_at, f"{what}: not after {self._size.deadline_s:g} s: {_short(image)}"
            await asyncio.sleep(_POLL_S)

    async def _equal(self, image: ClusterImage) -> None:
        """Wait until every replica says the same newest offset and HW as its leader."""
        give_up_at = time.monotonic() + self._size.deadline_s
        while True:
            said: dict[int, set[tuple[int, int]]] = {}
            for node in sorted({n for p in _partitions(image) for n in p.replicas}):
                for p in (await self.client.admin.node_status(node))["partitions"]:
                    if p["uid"] == self._uid:
                        said.setdefault(p["partition"], set()).add((p["newest_offset"], p["high_watermark"]))
            if said and all(len(ends) == 1 and all(new == hw for new, hw in ends) for ends in said.values()):
                return
            assert time.monotonic() < give_up_at, f"replicas differ: {said}"
            await asyncio.sleep(_POLL_S)

    def _holds(self, node: str) -> bool:
        """Whether its disk has a partition of the stream: evicted replicas are deleted a moment after the record."""
        give_up_at = time.monotonic() + 30
        folder = partition_folder(Path(self._cluster.data), node, STREAM, self._uid).parent
        while time.monotonic() < give_up_at:
            if not folder.exists() or not any(folder.glob("*/*.log")):
                return False
            time.sleep(_POLL_S)
        return True

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:
            self.outcome.wrong.append(text)


def _turned(nodes: Sequence[str], number: int) -> tuple[str, ...]:
    start = number % len(nodes)
    return (*nodes[start:], *nodes[:start])


def _partitions(image: ClusterImage) -> Sequence[Any]:
    return image.streams[STREAM].partitions


def _all_partitions(image: ClusterImage) -> Iterator[Any]:
    return (p for stream in image.streams.values() for p in stream.partitions)


def _rests(image: ClusterImage) -> bool:
    return not any(p.target or p.joining for p in _all_partitions(image))


def _quantile(values: Sequence[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def _short(image: ClusterImage) -> str:
    return "; ".join(
        f"{p.partition}: {p.status.name} {p.leader} {'/'.join(p.replicas)} isr {'/'.join(p.isr)} to {'/'.join(p.target)} +{p.joining}"
        for p in _partitions(image)
        if p.target or p.joining or set(p.isr) != set(p.replicas)
    )[:1500]
