"""Builds the result of a decision: records and a response.

The counters that a decision used become one CountersMoved record, so that no value is used twice [C2].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from liftpy.core.base.partition import PartitionState
from liftpy.core.base.purge import without_completed
from liftpy.core.metadata.codec import PARTITION, STREAM
from liftpy.core.metadata.features import FEATURES, Feature
from liftpy.core.metadata.idempotency import Operation
from liftpy.core.metadata.image import ClusterImage, ClusterRules, Counters, NodeImage, StreamImage
from liftpy.core.metadata.records import CountersMoved, NodeChanged, PartitionStateChanged, Record
from liftpy.core.wire._pb import cluster_pb2 as pb

MAX_DETAIL_LENGTH = 600
"""Maximum length of a rejection's detail, in characters."""


class Decision(NamedTuple):
    """Result of a request: the records to replay in order, and the answer."""

    records: tuple[Record, ...]
    response: pb.ControlResponse


def refuse(error: pb.ControlResponse.Error, detail: str, partition: PartitionState | None = None) -> Decision:
    """Return a rejection without records. ``partition``: current state to include in the answer. None: none."""
    if len(detail) > MAX_DETAIL_LENGTH:  # what was asked for is repeated in it: all controllers keep the answer for a while
        detail = f"{detail[:MAX_DETAIL_LENGTH]}…({len(detail)} characters)"
    response = pb.ControlResponse(error=error, detail=detail)
    if partition is not None:
        response.partition.CopyFrom(PARTITION.to_pb(partition))
    return Decision((), response)


def repeated_answer(image: ClusterImage, done: Operation) -> bytes:
    """Return the stored answer of the operation ``done``, for a repeated request. It has the current state of its stream."""
    response = pb.ControlResponse.FromString(done.response)
    stream = image.streams.get(response.stream.name) if response.HasField("stream") else None
    if stream is None or stream.uid != response.stream.uid:
        return done.response
    response.stream.CopyFrom(STREAM.to_pb(stream))
    return response.SerializeToString(deterministic=True)


