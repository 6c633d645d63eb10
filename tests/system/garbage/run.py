"""One run: the load, the garbage, the watch, and what is compared in the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from liftpy.client import Client, ReadOptions, connect
from liftpy.core.wire.subjects import SERVER_CONNECTIONS, Subjects
from liftpy.errors import ClientClosedError, LiftError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.parser import StrictConnection
from sidecar.dev.cluster import DevCluster
from tests.system.garbage.floods import FLOODS, QUIET, QUIET_DATA, Flood
from tests.system.garbage.making import Maker, Overheard, Said
from tests.system.garbage.targets import Place, matches, targets
from tests.system.loaded.__main__ import waited_s

STREAM, DATA = "garbage", "data.garbage"
PARTITIONS = 2
MAX_RSS_GROWTH_MIB = 96
"""Of one node, while it lasts and load is the same: from what it holds when the load has run for a while."""
MAX_LINES_PER_S = 36
"""Of one node: each forged change of the feed that takes a partition from it costs four lines (error, stopped, opened, follower), for
each of three partitions, up to three times a second seen. A line for each of thousands of frames is what this is to find."""
MAX_ACK_GAP_S = 3.0
MAX_WAITED = 0.3
"""Share of a window of ``WINDOW_S`` that a node, or the publisher, may wait for a core. Above it the machine has too few cores:
sessions and leases end, by right, also without a flood."""
WINDOW_S = 2.0
STARVED_FOR_S = 10.0
"""After the start of such a window what it caused is over: a session ends after 2 s, a lagging replica leaves the ISR after 5 s, an
election follows. A change of a leader, an ISR or a term and a late ack are wrong at any other time. All else is always judged."""
_PUBLISHERS = 4
_CHECK_INTERVAL_S = 0.25
_BLOCK = 50
_WARM_ACKS = 2_000
_DEADLINE_S = 60.0
_PATIENCE_S = 600.0


@dataclass
class Outcome:
    """What came of it."""

    frames: int = 0
    seconds: float = 0.0
    made: dict[str, int] = field(default_factory=dict)
    by_row: dict[str, int] = field(default_factory=dict)
    """Row of the table of subjects -> frames."""
    cut_off: dict[str, int] = field(default_factory=dict)
    """Why the server has cut the garbage off, and how often."""
    missed: list[str] = field(default_factory=list)
    """What a node listens to, and no garbage went there."""
    ended: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    leaderships: set[tuple[int, str, int]] = field(default_factory=set)
    """(partition, leader, LeaderEpoch) that were seen in any node's view."""
    isr_sizes: set[int] = field(default_factory=set)
    epochs: set[tuple[int, int]] = field(default_factory=set)
    terms: set[int] = field(default_factory=set)
    acked: int = 0
    lost: int = 0
    """Acknowledged, and not on the replica that holds the fewest."""
    read: int = 0
    """Records that the reader got while it lasted."""
    reader_failed: str = ""
    ack_p50_ms: tuple[float, float] = (0.0, 0.0)
    """(before, while it lasted)."""
    described: int = 0
    """Nodes and streams that the cluster described in the end."""
    failed_publishes: list[str] = field(default_factory=list)
    longest_ack_gap_s: float = 0.0
    replicas_differ: bool = False
    records: int = 0
    waited: float = 0.0
    """Share of the time while it lasted in which a node could have run and no core was free for it: of the one that waited most."""
    changes: list[tuple[float, str]] = field(default_factory=list)
    """(seconds since the garbage began, what was seen for the first time, or what was late)."""
    starved: list[tuple[float, float]] = field(default_factory=list)
    """Windows in which a node waited for a core for more than ``MAX_WAITED`` of the time: (begin, end) in seconds."""
    rss_mib: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Node -> (before, most)."""
    refused: dict[str, int] = field(default_factory=dict)
    """Reason -> count, of all nodes."""
    log_lines: int = 0
    most_lines_in_a_second: int = 0
    said: dict[str, int] = field(default_factory=dict)

    def unexplained(self) -> list[tuple[float, str]]:
        """Changes that were not seen in or behind a window in which a node was starved."""
        return [
            (at, what)
            for at, what in self.changes
            if not any(begin <= at <= begin + STARVED_FOR_S for begin, _ in self.starved)
        ]

    def wrong(self) -> list[str]:
        """What must not be, for people; empty: all is well."""
        grown = {node: most - before for node, (before, most) in self.rss_mib.items() if most - before > MAX_RSS_GROWTH_MIB}
        unexplained = self.unexplained()
        checks = {
            f"nodes have ended: {self.ended}": self.ended,
            f"nodes have begun anew: {self.restarted}": self.restarted,
            f"subjects without garbage: {self.missed}": self.missed,
            f"changes while no node was starved: {unexplained}, of {self.changes} in all": unexplained,
            "nobody saw a leader of each partition": len({number for number, _, _ in self.leaderships}) != PARTITIONS,
            "nobody saw a metadata term": not self.terms,
            f"{self.lost} of {self.acked} acknowledged records are lost": self.lost or not self.acked,
            f"{len(self.failed_publishes)} publishes failed": self.failed_publishes,
            "the replicas differ": self.replicas_differ,
            "nothing was read": not self.read,
            f"the reader failed: {self.reader_failed}": self.reader_failed,
            f"memory grew: {grown} MiB": grown,
            "nothing was refused": not self.by_row.keys() & FLOODS.keys() and not sum(self.refused.values()),
            "the cluster does not describe itself": not self.described,
            f"{self.most_lines_in_a_second} lines in a second": self.most_lines_in_a_second > MAX_LINES_PER_S
            and "streams" not in self.by_row,  # each says who leads it
        }
        return [text for text, is_wrong in checks.items() if is_wrong]

    def text(self) -> str:
        """As JSON."""
        return json.dumps({k: sorted(v) if isinstance(v, set) else v for k, v in asdict(self).items()})


class Run:
    """``rows``: only on these rows' subjects; ``began`` is called when the garbage begins. ``floods``: those
    in the place of garbage, one after the other, each with how many frames."""

    def __init__(
        self,
        cluster: DevCluster,
        count: int,
        per_s: int,
        seed: int,
        rows: frozenset[str],
        began: Callable[[], None],
        floods: Mapping[str, int] | None = None,
    ) -> None:
        self._floods = floods or {}
        self._latencies_ms: tuple[list[float], list[float]] = ([], [])
        self._cluster = cluster
        self._count, self._per_s = count, per_s
        self._rng = random.Random(seed)
        self._rows = rows
        self._began = began
        self._heard = Overheard()
        self._place = Place(Subjects(cluster.namespace), tuple(cluster.nodes), STREAM, DATA, PARTITIONS)
        self._out = Outcome()
        self._acked: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        self._acked_at = 0.0
        self._sent_to: set[str] = set()
        self._ended = asyncio.Event()
        self._started = 0.0
        self._looks = 0
        """How often the cluster was looked at while the load ran."""

    async def run(self) -> Outcome:
        """Load, garbage, comparison."""
        out = self._out
        async with await connect(self._cluster.nats_url, self._cluster.namespace) as client:
            await client.create_stream(STREAM, DATA, partitions=PARTITIONS)
            if self._floods:
                await client.create_stream(QUIET, QUIET_DATA)
            nc = StrictConnection(Counter())  # nats-py's own would not stand what is said here
            await nc.connect(self._cluster.nats_url)
            await self._whole(client)
            await nc.subscribe(f"{self._cluster.namespace}.>", cb=self._overhear)
            await nc.subscribe(f"{DATA}.>", cb=self._overhear)
            await nc.subscribe(DATA, cb=self._overhear)
            work = [self._publish(client, number) for number in range(_PUBLISHERS)] + [self._read(client)]
            tasks = [asyncio.create_task(each) for each in work]
            warming, waited = time.monotonic(), self._waited_s()
            await self._until(lambda: sum(map(len, self._acked.values())) >= _WARM_ACKS, "the load runs")
            before = await self._starts(client)
            out.rss_mib = {name: (rss, rss) for name, rss in self._rss().items()}
            self._began()
            started = self._started = self._acked_at = time.monotonic()
            _, waited = self._close_window(warming, waited)
            watch = asyncio.create_task(self._watch(client))
            for name, size in self._floods.items():
                await self._pour(FLOODS[name], size)
            if not self._floods:
                out.missed = await self._unknown(nc)
                await self._send(nc.max_payload)
            out.seconds = round(time.monotonic() - started, 1)
            looked = self._looks
            await self._until(lambda: self._looks >= looked + 2, "what the last frames did has been looked at")
            lasted = time.monotonic() - started
            out.waited = round(max(total - waited.get(name, 0.0) for name, total in self._waited_s().items()) / lasted, 2)
            self._ended.set()
            await asyncio.gather(*tasks[:_PUBLISHERS])
            await watch
            await end_tasks(tasks)
            p50s = [round(statistics.median(found), 2) if found else 0.0 for found in self._latencies_ms]
            out.ack_p50_ms = p50s[0], p50s[1]
            state = await client.admin.describe_cluster()
            out.described = len(state.image.nodes) + len(state.image.streams)
            after = await self._starts(client)
            out.restarted = [name for name in before if before[name] != after.get(name)]
            await self._compare(client)
            await self._sum_up(client)
            await nc.close()
        return out

    # ---- the load ------------------------------------------------------------------------------------------------------
    async def _publish(self, client: Client, number: int) -> None:
        partition, count = number % PARTITIONS, 0
        while not self._ended.is_set():
            value = b"%d %d " % (number, count) + b"v" * 100
            began = time.monotonic()
            try:
                await client.publish(STREAM, value, partition=partition)
            except LiftError as error:
                self._out.failed_publishes.append(f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(0.1)
                continue
            now = time.monotonic()
            self._latencies_ms[bool(self._acked_at)].append((now - began) * 1000)
            if self._acked_at:
                gap_s, self._acked_at = now - self._acked_at, now
                self._out.longest_ack_gap_s = max(self._out.longest_ack_gap_s, round(gap_s, 2))
                if gap_s > MAX_ACK_GAP_S:
                    self._changed(f"no ack for {gap_s:.1f} s")
            self._acked[partition].append(value)
            count += 1

    async def _read(self, client: Client) -> None:
        try:
            async for _ in client.consume(STREAM):
                self._out.read += 1
        except ClientClosedError:
            pass
        except LiftError as error:
            self._out.reader_failed = f"{type(error).__name__}: {error}"

    # ---- what is overheard, and said ---------------------------------------------------------------------------------
    async def _overhear(self, message: Any) -> None:
        self._heard.hear(self._row(message.subject), Said(message.subject, message.reply, message.data))

    def _row(self, subject: str) -> str:
        tokens = subject.split(".")
        if subject.startswith(DATA):
            return "data_subject"
        match tokens[1:]:
            case [_, _, "replicate"]:
                return "replicate"
            case [_, _, "offset"]:
                return "offset"
            case [_, _, "read"]:
                return "read"
            case [_, _, "read", _]:
                return "read_from"
            case ["feed", "snapshot"]:
                return "feed_snapshot"
            case ["control", door, *_]:
                return f"control_{door}"
            case [first, *_] if first in ("info", "notify", "raft", "feed", "inbox", "status", "service"):
                return first
        return ""

    async def _unknown(self, nc: Any) -> list[str]:
        """What nodes listen to, as nats-server says, and the table has no subject for."""
        question = json.dumps({"subscriptions": True, "limit": 1024}).encode()
        answer = json.loads((await nc.request(SERVER_CONNECTIONS, question, timeout=5)).data)["data"]
        listened = {
            subject
            for connection in answer["connections"]
            if connection.get("name", "").startswith("liftpy-n")
            for subject in connection.get("subscriptions_list", ())
        }
        assert listened, f"the server names no subscriptions: {str(answer)[:500]}"
        known = [subject for row in targets(self._place).values() for subject in row]
        known += [f"{subject}.1.2" for subject in targets(self._place)["inbox"]]
        known += [f"{subject}.1" for subject in targets(self._place)["inbox"]]
        return sorted(pattern for pattern in listened if not self._is_meant(pattern, known))

    def _is_meant(self, pattern: str, known: list[str]) -> bool:
        inbox = tuple(f"{subject}." for subject in targets(self._place)["inbox"])
        return pattern.startswith(inbox) or any(matches(pattern, subject) for subject in known)

    async def _pour(self, flood: Flood, count: int) -> None:
        assert self._cluster.nats is not None
        link, began, sent = Link(self._cluster.nats.port), time.monotonic(), 0
        frames = flood.make(self._place)
        while sent < count:
            block = list(itertools.islice(frames, min(_BLOCK, count - sent)))
            await asyncio.wait_for(link.send(block), _DEADLINE_S)
            sent += len(block)
            await asyncio.sleep(max(0.0, began + sent / self._per_s - time.monotonic()))
        await link.close()
        self._out.frames += sent
        self._out.by_row[flood.name] = sent
        self._out.cut_off |= link.cut_off

    async def _send(self, max_payload: int) -> None:
        assert self._cluster.nats is not None
        places = [
            (row, s) for row, subjects in targets(self._place).items() for s in subjects if not self._rows or row in self._rows
        ]
        maker = Maker(self._rng, self._place, self._heard, max_payload)
        by_row: Counter[str] = Counter()
        link, began = Link(self._cluster.nats.port), time.monotonic()
        while by_row.total() < self._count:
            made = []
            for _ in range(_BLOCK):
                row, subject = places[by_row.total() % len(places)]
                made.append(maker.frame(row, subject))
                by_row[row] += 1
            await asyncio.wait_for(link.send(made), _DEADLINE_S)
            await asyncio.sleep(max(0.0, began + by_row.total() / self._per_s - time.monotonic()))
        await link.close()
        self._out.frames, self._out.by_row, self._out.made = by_row.total(), dict(by_row), dict(maker.made)
        self._out.cut_off = link.cut_off

    # ---- the watch -----------------------------------------------------------------------------------------------------
    async def _watch(self, client: Client) -> None:
        out = self._out
        begin, waited = time.monotonic(), self._waited_s()
        while not self._ended.is_set():
            for name, rss in self._rss().items():
                before, most = out.rss_mib[name]
                out.rss_mib[name] = before, max(most, rss)
            if time.monotonic() >= begin + WINDOW_S:
                begin, waited = self._close_window(begin, waited)
            for report in await self._reports(client):
                for partition in self._of_stream(report):
                    self._see(partition)
            with contextlib.suppress(LiftError):
                terms = {c.term for c in (await client.admin.describe_cluster()).controllers}
                if terms - out.terms and len(out.terms | terms) > 1:
                    self._changed(f"metadata terms {sorted(out.terms)}, then {sorted(terms)}")
                out.terms |= terms
            self._looks += 1
            await asyncio.sleep(_CHECK_INTERVAL_S)
        self._close_window(begin, waited)

    def _close_window(self, begin: float, waited: dict[str, float]) -> tuple[float, dict[str, float]]:
        """Note the window as starved where a node waited too long for a core; return the begin of the next one."""
        now, total = time.monotonic(), self._waited_s()
        if any(total[name] - waited.get(name, 0.0) > MAX_WAITED * (now - begin) for name in total):
            self._out.starved.append((round(begin - self._started, 1), round(now - self._started, 1)))
        return now, total

    def _see(self, partition: dict[str, Any]) -> None:
        """One report of one partition."""
        out, number = self._out, partition["partition"]
        leadership, epoch = (number, partition["leader"], partition["leader_epoch"]), (number, partition["epoch"])
        if leadership not in out.leaderships and number in {known for known, _, _ in out.leaderships}:
            self._changed(f"leader of {number}: {leadership[1:]}")
        if epoch not in out.epochs and number in {known for known, _ in out.epochs}:
            self._changed(f"epoch of {number}: {epoch[1]}, ISR {partition['isr']}")
        elif len(partition["isr"]) != 3 and not out.isr_sizes & {len(partition["isr"])}:
            self._changed(f"ISR of {number}: {partition['isr']}")
        out.leaderships.add(leadership)
        out.epochs.add(epoch)
        out.isr_sizes.add(len(partition["isr"]))

    def _changed(self, what: str) -> None:
        self._out.changes.append((round(time.monotonic() - self._started, 1), what))

    def _of_stream(self, report: dict[str, Any]) -> list[dict[str, Any]]:
        return [p for p in report["partitions"] if p["stream"] == STREAM]

    async def _reports(self, client: Client) -> list[dict[str, Any]]:
        found = await asyncio.gather(
            *(client.admin.node_status(node, 5.0) for node in self._cluster.nodes), return_exceptions=True
        )
        return [report for report in found if isinstance(report, dict)]

    async def _starts(self, client: Client) -> dict[str, int]:
        return {report["node"]: report["incarnation"] for report in await self._reports(client)}

    def _waited_s(self) -> dict[str, float]:
        """Of each node, and of this process: it publishes, and a late turn of it is a late ack."""
        nodes = {name: waited_s(node.pid) for name, node in self._cluster.nodes.items() if node.running}
        return {**nodes, "publisher": waited_s(os.getpid())}

    def _rss(self) -> dict[str, int]:
        return {name: _rss_mib(node.pid) for name, node in self._cluster.nodes.items() if node.running}

    async def _whole(self, client: Client) -> None:
        async def whole() -> bool:
            found = [p for report in await self._reports(client) for p in self._of_stream(report)]
            return len(found) == 3 * PARTITIONS and all(p["leader"] and len(p["isr"]) == 3 for p in found)

        deadline = time.monotonic() + _DEADLINE_S
        while not await whole():
            assert time.monotonic() < deadline, "the stream is not led and followed by all"
            await asyncio.sleep(0.1)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"timed out: {what}"
            await asyncio.sleep(0.05)

    # ---- the comparison ------------------------------------------------------------------------------------------------
    async def _compare(self, client: Client) -> None:
        out = self._out
        stream = await client.stream(STREAM)
        out.acked = sum(map(len, self._acked.values()))
        for partition in stream.partitions:
            await self._settled(client, partition.partition)
            end = (await client.bounds(STREAM, partition.partition)).high_watermark + 1
            held = [await self._held(client, partition.partition, node, end) for node in partition.replicas]
            out.records += end
            out.replicas_differ |= any(each != held[0] for each in held)
            out.lost += max((Counter(self._acked[partition.partition]) - Counter(v for _, v in each)).total() for each in held)

    async def _settled(self, client: Client, partition: int) -> None:
        found: list[dict[str, Any]] = []

        async def equal() -> bool:
            found[:] = [p for r in await self._reports(client) for p in self._of_stream(r) if p["partition"] == partition]
            return len(found) == 3 and len({(p["newest_offset"], p["high_watermark"]) for p in found}) == 1

        deadline = time.monotonic() + _DEADLINE_S
        while not await equal():
            assert time.monotonic() < deadline, f"the replicas of partition {partition} don't get level: {found}"
            await asyncio.sleep(0.1)

    async def _held(self, client: Client, partition: int, node: str, end: int) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) below ``end`` on one node."""
        found: list[tuple[bytes | None, bytes | None]] = []
        async for part in client.read_range(STREAM, partition, 0, end, options=ReadOptions(node=node)):
            found += [(record.key, record.value) for record in part.records()]
        return found

    async def _sum_up(self, client: Client) -> None:
        refused: Counter[str] = Counter()
        for report in await self._reports(client):
            refused.update(report["refused"])
        self._out.refused = dict(sorted(refused.items()))


class Link:
    """A connection that says anything. Where the server cuts it off, it comes back. ``login``: what it says of itself besides."""

    def __init__(self, port: int, **login: str) -> None:
        self._port = port
        self._hello = json.dumps(
            {"verbose": False, "headers": True, "no_responders": True, "name": "garbage", **login}
        ).encode()
        self.denied = 0
        """Publishes that its user has no permission for."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.cut_off: Counter[str] = Counter()

    async def send(self, commands: list[bytes]) -> None:
        """Return when the server has taken them, or has cut the connection off."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
            self._streams[1].write(b"CONNECT %b\r\n" % self._hello)
        reader, writer = self._streams
        why = "reset"
        try:
            for each in commands:
                writer.write(each)
            writer.write(b"PING\r\n")
            await writer.drain()
            while (line := await reader.readline()) != b"PONG\r\n":
                if not line:
                    raise ConnectionError
                if line.startswith(b"-ERR 'Permissions Violation"):
                    self.denied += 1
                elif line.startswith(b"-ERR"):
                    why = line.decode().strip()
        except ConnectionError:
            self.cut_off[why] += 1
            await self.close()

    async def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _rss_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")), 0)
