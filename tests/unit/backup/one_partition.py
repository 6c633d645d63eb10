"""A cluster of three replicas of one log, as far as a backup asks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.positions import Bounds
from liftpy.client.replica_reads import ReplicaUnavailableError
from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.batch import RecordBatch
from sidecar.backup import create
from tests.born import born_image
from tests.unit.backup.stored import UID, log_of

NODES = ("n1", "n2", "n3")


class Cluster:
    """A client of the cluster. Its stream ``orders`` has one partition with 80 records, ten in each batch.

    Attributes:
        log: Batches of each replica.
        start: Log start offset.
        purges: Pending purges of the partition.
        uid: Uid of the stream in answers about offsets.
        fails: Error of each request to a node, by its name.
        state: State of the producers of each replica, and its end offset.
        compacted_end: End of the compacted part of each replica.
        deletes_end: Offset below which each replica has deleted tombstones.
        known: Stream in the metadata of the cluster, if it has changed since the backup began.
        asked: Node and offset of each request for records.
    """

    transport = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[RecordBatch] = log_of(8)
        self.start = 0
        self.purges: tuple[Purge, ...] = ()
        self.uid = UID
        self.fails: dict[str, Exception] = {}
        self.state: tuple[int, bytes] | None = 0, b""
        self.compacted_end = self.deletes_end = 0
        self.known: StreamImage | None = None
        self.asked: list[tuple[str, int]] = []
        self.admin: Any = SimpleNamespace(describe_cluster=self._describe_cluster)
        self.groups: Any = SimpleNamespace(list=self._list_nothing)
        self.cursors: Any = SimpleNamespace(list=self._list_nothing)
        self.bounds: Callable[..., Any] = self._bounds
        monkeypatch.setattr(create, "ReplicaReads", lambda transport, subjects, address: self._reads(address.node))
        monkeypatch.setattr(create, "AGAIN_S", 0)

    @property
    def orders(self) -> StreamImage:
        state = PartitionState(partition=0, replicas=NODES, isr=NODES, leader="n1", leader_epoch=9, epoch=1, purges=self.purges)
        return StreamImage("orders", UID, "shop.orders", StreamConfig(), (state,))

    def move(self, uid: str, *nodes: str) -> None:
        """Put the replicas on ``nodes``. The others have no replica."""
        state = replace(self.orders.partitions[0], replicas=nodes, isr=nodes, leader=nodes[0])
        self.known = replace(self.orders, uid=uid, partitions=(state,))
        self.fails = {node: ReplicaUnavailableError("no replica here") for node in set(NODES) - set(nodes)}

    async def stream(self, name: str) -> Any:
        return SimpleNamespace(image=self.known or self.orders)

    async def _describe_cluster(self, *, linearizable: bool = False) -> Any:
        return SimpleNamespace(image=replace(born_image(), index=7).with_stream(self.orders))

    async def _list_nothing(self) -> list[str]:
        return []

    async def _bounds(self, stream: str, number: int) -> Bounds:
        return Bounds(self.uid, "n1", "n1", 9, log_start_offset=self.start, high_watermark=79)

    def _reads(self, node: str) -> Any:
        async def batches(offset: int) -> Any:
            self.asked.append((node, offset))
            if (fails := self.fails.get(node)) is not None:
                raise fails
            if offset < self.start:
                raise ReplicaUnavailableError("OFFSET_OUT_OF_RANGE: it begins later")
            reads.compacted_end, reads.deletes_end = self.compacted_end, self.deletes_end
            return [batch for batch in self.log if batch.next_offset > offset][:1], None

        async def state() -> tuple[int, bytes] | None:
            if (fails := self.fails.get(node)) is not None:
                raise fails
            return self.state

        reads = SimpleNamespace(batches=batches, state=state, compacted_end=0, deletes_end=0)
        return reads
