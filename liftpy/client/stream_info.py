"""``StreamInfo`` and ``PartitionInfo``: a stream and its partitions, as the metadata group describes them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from liftpy import renamed
from liftpy.config import StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState, PartitionStatus, Pause
from liftpy.core.metadata.image import StreamImage


def _values(kind: type, source: object) -> dict[str, Any]:
    """Return the fields of the dataclass ``kind`` that ``source`` has under the same names."""
    return {field.name: getattr(source, field.name) for field in fields(kind) if field.repr}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition of a stream. ``client.bounds`` returns its offsets.

    Attributes:
        partition: Number of the partition, from 0.
        leader: Id of the leader node. '': the partition has no leader now.
        leader_epoch: LeaderEpoch of the leader. It grows with each new leader.
        replicas: Ids of the replica nodes, preferred leader first.
        isr: Ids of the in-sync replicas, the leader included.
        target: Ids of the nodes that a reassignment moves the replicas to. Empty: no reassignment.
        status: State of the leadership.
        pause: Pause that an operator has set. Readers continue during a pause.
        state: Complete metadata, for other parts of liftpy. Its fields may change in any version.
    """

    partition: int
    leader: str
    leader_epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    target: tuple[str, ...]
    status: PartitionStatus
    pause: Pause
    state: PartitionState = field(repr=False)

    @classmethod
    def of(cls, state: PartitionState) -> Self:
        """Return the description of a partition.

        Args:
            state: The metadata of the partition.
        """
        return cls(**_values(cls, state), state=state)

    if not TYPE_CHECKING:  # mypy reports the old names

        def __getattr__(self, name: str) -> Any:
            return renamed.info_attribute(self, "state", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """One stream with its partitions, replicas and settings.

    Attributes:
        name: Name of the stream.
        uid: Unique id. A stream that is deleted and created again has another one.
        subject: NATS subject whose messages the stream stores. Partition N above 0 stores ``<subject>.N``.
        config: Settings.
        config_version: Version of the settings. It grows with each change.
        partitions: Partitions, by number. Empty while the stream waits for nodes.
        replication_factor: Requested number of replicas per partition. 0: as many as partition 0 has.
        waiting: Number of partitions that have no replicas yet, because there are too few nodes. 0: none.
        placement: Placement policy. '': the default policy.
        created_time_ns: Time of the creation, in nanoseconds since 1970.
        image: Complete metadata, for other parts of liftpy. Its fields may change in any version.

    Example:
        stream = await client.stream("orders")
        for partition in stream.partitions:
            print(partition.partition, partition.leader, partition.isr)
    """

    name: str
    uid: str
    subject: str
    config: StreamConfig
    config_version: int
    partitions: tuple[PartitionInfo, ...]
    replication_factor: int
    waiting: int
    placement: str
    created_time_ns: int
    image: StreamImage = field(repr=False)

    @classmethod
    def of(cls, image: StreamImage) -> Self:
        """Return the description of a stream.

        Args:
            image: The metadata of the stream.
        """
        partitions = tuple(map(PartitionInfo.of, image.partitions))
        return cls(**{**_values(cls, image), "partitions": partitions}, image=image)

    @property
    def replica_count(self) -> int:
        """Number of replicas of each placed partition."""
        return self.image.replica_count

    @property
    def partition_count(self) -> int:
        """Number of partitions, including those that wait for nodes."""
        return self.image.partition_count

    @property
    def answers(self) -> bool:
        """True if the stream sends acks to publishers."""
        return self.image.answers

    def key(self, partition: int) -> PartitionKey:
        """Return the key of a partition: name, uid and number.

        Args:
            partition: Number of the partition.
        """
        return self.image.key(partition)

    if not TYPE_CHECKING:  # mypy reports the old names

        def __getattr__(self, name: str) -> Any:
            return renamed.info_attribute(self, "image", name)
