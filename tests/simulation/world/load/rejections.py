"""Publishes that the leader must reject: above the limits of a stream, or with a wrong condition. And a quota that it must keep."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from liftpy.client import Client
from liftpy.config import AckPolicy, StreamConfig
from liftpy.errors import PublishRejectedError
from tests.simulation.world.load.clients import Clients, Model, Place
from tests.simulation.world.world import World

LIMITED, LIMITED_SUBJECT = "limits", "limits.x"
_MOST_MESSAGE_BYTES = 1_000
_QUOTA_PER_S = 30
_PLACE: Place = (LIMITED, 0)


async def create_limited(client: Client) -> None:
    """Create the stream with limits."""
    config = StreamConfig(segment_bytes=64 * 1024, max_message_bytes=_MOST_MESSAGE_BYTES, quota_records_per_s=_QUOTA_PER_S)
    await client.create_stream(LIMITED, LIMITED_SUBJECT, config=config)


class Rejections:
    """A publisher whose messages must be rejected, or must be the next record."""

    def __init__(self, world: World, model: Model, clients: Clients) -> None:
        self.world = world
        self.model = model
        self.clients = clients
        self._number = 0

    def start(self) -> None:
        """Start the publisher."""
        self.clients.begin("refused", self._run(random.Random(f"refusals {self.world.seed}")))

    async def _run(self, draw: random.Random) -> None:
        client = await self.clients.connect()
        kinds = (self._too_large, self._above_quota, self._on_condition, self._twice, self._without_reply)
        while not self.clients.stopping:
            await draw.choice(kinds)(client, draw)
            await asyncio.sleep(draw.random())
        await client.close()

    def _value(self, size_bytes: int = 0) -> bytes:
        self._number += 1
        return (b"r-%d-" % self._number).ljust(size_bytes, b"x")

    async def _publish(self, client: Client, value: bytes, what: str, **options: Any) -> Any:
        """Publish a value, note its ack, and return the ack, the reason of its rejection, or None."""
        self.model.once.add(value)
        self.model.rejected.setdefault(_PLACE, set()).discard(value)  # a second publish of a rejected value may be stored
        reason = ""

        async def work() -> Any:
            nonlocal reason
            try:
                return await client.publish(LIMITED, value, timeout_s=10.0, **options)
            except PublishRejectedError as error:
                reason = error.reason
                raise

        ack = await self.model.call(what, work())
        if ack is not None:
            self.model.acknowledge(_PLACE, ack.offset, value, AckPolicy.ALL)
        elif reason:
            self.model.rejected.setdefault(_PLACE, set()).add(value)
            self.model.answers[f"{what}: {reason}"] += 1
        return ack or reason or None

    async def _too_large(self, client: Client, draw: random.Random) -> None:
        size_bytes = draw.choice((_MOST_MESSAGE_BYTES // 2, _MOST_MESSAGE_BYTES + 1, 5_000))  # headers count, too
        answer = await self._publish(client, self._value(size_bytes), "publish large")
        if size_bytes > _MOST_MESSAGE_BYTES and answer is not None and answer != "TOO_LARGE":
            self.world.scheduler.violated(f"{size_bytes} bytes above the limit of the stream are answered with {answer}")
        if size_bytes <= _MOST_MESSAGE_BYTES and answer == "TOO_LARGE":
            self.world.scheduler.violated(f"{size_bytes} bytes are rejected as too large")

    async def _above_quota(self, client: Client, draw: random.Random) -> None:
        """Publish more at once than the quota of a second. The client retries what the leader defers."""
        count = draw.choice((5, 3 * _QUOTA_PER_S))
        began_s = self.world.scheduler.passed_s
        answers = await asyncio.gather(*(self._publish(client, self._value(), "publish above quota") for _ in range(count)))
        took_s = self.world.scheduler.passed_s - began_s
        stored = sum(answer is not None and not isinstance(answer, str) for answer in answers)
        if stored > _QUOTA_PER_S * (took_s + 2) * 1.2:
            self.world.scheduler.violated(f"{stored} records within {took_s:.2f} s, the quota is {_QUOTA_PER_S} per s")

    async def _on_condition(self, client: Client, draw: random.Random) -> None:
        known = max(self.model.acked.get(_PLACE, {}), default=-1)
        expected = known + draw.choice((0, 0, 0, 1_000_000, -1))
        if expected < -1:
            return
        ack = await self._publish(client, self._value(), "publish on condition", expected_last=expected)
        if ack is not None and not isinstance(ack, str) and ack.offset != expected + 1 and not self.model.may_lose:
            self.world.scheduler.violated(f"a publish behind {expected} was acknowledged at {ack.offset}")

    async def _twice(self, client: Client, draw: random.Random) -> None:
        """Publish one message id twice: both acks name one offset."""
        value, message_id = self._value(), f"twice-{self._number}"
        first = await self._publish(client, value, "publish twice", msg_id=message_id)
        second = await self._publish(client, value, "publish twice", msg_id=message_id)
        if all(ack is not None and not isinstance(ack, str) for ack in (first, second)) and first.offset != second.offset:
            self.world.scheduler.violated(f"one message id was acknowledged at {first.offset} and {second.offset}")

    async def _without_reply(self, client: Client, draw: random.Random) -> None:
        """Publish messages without reply subject. The leader may drop those above the quota, and stores no invalid one."""
        connection = client.transport.connection
        for _ in range(draw.choice((1, 50))):
            value = self._value(draw.choice((0, 5_000)))
            self.model.once.add(value)
            if len(value) > _MOST_MESSAGE_BYTES:
                self.model.rejected.setdefault(_PLACE, set()).add(value)
            if connection.is_connected:
                await connection.publish(LIMITED_SUBJECT, value)