class RejectedError(Exception):
    """Raised by a decision to reject its request. ``deciding_on`` returns the rejection."""

    def __init__(self, error: pb.ControlResponse.Error, detail: str, partition: PartitionState | None = None) -> None:
        super().__init__(detail)
        self.decision = refuse(error, detail, partition)


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of a controller that it uses when it applies requests.

    A new metadata group stores ``namespace`` and ``elections`` in its image. Later, controllers use the stored values of these two.
    """

    namespace: str = "liftpy"
    elections: bool = False
    features: tuple[Feature, ...] = FEATURES
    """Feature levels that this version supports. The level of the image decides, never this value."""

    @property
    def stored_rules(self) -> ClusterRules:
        return ClusterRules(self.namespace, self.elections)


class RecordBuilder:
    """Collects the records of one decision, and assigns unique numbers from the counters of the image."""

    def __init__(self, image: ClusterImage, now_ns: int, rules: Rules) -> None:
        self.image = image
        self.now_ns = now_ns
        self.features = rules.features
        self.rules: ClusterRules = image.rules or rules.stored_rules
        self.records: list[Record] = []
        counters = image.counters
        self._incarnation = counters.next_incarnation
        self._stream_uid = counters.next_stream_uid
        self._leader_epoch = counters.next_leader_epoch
        self._epoch = counters.next_epoch
        self.placement_index = counters.placement_index
        """Start index of the next round-robin placement."""
        self._nodes: dict[str, NodeImage] = {}
        self._appointed: dict[str, int] = {}

    def next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation - 1

    def next_stream_uid(self) -> str:
        """Return a new unique stream id. It contains the time, so that ids of other clusters differ."""
        self._stream_uid += 1
        return f"{self._stream_uid - 1:06x}-{self.now_ns // 1_000_000:x}"

    def next_leader_epochs(self, count: int = 1) -> int:
        self._leader_epoch += count
        return self._leader_epoch - count

    def skip_leader_epochs(self, first: int) -> None:
        """Assign only LeaderEpochs from ``first`` on from now on. The counter never falls."""
        self._leader_epoch = max(self._leader_epoch, first)

    def next_epochs(self, count: int = 1) -> int:
        self._epoch += count
        return self._epoch - count

    def needs_entry(self) -> None:
        """Called by a decision that must be logged even if it changes nothing, because its entry is an event."""

    def takes_long(self) -> None:
        """Called by a decision that needs many steps. A trial decision on the metadata leader ends at this call."""

    def add(self, record: Record) -> None:
        self.records.append(record)
        if isinstance(record, NodeChanged):
            self._nodes[record.node.node_id] = record.node

    def node(self, node_id: str) -> NodeImage | None:
        """Return the node as it is after the records so far. None: it does not exist."""
        return self._nodes.get(node_id) or self.image.nodes.get(node_id)

    def is_live(self, node_id: str) -> bool:
        node = self.node(node_id)
        return node is not None and not node.fenced

    def leader_count(self, node_id: str) -> int:
        """Return how many partitions the node leads or will lead, by the image and this decision."""
        return self.image.leader_counts.get(node_id, 0) + self._appointed.get(node_id, 0)

    def count_leader(self, node_id: str) -> None:
        """Count ``node_id`` as leader of one more partition, so that the next choice of this decision considers it."""
        self._appointed[node_id] = self._appointed.get(node_id, 0) + 1

    def change(self, stream: StreamImage, partition: PartitionState) -> PartitionState:
        """Record ``partition`` as the new state of a partition of ``stream``, with a new Epoch. Return the recorded state."""
        old = stream.partitions[partition.partition]
        begins = bool(partition.leader) and (partition.leader, partition.leader_epoch) != (old.leader, old.leader_epoch)
        changed = replace(
            without_completed(partition),
            epoch=self.next_epochs(),
            last_leader=partition.leader or partition.last_leader,
            leaderships=old.leaderships + begins,
        )
        self.add(PartitionStateChanged(stream.name, stream.uid, changed))
        return changed

    # ---- lookups. They raise RejectedError if the image has no such thing -----------------------------------------------
    def find_stream(self, name: str, uid: str) -> StreamImage:
        """Return the stream with this name and uid. A uid of '' matches any stream."""
        held = self.image.streams.get(name)
        if held is None or uid not in ("", held.uid):
            detail = f"there is no stream {name!r}" + (f" of the id {uid!r}" if held is not None else "")
            raise RejectedError(pb.ControlResponse.NOT_FOUND, detail)
        return held

    def find_partition(self, request: Any, ending: str = "") -> tuple[StreamImage, PartitionState]:
        """Return the partition that the fields stream, uid and partition of ``request`` name, with its stream.

        ``ending``: end of the rejection's text, '' for the usual one.
        """
        found = self.image.find(request.stream, request.uid, request.partition)
        if found is None:
            ending = ending or f"of stream {request.uid or 'of that name'}"
            raise RejectedError(
                pb.ControlResponse.NOT_FOUND, f"there is no partition {request.stream}/{request.partition} {ending}"
            )
        return found

    def find_process(self, node_id: str, incarnation: int) -> NodeImage:
        """Return the node, if ``incarnation`` is its current one."""
        node = self.image.nodes.get(node_id)
        if node is None:
            raise RejectedError(pb.ControlResponse.NOT_FOUND, f"there is no node {node_id!r}")
        if node.incarnation != incarnation:
            detail = f"node {node_id!r} is incarnation {node.incarnation} now, not {incarnation}"
            raise RejectedError(pb.ControlResponse.FENCED, detail)
        return node

    # ---- results ---------------------------------------------------------------------------------------------------------
    def store(self, stream: StreamImage, partition: PartitionState) -> Decision:
        """Record the new state of a partition of ``stream``, unless it is the old one. Return the decision, which answers with it."""
        if partition != stream.partitions[partition.partition]:
            partition = self.change(stream, partition)
        return self.done(pb.ControlResponse(partition=PARTITION.to_pb(partition)))

    def done(self, response: pb.ControlResponse | None = None) -> Decision:
        """Return the decision with all records. ``response``: its answer, None for OK."""
        counters = Counters(self._incarnation, self._stream_uid, self._leader_epoch, self._epoch, self.placement_index)
        if counters != self.image.counters:
            self.add(CountersMoved(counters))
        return Decision(tuple(self.records), response or pb.ControlResponse())
