"""Producers whose messages reach the real ingest of nodes in memory, or are lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from liftpy.client.encode_publish import Address
from liftpy.client.partition_sender import ProducerOptions
from liftpy.client.producer import Partitioner, Producer
from liftpy.config import AckPolicy
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import (
    ClientClosedError,
)
from liftpy.nats.transport import RequestTimeoutError
from tests.unit.publish.batches import Bench

PATIENT: dict[str, Any] = {"attempt_s": 0.05, "patience_s": 30.0}


class Wire:
    """A replacement of Transport. Each publish is stored and committed by the ingest immediately."""

    max_payload_bytes = 64 * 1024

    def __init__(self, partitions: int = 1) -> None:
        self.sinks: dict[str, Any] = {}
        self.nodes = [Bench(partition=partition) for partition in range(partitions)]
        self.counters: Counter[str] = Counter()
        self.connection = SimpleNamespace(new_inbox=lambda: f"_INBOX.me{len(self.sinks)}")
        self.reconnected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.loses: Callable[[], bool] = lambda: False
        """Whether the next publish, or the next answer, is lost."""
        self.commits = True
        self.answers_as: Callable[[client_pb2.Ack], client_pb2.Ack | None] = lambda ack: ack
        self.denied: Any = None
        self.closed: Any = None
        self.usable = True
        self.published = 0
        self.unwatched = list[str]()
        self.left = 0
        self.asked = 0

    def must_be_usable(self) -> None:
        if not self.usable:
            raise ClientClosedError("The client is closed. Open a new client.")

    def check_event_loop(self) -> None:
        pass

    def check_server(self) -> None:
        pass

    def on_denial(self, callback: Any) -> Any:
        self.denied = callback
        return lambda: self.unwatched.append("denials")

    def on_close(self, callback: Any) -> Any:
        self.closed = callback
        return lambda: self.unwatched.append("close")

    async def listen(self, subject: str, callback: Any, timeout_s: float) -> Any:
        self.sinks[subject.removesuffix(".*")] = callback

        async def unsubscribe() -> None:
            self.left += 1

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def exchange(self, subject: str, payload: bytes, timeout_s: float) -> Any:
        self.asked += 1
        if self.loses():
            raise RequestTimeoutError("lost")
        (answer,) = [data for reply, data in self.through(subject, payload, "_INBOX.asked") if reply == "_INBOX.asked"]
        return SimpleNamespace(subject="_INBOX.asked", data=answer, headers=None)

    async def publish(self, subject: str, payload: bytes, reply: str = "", *, give_up_at: float) -> None:
        await asyncio.sleep(0)
        self.published += 1
        if not self.loses():
            for to, data in self.through(subject, payload, reply):
                self.deliver(to, data)

    def through(self, subject: str, payload: bytes, reply: str) -> list[tuple[str, bytes]]:
        node = self.nodes[int(subject.rpartition(".")[2])]
        node.arrive((reply.encode(), payload, b""))
        if self.commits:
            self.commit(node)
        lines, node.lines = node.lines, []
        found = []
        for line in lines:
            head, _, rest = line.partition(b"\r\n")
            found.append((head.split()[1].decode(), rest[:-2]))
        return found

    @staticmethod
    def commit(node: Bench) -> None:
        node.acks.release(AckPolicy.ALL, node.end - 1, 3, 0)

    def deliver(self, reply: str, data: bytes) -> None:
        answer = self.answers_as(frames.decode(data, client_pb2.Ack))
        if answer is not None and not self.loses():
            message = SimpleNamespace(subject=reply, data=frames.encode(answer), headers=None)
            sink = self.sinks[reply.rpartition(".")[0]]
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(sink(message)))

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [value for batch in self.nodes[partition].batches for value in batch.values()]

    def another_leader(self, partition: int = 0) -> None:
        """Change to a leader that has the whole log but no producer epochs of its predecessor."""
        ingest = self.nodes[partition].ingest
        ingest.stop()
        ingest.start()


async def a_producer(
    wire: Wire, name: str = "p", partitioner: Partitioner = "key", find: Any = None, uid: str = "u1", **options: Any
) -> Producer:
    async def found(partition: int, newest: bool) -> Address:
        return Address(f"ev.{partition}", uid)

    addresses = [Address(f"ev.{partition}", uid) for partition in range(len(wire.nodes))]
    made = Producer(wire, "s", name, addresses, ProducerOptions(**PATIENT | options), partitioner, find or found)  # type: ignore[arg-type]
    await made.open()
    return made
