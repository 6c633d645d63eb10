"""Clients of a simulated history, and the model of their answers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from liftpy.config import AckPolicy
from liftpy.errors import LiftError
from tests.simulation.world.machine.scheduler import NS_PER_S, Scheduler
from tests.simulation.world.world import World

T = TypeVar("T")
_OVERDUE_S = 60.0
"""Maximum duration of a client's call, in seconds: twice its longest documented patience."""
Place = tuple[str, int]
"""A stream and a partition of it."""


@dataclass
class Call:
    """One pending call of a client."""

    what: str
    began_s: float


@dataclass
class Model:
    """Answers that clients have got."""

    scheduler: Scheduler
    acked: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    """Offset -> value: an acknowledgement has named it."""
    leader_acked: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    """Messages with an ack of the leader alone. A failover may lose them."""
    seen: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    """A reader was given it."""
    once: set[bytes] = field(default_factory=set)
    """Values that were sent under a message id: each is stored once at most."""
    may_repeat: set[str] = field(default_factory=set)
    """Streams that may have a value twice, because their writer retries without a message id."""
    rejected: dict[Place, set[bytes]] = field(default_factory=dict)
    """Values that a leader has rejected or must not store."""
    deleted_below: dict[Place, int] = field(default_factory=dict)
    """Offset below which an operator may have deleted records."""
    may_shrink: set[Place] = field(default_factory=set)
    """Partitions whose oldest records retention deletes."""
    calls: dict[int, Call] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    requests_done: dict[tuple[str, str], int] = field(default_factory=dict)
    """(Kind, stream) of an acknowledged request that each stream gets once -> metadata index before the request."""
    may_lose: bool = False
    """The cluster has lost more than its replicas allow."""

    async def call(self, what: str, work: Awaitable[T]) -> T | None:
        """Await a call of a client; None where it has raised one of liftpy's errors. Any other error is a violation."""
        number = self.scheduler.next_number()
        self.calls[number] = Call(what, self.scheduler.passed_s)
        try:
            result = await work
        except LiftError as error:
            self.answers[f"{what}: {type(error).__name__}"] += 1
            self.scheduler.trace("answer", what, type(error).__name__)
            return None
        except Exception as error:
            self.scheduler.violated(f"{what} has raised {error!r}, which is no error of liftpy")
            return None
        finally:
            took_s = self.scheduler.passed_s - self.calls.pop(number).began_s
            if took_s > _OVERDUE_S:
                self.scheduler.violated(f"{what} took {took_s:.1f} s")
        self.answers[f"{what}: done"] += 1
        return result

    def acknowledge(self, place: Place, offset: int, value: bytes, policy: AckPolicy) -> None:
        """Note an ack: ``value`` is at ``offset``."""
        known = self.acked if policy is AckPolicy.ALL else self.leader_acked
        before = known.setdefault(place, {}).setdefault(offset, value)
        self.scheduler.trace("acked", *place, offset)
        self.scheduler.counters["acks"] += 1
        if before != value and policy is AckPolicy.ALL and not self.may_lose:
            self.scheduler.violated(f"{place}: two records were acknowledged at offset {offset}: {before!r} and {value!r}")

    def read(self, place: Place, offset: int, value: bytes) -> None:
        """A reader was given a record: committed records never change."""
        before = self.seen.setdefault(place, {}).setdefault(offset, value)
        promised = self.acked.get(place, {}).get(offset, value)
        if not self.may_lose and (before != value or promised != value):
            self.scheduler.violated(f"{place}: offset {offset} was {before!r}, promised {promised!r}, and is {value!r}")

    def check_overdue(self) -> None:
        """Check at the end that no call waits forever."""
        for call in self.calls.values():
            self.scheduler.violated(f"{call.what} began at {call.began_s:.1f} s and was never answered")


