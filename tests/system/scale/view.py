"""The metadata as somebody outside sees it: an image that follows the feed, and the group's term from what its members log.

Nothing is asked of the nodes while they are measured.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from itertools import islice

import nats
from nats.aio.client import Client as NatsConnection

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire.subjects import Subjects
from sidecar.metadata.feed import FeedSubscriber

_POLL_S = 0.05
_PUBLISH_TIMEOUT_S = 2.0
_LEADS = re.compile(r"metadata leader elected node=(\S+) term=(\d+)")


class View:
    """``open`` it when the cluster is up."""

    def __init__(self) -> None:
        self._connection: NatsConnection
        self._publishing: NatsConnection
        """Publishes as an application does: its answers come where those for nodes do not."""
        self._feed: FeedSubscriber
        self.term = 0
        self.terms_led: list[int] = []
        self.metadata_leader = ""

    def line(self, line: str) -> None:
        """A line of a node's log: it may tell of a new metadata leader."""
        if found := _LEADS.search(line):
            self.terms_led.append(int(found[2]))
            if self.terms_led[-1] > self.term:
                self.metadata_leader, self.term = found[1], self.terms_led[-1]

    async def open(self, url: str, namespace: str) -> None:
        """Connect and follow."""
        self._connection = await nats.connect(url, inbox_prefix=Subjects(namespace).inbox("observer"))
        self._publishing = await nats.connect(url)
        self._feed = FeedSubscriber("observer", self._connection, Subjects(namespace))
        await self._feed.start()

    async def close(self) -> None:
        """Follow no more."""
        await self._feed.stop()
        await self._connection.close()
        await self._publishing.close()

    @property
    def image(self) -> ClusterImage:
        """The newest image that the feed has shown."""
        return self._feed.image

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for it; raise TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"not within {timeout_s:g} s: {self.summary()}")
            await asyncio.sleep(_POLL_S)

    def summary(self) -> str:
        """For people: how many partitions are in which state."""
        counts: dict[str, int] = {}
        for stream in self.image.streams.values():
            for partition in stream.partitions:
                whole = "whole" if len(partition.isr) == len(partition.replicas) else "short"
                key = f"{partition.status.name} {whole}"
                counts[key] = counts.get(key, 0) + 1
        return f"{counts}, term {self.term}, index {self.image.index}, live {self.image.live_nodes()}"

    def incarnations(self) -> dict[str, int]:
        """Of every node."""
        return {node_id: node.incarnation for node_id, node in self.image.nodes.items()}

    def led_by(self, node_id: str) -> list[str]:
        """Streams and partitions that the node leads."""
        return [
            f"{stream.name}/{partition.partition}"
            for stream in self.image.streams.values()
            for partition in stream.partitions
            if partition.leader == node_id
        ]

    def led_without(self, gone: set[str]) -> bool:
        """Whether every partition has a leader, none of them ``gone``."""
        return all(
            partition.status is PartitionStatus.ONLINE and partition.leader not in gone
            for stream in self.image.streams.values()
            for partition in stream.partitions
        )

    def led_anew(self, before: dict[str, int]) -> bool:
        """Whether every partition is led by a process that began after those of ``before``."""
        nodes = self.image.nodes
        anew = {n for n, node in nodes.items() if not node.fenced and node.incarnation > before.get(n, 0)}
        return all(
            partition.status is PartitionStatus.ONLINE and partition.leader in anew
            for stream in self.image.streams.values()
            for partition in stream.partitions
        )

    def whole(self) -> bool:
        """Whether every partition is led and all its replicas are in sync."""
        return all(
            partition.status is PartitionStatus.ONLINE and len(partition.isr) == len(partition.replicas)
            for stream in self.image.streams.values()
            for partition in stream.partitions
        )

    def subjects(self) -> list[str]:
        """The data subject of every partition."""
        return [
            stream.subject + (f".{partition.partition}" if partition.partition else "")
            for name, stream in sorted(self.image.streams.items())
            for partition in stream.partitions
        ]

    async def publish_to_some(self, subjects: list[str], count: int, timeout_s: float) -> int:
        """One acknowledged publish to each of ``count`` partitions; return how many did not answer the first time."""
        chosen = list(islice(subjects, 0, None, max(1, len(subjects) // count)))
        late = 0
        deadline = time.monotonic() + timeout_s
        for subject in chosen:
            attempts = 0
            while True:
                try:
                    answer = await self._publishing.request(subject, b"x", timeout=_PUBLISH_TIMEOUT_S)
                    if b"error" not in answer.data:
                        break
                except (TimeoutError, nats.errors.Error):
                    pass
                attempts += 1
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody acknowledges on {subject}")
                await asyncio.sleep(_POLL_S)
            late += attempts > 0
        return late
