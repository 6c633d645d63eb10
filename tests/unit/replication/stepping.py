"""A replica under a hand-moved clock: feed events, look at the effects. Disk and network are the test's."""

from __future__ import annotations

from typing import Any, TypeVar

from liftpy.config import CommitPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionMetadata, PartitionState, PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.lease import EarlierLeaders, Lease, ReplicaLease
from liftpy.core.replication.messages import FetchRequest
from liftpy.core.replication.replica import Replica
from liftpy.core.replication.role import Backoff, NodeContext, ReplicaContext

KEY = PartitionKey("orders", "uid-1", 0)
S = 1_000_000_000
E = TypeVar("E")


def state(
    leader: str = "a",
    isr: str = "abc",
    *,
    epoch: int = 1,
    leader_epoch: int = 1,
    status: PartitionStatus = PartitionStatus.ONLINE,
    candidate: str = "",
    min_isr: int = 2,
    replicas: str = "abc",
    policy: CommitPolicy = CommitPolicy.ISR,
    leaderships: int = 1,
    unclean_elected: bool = False,
) -> PartitionMetadata:
    partition = PartitionState(
        partition=0, replicas=tuple(replicas), isr=tuple(isr), leader=leader, leader_epoch=leader_epoch, epoch=epoch,
        status=status, candidate=candidate, leaderships=leaderships, unclean_elected=unclean_elected,
    )  # fmt: skip
    return PartitionMetadata(key=KEY, config=StreamConfig(min_isr=min_isr, commit_policy=policy), state=partition)


def leader_context(
    metadata: PartitionMetadata, live: dict[str, int], *, end: int, hw: int, max_lag_s: float = 5, max_lag_records: int = 0
) -> ReplicaContext:
    """State of the replica on node a, whose log ends at ``end`` (exclusive)."""
    config = ReplicationConfig(max_lag_records=max_lag_records)
    object.__setattr__(config, "max_lag_time_s", max_lag_s)  # below the bounds of the setting, so that times are small numbers
    lease = Lease(S)
    shared = ReplicaContext(NodeContext("a", 1, config, lease), ReplicaLease(lease), Backoff(1, 1, 0), EarlierLeaders("a", S))
    shared.log.set_recovered(0, end, hw, ())
    shared.metadata, shared.live = metadata, live
    return shared


class Stepped:
    """``node`` has incarnation 1; so have the others unless a test says otherwise."""

    def __init__(self, node: str, config: ReplicationConfig | None = None) -> None:
        config = config or ReplicationConfig()
        self.lease = Lease(round(config.lease_s * S))
        self.replica = Replica(NodeContext(node, 1, config, self.lease), seed=7)
        self.now_ns = 100 * S
        self.out: list[do.Effect] = []
        self.tokens = 0

    @property
    def role(self) -> Any:
        """Role of the replica, with its state."""
        return self.replica._role

    @property
    def deadlines(self) -> dict[ev.Deadline, int]:
        """Deadlines that are set, in nanoseconds."""
        return self.replica._shared.deadlines._at_ns

    def step(self, event: ev.Event, after_s: float = 0.0) -> list[do.Effect]:
        self.now_ns += round(after_s * S)
        self.out = self.replica.step(event, self.now_ns)
        return self.out

    def opened(self, end: int = 0, hw: int = -1, epochs: tuple[tuple[int, int], ...] = (), start: int = 0) -> Stepped:
        self.step(ev.LogOpened(log_start_offset=start, log_end_offset=end, high_watermark=hw, epochs=epochs))
        return self

    def told(self, partition: PartitionMetadata, live: dict[str, int] | None = None) -> list[do.Effect]:
        return self.step(
            ev.PartitionChanged(metadata=partition, incarnations=live if live is not None else {"a": 1, "b": 1, "c": 1})
        )

    def heard(self) -> list[do.Effect]:
        """A heartbeat that is sent now is answered at once."""
        had_ended = self.lease.extend(self.now_ns, 0, self.now_ns)
        self.out = []
        return self.step(ev.LeaseChanged()) if had_ended else []

    def lease_ends(self) -> list[do.Effect]:
        """The lease ends, and the node tells the replica at once."""
        self.now_ns = self.lease.until_ns(self.now_ns)
        return self.step(ev.LeaseChanged())

    def only(self, kind: type[E]) -> E:
        found = [effect for effect in self.out if isinstance(effect, kind)]
        assert len(found) == 1, self.out
        return found[0]

    def has(self, kind: type) -> bool:
        return any(isinstance(effect, kind) for effect in self.out)

    def sent(self) -> list[do.Effect]:
        """The effects of the last step, less timers and status."""
        return [effect for effect in self.out if not isinstance(effect, do.SetDeadline | do.RoleChanged)]

    # ---- a leader's day ----------------------------------------------------------------------------------------------
    def leads(self, partition: PartitionMetadata | None = None, end: int = 0, hw: int = -1) -> Stepped:
        self.opened(end, hw, ((1, 0),) if end else ())
        self.heard()
        self.told(partition or state(leader_epoch=2))
        self.step(ev.ReplayFinished(end_offset=end))
        return self

    def publish(self, count: int = 1, *, flush: bool = True) -> list[do.Effect]:
        self.tokens += 1
        self.step(ev.PublishesReceived(token=self.tokens, record_count=count, size_bytes=count * 10, received_wall_ns=0))
        if flush and self.has(do.AppendBatch):
            self.step(ev.LogFlushed(end_offset=self.replica.log.log_end_offset))
        return self.out

    def fetch(self, replica: str, offset: int, offset_epoch: int = 2, **other: object) -> list[do.Effect]:
        self.tokens += 1
        leader_epoch = self.replica.leader_epoch
        event = {
            "token": self.tokens, "replica": replica, "offset": offset, "leader_epoch": leader_epoch, "incarnation": 1,
            "offset_epoch": offset_epoch if offset >= 0 else 0, "request_id": self.tokens, "max_bytes": 0,
            "stream_uid": KEY.uid,
        }  # fmt: skip
        return self.step(FetchRequest(**{**event, **other}))  # type: ignore[arg-type]

    # ---- a follower's day --------------------------------------------------------------------------------------------
    def follows(self, partition: PartitionMetadata | None = None) -> Stepped:
        self.opened()
        self.told(partition or state())
        return self

    def answered(self, spans: list[tuple[int, int, int]], hw: int, request: int | None = None) -> list[do.Effect]:
        request_id = self.only(FetchRequest).request_id if request is None else request
        self.tokens += 1
        spanned = tuple(ev.BatchSpan(**dict(zip(ev.BatchSpan.__dataclass_fields__, span, strict=True))) for span in spans)
        return self.step(
            ev.FetchAnswered(
                token=self.tokens,
                request_id=request_id,
                leader_epoch=self.replica.leader_epoch,
                high_watermark=hw,
                spans=spanned,
            )
        )

    def fire(self, kind: ev.Deadline, late_s: float = 0.0) -> list[do.Effect]:
        at_ns = self.deadlines[kind]
        self.now_ns = max(self.now_ns, at_ns + round(late_s * S))
        return self.step(ev.DeadlineReached(kind=kind))


def idle(end: int = 3, config: ReplicationConfig | None = None) -> Stepped:
    """b follows a in epoch 1, has ``end`` records and sleeps."""
    follower = Stepped("b", config).follows()
    if end:
        follower.answered([(0, end - 1, 1)], -1)
        follower.step(ev.LogFlushed(end_offset=end))
    follower.answered([], end - 1)
    assert follower.replica.phase == "FOLLOWER_IDLE"
    return follower