class Clients:
    """Publishers, readers and an operator, each in its own process."""

    def __init__(self, world: World, model: Model, streams: list[tuple[str, str, int]]) -> None:
        self.world = world
        self.model = model
        self.streams = streams
        """(name, subject, partitions)"""
        self.stopping = False
        self.running = 0
        self._draws = random.Random(f"clients {world.seed} {world.profile.name}")

    def start(self) -> None:
        """Start all clients."""
        world = self.world
        for number in range(2):
            self.begin(f"publisher{number + 1}", self._publish(f"p{number + 1}", random.Random(self._draws.random())))
        self.begin("reader", self._read(random.Random(self._draws.random())))
        self.begin("operator", self._operate(random.Random(self._draws.random())))
        world.scheduler.trace("clients start")

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start one more client in its own process."""
        self.running += 1

        async def run() -> None:
            try:
                await work
            finally:
                self.running -= 1

        self.world.run_in(self.world.client_process(name), run)

    async def connect(self) -> Any:
        """Connect, and retry until a server accepts."""
        while True:
            client = await self.model.call("connect", self.world.connect())
            if client is not None:
                return client
            await asyncio.sleep(0.5)

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not longer than until the clients have to stop."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while not self.stopping and loop.time() < end_s:
            await asyncio.sleep(min(0.5, end_s - loop.time()))

    # ---- publishers ------------------------------------------------------------------------------------------------------
    async def _publish(self, name: str, draw: random.Random) -> None:
        client = await self.connect()
        number = 0
        sizes = (1, 1, 1, 2, 5, 20)
        while not self.stopping:
            stream, _, partitions = draw.choice(self.streams)
            place = stream, draw.randrange(partitions)
            burst = []
            for _ in range(draw.choice(sizes)):
                number += 1
                value = b"%s-%d-%s" % (name.encode(), number, b"x" * draw.choice((0, 10, 200)))
                burst.append(self._publish_one(client, place, value, draw))
            await asyncio.gather(*burst)
            await asyncio.sleep(draw.random() * 0.4)
        await client.close()

    async def _publish_one(self, client: Any, place: Place, value: bytes, draw: random.Random) -> None:
        policy = draw.choice((AckPolicy.ALL,) * 6 + (AckPolicy.LEADER, AckPolicy.NONE))
        has_id = policy is AckPolicy.ALL
        if has_id:
            self.model.once.add(value)
        work = client.publish(place[0], value, partition=place[1], ack=policy, timeout_s=draw.choice((2.0, 10.0, 30.0)))
        ack = await self.model.call(f"publish {policy.name}", work)
        if ack is not None:
            self.model.acknowledge(place, ack.offset, value, policy)

    # ---- readers ---------------------------------------------------------------------------------------------------------
    async def _read(self, draw: random.Random) -> None:
        client = await self.connect()
        parts = [(name, number) for name, _, partitions in self.streams for number in range(partitions)]
        while not self.stopping:
            place = draw.choice(parts)
            until = draw.choice(("end", "end", None))
            await self.model.call("consume", self._consume(client, place, until, draw.random() * 3))
            await asyncio.sleep(draw.random() * 0.3)
        await client.close()

    async def _consume(self, client: Any, place: Place, until: str | None, within_s: float) -> None:
        last = None
        try:
            async with asyncio.timeout(within_s if until is None else None):
                async for record in client.consume(*place, start="earliest", until=until):
                    if last is not None and record.offset != last + 1:
                        self.world.scheduler.violated(f"{place}: a reader was given offset {record.offset} behind {last}")
                    last = record.offset
                    self.model.read(place, record.offset, record.value)
                    if self.stopping:
                        break
        except TimeoutError:
            if until is not None:
                raise

    # ---- an operator -----------------------------------------------------------------------------------------------------
    async def _operate(self, draw: random.Random) -> None:
        client = await self.connect()
        number = 0
        while not self.stopping:
            await asyncio.sleep(draw.random() * 2)
            stream, _, partitions = draw.choice(self.streams)
            what = draw.randrange(9 if self.world.profile.changes_controllers else 7)
            if what == 0:
                await self.model.call("describe", client.admin.describe_cluster(linearizable=draw.random() < 0.5))
            elif what == 1:
                await self.model.call("bounds", client.bounds(stream, draw.randrange(partitions)))
            elif what == 2:
                await self.model.call("elect", client.admin.elect_leader(stream, draw.randrange(partitions)))
            elif what == 3:
                # clocks differ by 2 h at most, so a right node never deletes a record by these ages
                await self.model.call(
                    "alter", client.admin.alter_stream(stream, retention_age_s=draw.choice((0.0, 10_800.0, 21_600.0)))
                )
            elif what == 4:
                number += 1
                await self._create_and_delete(client, f"extra{number}", deletes=draw.random() < 0.7)
            elif what == 5:
                await self.model.call("list", client.admin.list_streams())
            elif what == 6:
                await self.model.call("pause", self._pause_and_resume(client, stream, draw.randrange(partitions)))
            else:
                await self.model.call("controllers", self._change_controllers(client, draw))
        await client.close()

    async def _create_and_delete(self, client: Any, name: str, *, deletes: bool) -> None:
        before = self._metadata_index()
        made = await self.model.call("create", client.create_stream(name, f"extra.{name}", partitions=2, ready_s=0))
        if made is None:
            return
        self.model.requests_done["createStream", name] = before
        if deletes:
            await self.model.call("delete", self._delete(client, name))

    async def _delete(self, client: Any, name: str) -> None:
        before = self._metadata_index()
        await client.admin.delete_stream(name)
        self.model.requests_done["deleteStream", name] = before

    def _metadata_index(self) -> int:
        """Return the highest index of the metadata log that a running node has applied."""
        groups = [one.node.group for one in self.world.nodes if one.node is not None]
        return max((group.image.index for group in groups if group is not None), default=0)

    async def _change_controllers(self, client: Any, draw: random.Random) -> None:
        """Add a controller, or remove one of more than three."""
        now = await client.admin.controller_ids()
        others = [node.name for node in self.world.nodes if node.name not in now]
        if len(now) > 3 or not others:
            await client.admin.change_controllers(remove=draw.choice(now))
        else:
            added = draw.choice(others)
            if draw.random() < 0.3:  # it cannot start as controller until there is space
                disk = next(node.disk for node in self.world.nodes if node.name == added)
                disk.is_full = True
                self.world.scheduler.after(3 * NS_PER_S, disk.heal)
            await client.admin.change_controllers(add=added)

    async def _pause_and_resume(self, client: Any, stream: str, partition: int) -> None:
        try:
            await client.admin.pause(stream, [partition])
        finally:
            for _ in range(100):
                try:
                    await client.admin.resume(stream, [partition])
                except LiftError:
                    await asyncio.sleep(0.3)
                else:
                    break
