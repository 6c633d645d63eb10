"""Ways to publish."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any, ClassVar

import nats.errors

from liftpy.client import ProducerOptions
from liftpy.errors import LiftError, PublishRejectedError
from tests.pairs.feature import Feature
from tests.pairs.model import WRITING_ERRORS, Outcome, Sent
from tests.pairs.world import World

_OPTIONS: dict[str, Any] = {"attempt_s": 0.3, "patience_s": 6.0}


class PlainNats(Feature):
    """A NATS client publishes without a reply subject: each record is stored once, or lost."""

    name, kind = "plain-nats", "producers"

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.cluster.nats() as connection:
            for _ in range(15):
                partition = rng.randrange(world.partitions)
                sent = world.new("nats", rng)
                sent.outcome = Outcome.UNKNOWN
                await connection.publish(world.data_subject(partition), sent.value or b"")
            with contextlib.suppress(nats.errors.FlushTimeoutError):  # the NATS server restarts: the records are lost or stored
                await connection.flush()


class JetStreamHeaders(Feature):
    """A JetStream client publishes with message ids, and is answered in its form."""

    name, kind = "jetstream", "producers"

    async def act(self, world: World, rng: random.Random) -> None:
        async with world.cluster.nats() as connection:
            for _ in range(8):
                partition = rng.randrange(world.partitions)
                sent = world.new("js", rng)
                for _ in range(3):
                    if await self._publish(world, connection, sent, partition):
                        break

    async def _publish(self, world: World, connection: Any, sent: Sent, partition: int) -> bool:
        """Whether it was answered; a client that is not may send it again under its id."""
        headers = {"Nats-Msg-Id": sent.id, "Nats-Expected-Stream": world.stream}
        if world.config.optimistic_concurrency:
            headers["Nats-Expected-Last-Sequence"] = str((await world.client.bounds(world.stream, partition)).end_offset)
        uid = world.uid
        try:
            answer = await connection.request(world.data_subject(partition), sent.value, timeout=0.5, headers=headers)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError, nats.errors.Error):
            sent.outcome = Outcome.UNKNOWN
            if world.uid != uid:
                sent.uids.add(world.uid)
            return False
        told = json.loads(answer.data)
        if "seq" in told:
            world.model.acked(sent, partition, told["seq"] - 1)
        elif sent.outcome is Outcome.OPEN:
            sent.outcome, sent.why = Outcome.REJECTED, str(told)
        return True


class IdempotentProducer(Feature):
    """A producer under an id sends each record once and in order; sometimes another process goes on under its id."""

    name, kind = "producer", "producers"

    def __init__(self) -> None:
        self._acked: dict[tuple[str, int], int] = {}
        """(uid, partition) -> how many were acknowledged."""

    async def act(self, world: World, rng: random.Random) -> None:
        world.model.ordered_writers.add("producer")
        uid, sents = world.uid, list[Sent]()
        try:
            async with world.client.producer(world.stream, id="till", options=ProducerOptions(**_OPTIONS)) as producer:
                self._look(world, uid, producer)
                receipts = []
                for _ in range(rng.randint(5, 25)):
                    sent = world.new("producer", rng, key=world.a_key(rng))
                    sents.append(sent)
                    receipts.append(await producer.send(sent.value, key=sent.key))
                    if rng.random() < 0.2:
                        await asyncio.sleep(0)
                for sent, receipt in zip(sents, receipts, strict=False):
                    ack = await receipt
                    world.model.acked(sent, ack.partition, ack.offset)
                    at = uid, ack.partition
                    self._acked[at] = self._acked.get(at, 0) + 1
        except WRITING_ERRORS as error:
            _failed(world, uid, sents, error)

    async def check(self, world: World) -> None:
        async with world.client.producer(world.stream, id="till", options=ProducerOptions(**_OPTIONS)) as producer:
            self._look(world, world.uid, producer)

    def _look(self, world: World, uid: str, producer: Any) -> None:
        """A process that resumes is told of all records that were acknowledged."""
        if uid != world.uid:
            return
        for partition in range(producer.partitions):
            known, acked = producer.next_sequence(partition), self._acked.get((uid, partition), 0)
            if known < acked:
                world.model.violate(f"producer: {acked} were acknowledged in partition {partition}, it resumes at {known}")


def _failed(world: World, uid: str, sents: list[Sent], error: LiftError) -> None:
    """No other process uses the id of this producer, and it sends the same records: it may not be fenced, nor called diverged."""
    world.model.unanswered(sents)
    mistaken = isinstance(error, PublishRejectedError) and error.reason in ("PRODUCER_FENCED", "DIVERGED_PRODUCER")
    if mistaken and world.is_same(uid):
        world.model.violate(f"a lone producer was refused: {error}")


class Repeat(Feature):
    """A producer sends all its records again each time it is opened (begin="repeat"); each is stored once."""

    name, kind = "repeat", "producers"

    def __init__(self) -> None:
        self._sents: list[Sent] = []
        self._uid = ""
        self._keyless: bool | None = None

    async def act(self, world: World, rng: random.Random) -> None:
        if self._uid != world.uid:
            self._uid, self._sents = world.uid, []  # as a new job for a new stream
        uid = world.uid
        if self._keyless is None:
            self._keyless = rng.random() < 0.4
        keys = [None if self._keyless else world.a_key(rng) for _ in range(rng.randint(3, 12))]
        self._sents += [world.new("repeat", rng, key=key) for key in keys]
        options = ProducerOptions(begin="repeat", **_OPTIONS)
        try:
            async with world.client.producer(world.stream, id="job", options=options) as producer:
                receipts = [await producer.send(sent.value, key=sent.key) for sent in self._sents]
                for sent, receipt in zip(self._sents, receipts, strict=True):
                    ack = await receipt
                    if ack.offset >= 0 and world.is_same(uid):
                        world.model.acked(sent, ack.partition, ack.offset)
        except WRITING_ERRORS as error:
            _failed(world, uid, self._sents, error)


class Conditional(Feature):
    """A record is stored only behind the one that its writer has seen last."""

    name, kind = "conditional", "producers"
    settings: ClassVar = {"optimistic_concurrency": True}

    async def act(self, world: World, rng: random.Random) -> None:
        for _ in range(6):
            partition = rng.randrange(world.partitions)
            uid = world.uid
            last = (await world.client.bounds(world.stream, partition)).end_offset - 1
            wrong = rng.random() < 0.3
            expected = last - 1 if wrong and last >= 0 else last
            sent = world.new("conditional", rng)
            await world.publish(sent, partition, expected_last=expected)
            acked = sent.outcome is Outcome.ACKED and world.is_same(uid) and sent.uids == {uid}
            if acked and sent.offset != expected + 1:
                world.model.violate(f"{sent.id} was to be stored behind {expected}, and was at {sent.offset}")


FEATURES: tuple[type[Feature], ...] = (PlainNats, JetStreamHeaders, IdempotentProducer, Repeat, Conditional)
