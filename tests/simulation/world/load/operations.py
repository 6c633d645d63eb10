"""Streams with more features, the operations on them, and what must be true afterwards.

``keyed`` is compacted, and keys of it are purged. ``moved`` gets partitions, its replicas move, and its oldest records are deleted.
``plain`` gets publishes without reply subject, also in bursts, and standby followers buffer them. Some calls ask a node everything
that a status page asks.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

from liftpy.client import Client
from liftpy.config import AckPolicy, FlushPolicy, StreamConfig
from liftpy.errors import LiftError
from tests.simulation.world.load.clients import Clients, Model
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.profiles import ACTIONS
from tests.simulation.world.world import World

KEYED, MOVED, PLAIN = ("keyed", "keyed.x", 1), ("moved", "moved.x", 2), ("plain", "plain.x", 1)
_KEYS = [b"k%d" % number for number in range(12)]
_MOST_PARTITIONS = 4
_WITHIN_S = 60.0
_QUESTIONS: tuple[tuple[str, Any], ...] = (
    ("partitions", {}),
    ("partitions", {"stream": "moved", "limit": 1}),
    ("streams", {}),
    ("streams", {"stream": "orders"}),
    ("groups", {}),
    ("groups", {"group": "readers"}),
    ("services", {}),
    ("history", {"step": 1}),
    ("metrics", {}),
    ("settings", {}),
    ("events", {"after": [0, 0], "since_ns": 0, "count": 50}),
    ("node_events", {"after": -1, "since_ns": 0}),
)
"""Kind and content of the questions of a status page."""
_DRAWN_ACTIONS = (*ACTIONS, "move", "transfer", "ask_page")
_OF_CONTROLLERS = "events"
"""Kind of the question that a node answers only while it is a controller."""


class Operations:
    """The operator of the three streams, and their clients."""

    def __init__(self, world: World, model: Model, clients: Clients) -> None:
        self.world = world
        self.model = model
        self.clients = clients
        self.partitions = MOVED[2]
        """Number of partitions of ``moved`` that the metadata group has confirmed."""
        self._newest: dict[bytes, tuple[int, bytes]] = {}
        """Key -> offset and value of its newest acknowledged record."""
        self._purged: dict[bytes, int] = {}
        """Key -> offset below which a purge may have deleted its records."""
        self._number = 0

    @property
    def streams(self) -> list[tuple[str, str, int]]:
        """Streams whose replicas must be equal at the end."""
        return [(MOVED[0], MOVED[1], self.partitions), PLAIN]

    async def create(self, client: Client) -> None:
        """Create the streams."""
        flush = FlushPolicy.parse("interval:200ms") if self.world.profile.lazy_flush else FlushPolicy()
        configs = (
            (KEYED, StreamConfig(compaction=True, delete_retention_s=0.0, segment_bytes=4096, dedup_window_s=1.0)),
            (MOVED, StreamConfig(segment_bytes=4096)),
            (PLAIN, StreamConfig(failover_standby=True, segment_bytes=1 << 20, retention_bytes=4 << 20, flush=flush)),
        )
        for (name, subject, partitions), config in configs:
            await client.create_stream(name, subject, partitions=partitions, config=config)
        self.model.may_shrink.add((PLAIN[0], 0))

    def start(self) -> None:
        """Start the clients."""
        for name, work in (("keyed", self._publish_keys), ("moves", self._operate), ("plain", self._publish_plain)):
            self.clients.begin(name, self._repeat(work, random.Random(f"{name} {self.world.seed}")))

    async def _repeat(self, work: Any, draw: random.Random) -> None:
        client = await self.clients.connect()
        while not self.clients.stopping:
            await work(client, draw)
            await asyncio.sleep(draw.random())
        await client.close()

    # ---- publishers ------------------------------------------------------------------------------------------------------
    async def _publish_keys(self, client: Client, draw: random.Random) -> None:
        for _ in range(draw.choice((1, 5, 30))):
            if self.clients.stopping:
                return
            self._number += 1
            key = draw.choice(_KEYS)
            value = b"v-%d-%s" % (self._number, b"y" * draw.choice((1, 300)))
            ack = await self.model.call("publish key", client.publish(KEYED[0], value, key=key, timeout_s=10.0))
            if ack is not None:
                self._newest[key] = (ack.offset, value)
                self.world.scheduler.trace("acked", KEYED[0], ack.offset)
            place = MOVED[0], draw.randrange(self.partitions)
            sent = b"m-%d" % self._number
            self.model.once.add(sent)
            ack = await self.model.call("publish moved", client.publish(MOVED[0], sent, partition=place[1], timeout_s=10.0))
            if ack is not None:
                self.model.acknowledge(place, ack.offset, sent, AckPolicy.ALL)

    async def _publish_plain(self, client: Client, draw: random.Random) -> None:
        """Publish without reply subject: a few messages, or a burst that a node reads in a thread."""
        connection = client.transport.connection
        is_burst = draw.randrange(40) == 0
        for number in range(400 if is_burst else draw.choice((1, 20))):
            self._number += 1
            value = (b"p-%d-" % self._number).ljust(40_000 if is_burst else 50, b"z")
            if connection.is_connected:
                await connection.publish(PLAIN[1], value)
            if is_burst and number % 2:
                await asyncio.sleep(0.000_15)

    # ---- the operator ----------------------------------------------------------------------------------------------------
    async def _operate(self, client: Client, draw: random.Random) -> None:
        action = getattr(self, f"_{draw.choice(self.world.profile.actions or _DRAWN_ACTIONS)}")
        await self.model.call(action.__name__.strip("_").replace("_", " "), action(client, draw))

    def _partition(self, draw: random.Random) -> int:
        return draw.randrange(self.partitions)

    def _node(self, draw: random.Random) -> str:
        return draw.choice(self.world.nodes).name

    async def _move(self, client: Client, draw: random.Random) -> None:
        """Move the replicas of a partition, or cancel the move."""
        stream = await client.admin.stream(MOVED[0])
        names = [node.name for node in self.world.nodes]
        replicas = draw.sample(names, min(3, len(names))) if draw.random() < 0.8 else []
        await client.admin.reassign(stream, self._partition(draw), replicas)

    async def _transfer(self, client: Client, draw: random.Random) -> None:
        stream = draw.choice((KEYED, MOVED, PLAIN, ("orders", "", 2)))[0]
        await client.admin.elect_leader(stream, 0, self._node(draw))

    async def _add_partition(self, client: Client, draw: random.Random) -> None:
        wanted = min(self.partitions + 1, _MOST_PARTITIONS)
        await client.admin.add_partitions(MOVED[0], wanted, ready_s=0)
        self.partitions = max(self.partitions, wanted)

    async def _truncate(self, client: Client, draw: random.Random) -> None:
        """Delete the oldest records of a partition. Deleted ones need not be there at the end."""
        partition = self._partition(draw)
        bounds = await client.bounds(MOVED[0], partition)
        before = draw.randrange(bounds.log_start_offset, bounds.high_watermark + 2)
        place = MOVED[0], partition
        self.model.deleted_below[place] = max(self.model.deleted_below.get(place, 0), before)
        await client.admin.truncate_before(MOVED[0], partition, before)

    async def _purge(self, client: Client, draw: random.Random) -> None:
        key = draw.choice(_KEYS)
        self._purged[key] = 1 << 62
        end = await client.admin.purge(KEYED[0], 0, keys=[key])
        self._purged[key] = end  # no purge of this key is in progress, so a later record stays

    async def _alter(self, client: Client, draw: random.Random) -> None:
        await client.admin.alter_stream(PLAIN[0], segment_bytes=draw.choice((1 << 20, 4096 * 16)), max_per_subject=0)
        await client.admin.alter_stream(MOVED[0], 3, dry_run=True)

    async def _set_node(self, client: Client, draw: random.Random) -> None:
        """Drain a node and stop it again, or change its weight or rack."""
        node = self._node(draw)
        kind = draw.randrange(4)
        if kind == 0:
            try:
                await client.admin.set_node(node, leaving=True)
                await asyncio.sleep(draw.random() * 2)
            finally:
                await self._stop_drain(client, node)
        elif kind == 1:
            await client.admin.set_node(node, weight=draw.choice((0.5, 2.0)), rack=draw.choice(("", "r1")))
        elif kind == 2:
            await client.admin.reset_node(node, weight=True, rack=True)
        else:
            await client.admin.remove_node(node)  # rejected: it runs, or has replicas

    async def _stop_drain(self, client: Client, node: str) -> None:
        for _ in range(100):
            try:
                await client.admin.set_node(node, leaving=False)
            except LiftError:
                await asyncio.sleep(0.3)
            else:
                return

    async def _ask_page(self, client: Client, draw: random.Random) -> None:
        kind, content = draw.choice(_QUESTIONS)
        await client.admin.ask_node(self._node(draw), json.dumps({kind: content}).encode())
        await client.admin.node_glance(self._node(draw))

    async def _ask_events(self, client: Client, draw: random.Random) -> None:
        controllers = await client.admin.controller_ids()
        answer = await client.admin.cluster_events(draw.choice(controllers), (0, 0))
        places = [(event["index"], event["number"]) for event in answer.get("events", ())]
        if places != sorted(set(places)):
            self.world.scheduler.violated(f"the places of events do not rise: {places[-20:]}")
        await client.admin.node_events(self._node(draw))
        await client.admin.note_records_read(self._node(draw), MOVED[0], 0, "everything")

    async def _reload(self, client: Client, draw: random.Random) -> None:
        await client.admin.reload_settings(self._node(draw))

    async def _remove_data(self, client: Client, draw: random.Random) -> None:
        """Remove the data of streams that were deleted while a node was down, and ask for the removal of a stream that exists."""
        node = self._node(draw)
        unknown = (await client.admin.node_health(node)).get("unknown_streams") or []
        if unknown:
            await client.admin.remove_data(node, list(unknown)[:10])
        stream = await client.admin.stream(MOVED[0])
        await client.admin.remove_data(node, [f"{stream.name}-{stream.uid}"])

    async def _change_log_level(self, client: Client, draw: random.Random) -> None:
        """Change the log level to the one that it has."""
        await client.admin.node_log_level(self._node(draw), "info", for_s=1)

    async def _find(self, client: Client, draw: random.Random) -> None:
        """Read one key forwards and backwards: the newest is the last of the others."""
        key = draw.choice(_KEYS)
        forwards = [record async for record in client.consume(KEYED[0], until="end", keys=[key])]
        wrong = [record.key for record in forwards if record.key != key]
        if wrong:
            self.world.scheduler.violated(f"{KEYED[0]}: a reader of {key!r} was given {wrong[:5]}")
        async for record in client.consume(KEYED[0], backwards=True, keys=[key]):
            if forwards and record.offset < forwards[-1].offset and self._purged.get(key, 0) <= record.offset:
                self.world.scheduler.violated(f"{KEYED[0]}: {key!r} is at {record.offset}, and was at {forwards[-1].offset}")
            break
        await client.offset_at(MOVED[0], 0, time.time_ns() - 5 * NS_PER_S)

    async def _read_as_jetstream(self, client: Client, draw: random.Random) -> None:
        """Ask for a record by its sequence: the answer is the record that a reader was given, or an error."""
        seen = self.model.seen.get(("bills", 0))
        connection = client.transport.connection
        if not seen or not connection.is_connected:
            return
        offset = draw.choice(sorted(seen))
        try:
            answer = await connection.request("$JS.hub.API.DIRECT.GET.bills", b'{"seq":%d}' % (offset + 1), timeout=3)
        except Exception as error:  # a node died, or NATS lost the answer
            self.world.scheduler.trace("JetStream", type(error).__name__)
            return
        found = (answer.headers or {}).get("Nats-Sequence")
        if found is not None and (int(found) != offset + 1 or answer.data != seen[offset]):
            self.world.scheduler.violated(f"JetStream: {offset + 1} is {answer.data[:30]!r}, and was {seen[offset][:30]!r}")
        self.world.scheduler.counters["JetStream reads"] += found is not None

    async def _limits(self, client: Client, draw: random.Random) -> None:
        """Change limits of the whole cluster, to values that change nothing in a history."""
        await client.admin.set_default_quota(records_per_s=draw.choice((0, 1 << 20)))
        await client.admin.default_quota()
        await client.admin.feature_levels()
        await client.admin.describe_cluster(linearizable=True)

    # ---- the end ---------------------------------------------------------------------------------------------------------
    async def check(self) -> None:
        """Check the keys, and that each node answers each question."""
        async with self.world.connect() as client:
            await self._check_keys(client)
            await self._check_answers(client)
            for controller in await client.admin.controller_ids():
                answer = await client.admin.cluster_events(controller, (0, 0), timeout_s=10.0)
                if not isinstance(answer.get("events"), list):
                    self.world.scheduler.violated(f"{controller} answers a question for events with {answer}")

    async def _check_keys(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _WITHIN_S
        while True:
            wrong = "unread"
            try:
                wrong = await self._wrong_keys(client)
            except LiftError as error:
                wrong = repr(error)
            if not wrong:
                return
            if loop.time() >= end_s:
                self.world.scheduler.violated(f"{KEYED[0]} after {_WITHIN_S:g} s in a quiet cluster: {wrong}")
                return
            await asyncio.sleep(1)

    async def _wrong_keys(self, client: Client) -> str:
        """Return what is wrong: a lost newest record, a purged one that is still there, or a key that was not compacted.

        A clock that had jumped ahead has stored times to come. Message ids with such a time delay a purge by hours.
        """
        last: dict[bytes, Any] = {}
        count = 0
        times_are_true = not self.world.scheduler.counters["fault: clock-jump"]
        async for record in client.consume(KEYED[0], until="end"):
            last[record.key or b""] = record
            count += 1
            if times_are_true and record.offset < self._purged.get(record.key or b"", 0) < 1 << 62:
                return f"{record.key!r} at {record.offset} was purged below {self._purged[record.key or b'']}"
        for key, (offset, value) in self._newest.items():
            found = last.get(key)
            if offset < self._purged.get(key, 0):
                continue
            if found is None or found.offset < offset or (found.offset == offset and found.value != value):
                return f"{key!r} was acknowledged at {offset}, and is {found}"
        self.world.scheduler.counters["records of compacted streams"] += count
        return ""

    async def _check_answers(self, client: Client) -> None:
        for node in self.world.nodes:
            for kind, content in _QUESTIONS:
                wrong = await self._ask_until_right(client, node.name, kind, content)
                if wrong:
                    self.world.scheduler.violated(f"{node.name} answers {kind} {content} in a quiet cluster with {wrong}")

    async def _ask_until_right(self, client: Client, node: str, kind: str, content: Any) -> str:
        wrong = ""
        for _ in range(20):
            try:
                answer = await client.admin.ask_node(node, json.dumps({kind: content}).encode())
            except LiftError as error:
                wrong = repr(error)
            else:
                wrong = "" if answer.get(kind) is not None or kind == _OF_CONTROLLERS else str(answer)[:200]
                if not wrong and kind == "partitions":
                    wrong = self._wrong_rows(node, content, answer[kind])
            if not wrong:
                return ""
            await asyncio.sleep(0.5)
        return wrong

    def _wrong_rows(self, name: str, content: Any, answer: dict[str, Any]) -> str:
        """Return what is wrong with the list of partitions of a node, '' if it lists its replicas."""
        if content:
            return ""
        node = next(one for one in self.world.nodes if one.name == name)
        here = {
            (replica.key.stream, replica.key.partition)
            for program in node.programs
            if program.partitions is not None
            for replica in program.partitions
        }
        listed = {(row["stream"], row["partition"]) for row in answer["rows"] if row.get("role", "") != ""}
        return "" if here <= listed else f"without {sorted(here - listed)[:5]}"
