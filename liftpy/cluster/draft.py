"""A decision in the making: takes from the counters, collects records, ends as (records, response).

Shared by the decisions of every family. It reads an image and never changes one; the counters it took from become one
CountersMoved record at the end, so that nothing that an entry used can be used again [C2].
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from liftpy.cluster.codec import partition_to_pb
from liftpy.cluster.image import ClusterImage, PartitionImage, StreamImage
from liftpy.cluster.records import CountersMoved, PartitionChanged, Record
from liftpy.wire._pb import cluster_pb2 as pb


class Decision(NamedTuple):
    """What a request does: records to replay, in order, and the answer to the caller."""

    records: tuple[Record, ...]
    response: pb.ControlResponse


def refuse(error: pb.ControlResponse.Error, detail: str, partition: PartitionImage | None = None) -> Decision:
    """Nothing is changed; the caller is told why, and with ``partition`` the state as it is."""
    response = pb.ControlResponse(error=error, detail=detail)
    if partition is not None:
        response.partition.CopyFrom(partition_to_pb(partition))
    return Decision((), response)


class Draft:
    """One decision's records so far, and the counters as they will be after it."""

    def __init__(self, image: ClusterImage, now_ns: int) -> None:
        self.image = image
        self.now_ns = now_ns
        self.counters = image.counters
        self.records: list[Record] = []

    def next_incarnation(self) -> int:
        """A number that no process of any node has had."""
        taken = self.counters.next_incarnation
        self.counters = replace(self.counters, next_incarnation=taken + 1)
        return taken

    def next_stream_uid(self) -> str:
        """An id that no stream has had. The time keeps it apart from those of another cluster whose folders are found."""
        taken = self.counters.next_stream_uid
        self.counters = replace(self.counters, next_stream_uid=taken + 1)
        return f"{taken:06x}-{self.now_ns // 1_000_000:x}"

    def next_leader_epochs(self, count: int = 1) -> int:
        """The first of ``count`` LeaderEpochs that nobody has had."""
        taken = self.counters.next_leader_epoch
        self.counters = replace(self.counters, next_leader_epoch=taken + count)
        return taken

    def next_epochs(self, count: int = 1) -> int:
        """The first of ``count`` Epochs that nobody has had."""
        taken = self.counters.next_epoch
        self.counters = replace(self.counters, next_epoch=taken + count)
        return taken

    def add(self, record: Record) -> None:
        """Append a record."""
        self.records.append(record)

    def change(self, stream: StreamImage, partition: PartitionImage) -> PartitionImage:
        """Record ``partition`` as the new state of its place in ``stream``, in a new Epoch; return it as recorded."""
        changed = replace(partition, epoch=self.next_epochs())
        self.add(PartitionChanged(stream.name, stream.uid, changed))
        return changed

    def done(self, response: pb.ControlResponse | None = None) -> Decision:
        """The decision; without ``response`` a plain OK."""
        if self.counters != self.image.counters:
            self.add(CountersMoved(self.counters))
        return Decision(tuple(self.records), response or pb.ControlResponse())
