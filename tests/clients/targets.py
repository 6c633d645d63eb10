"""Where the clients publish to: a cluster of ours, or a JetStream cluster of three servers, behind the same few calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import nats

from liftpy.client import Client, connect
from sidecar.bench.systems import JetStream as JetStreamServers
from sidecar.dev.cluster import DevCluster


@dataclass(frozen=True, slots=True)
class Stored:
    """One record, as a reader finds it."""

    subject: str
    value: str
    headers: dict[str, str]


class Target(Protocol):
    """Stores streams. ``url``: where clients publish."""

    url: str

    async def create(self, stream: str, subject: str) -> None:
        """Three replicas on that subject, which may have wildcards; everything else as it comes."""

    async def stored(self, stream: str, seq: int) -> Stored:
        """The record of that sequence."""


class Ours:
    """A cluster of this project."""

    def __init__(self, url: str, client: Client) -> None:
        self.url = url
        self._client = client

    async def create(self, stream: str, subject: str) -> None:
        """See Target."""
        await self._client.create_stream(stream, subject)

    async def stored(self, stream: str, seq: int) -> Stored:
        """See Target."""
        async with asyncio.timeout(30):
            async for record in self._client.consume(stream, start=seq - 1, until=seq - 1):
                headers = {name: value.decode() for name, value in record.headers}
                return Stored(record.subject, (record.value or b"").decode(), headers)
        raise AssertionError(f"no record {seq} in {stream}")


class JetStream:
    """Real JetStream."""

    def __init__(self, cluster: JetStreamServers, connection: Any) -> None:
        self.url = f"nats://127.0.0.1:{cluster.port}"
        self._cluster = cluster
        self._js = connection.jetstream()

    async def create(self, stream: str, subject: str) -> None:
        """See Target."""
        await self._cluster.create(stream, subject)

    async def stored(self, stream: str, seq: int) -> Stored:
        """See Target."""
        message = await self._js.get_msg(stream, seq)
        return Stored(message.subject, message.data.decode(), dict(message.headers or {}))


@asynccontextmanager
async def ours() -> AsyncIterator[Ours]:
    """A cluster of three nodes, while it is used."""
    with DevCluster(3) as cluster:
        async with await connect(cluster.nats_url, cluster.namespace) as client:
            yield Ours(cluster.nats_url, client)


@asynccontextmanager
async def jetstream() -> AsyncIterator[JetStream]:
    """Three servers, while they are used."""
    with JetStreamServers(sync_always=False) as cluster:
        connection = await nats.connect(f"nats://127.0.0.1:{cluster.port}")
        yield JetStream(cluster, connection)
        await connection.close()
