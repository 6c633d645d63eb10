"""The way of traced batches through a leader: appended, flushed, fetched by followers, committed, acknowledged. Pure.

A batch is traced where one of its messages says that its sender records it, and the node's budget allows. Its spans are handed over
together when the last step is known: at once when everybody has it, ``LINGER_NS`` after the acks where a follower lags, ``MOST_NS``
after its append in any case. At most ``MOST_OPEN`` are followed at a time in a node. Nothing here is waited for by the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from liftpy.config import AckPolicy
from liftpy.dataclass import dataclass
from liftpy.trace.budget import SpanBudget
from liftpy.trace.context import TraceContext
from liftpy.trace.search import may_bear, traced_in
from liftpy.trace.spans import Attributes, Span, SpanTree

MOST_OPEN = 64
LINGER_NS = 2_000_000_000
MOST_NS = 30_000_000_000
ENDED = "the leadership ended"
SLOW = "not committed in time"
SWITCHED = "traces were switched"
_STEPS = 4
"""Spans of every batch: append, flush, commit, ack."""


class NodeTraces:
    """What the partitions of a node share. ``now_ns``: monotonic; ``wall_ns``: since 1970; ``put``: takes what is finished."""

    def __init__(
        self,
        node_id: str,
        put: Callable[[SpanTree], None],
        now_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        budget: SpanBudget | None = None,
    ) -> None:
        self.node_id = node_id
        self.put = put
        self.now_ns = now_ns
        self.wall_ns = wall_ns
        self.budget = budget or SpanBudget()
        self.open: dict[PartitionTraces, None] = {}
        """Partitions with traced batches on their way."""
        self.open_count = 0
        """Of such batches."""

    def look(self) -> None:
        """Hand over what has waited long enough; to be called now and then while something is ``open``."""
        now_ns = self.now_ns()
        for partition in list(self.open):
            partition.look(now_ns)

    def whole(self, name: str, began_ns: int, attributes: Attributes, error: str = "") -> None:
        """A span of its own, that began at ``began_ns``, monotonic, and ends now."""
        now_ns = self.now_ns()
        if self.budget.takes(1, now_ns):
            end_ns = self.wall_ns()
            said: Attributes = {"messaging.system": "nats", "liftpy.node": self.node_id, **attributes}
            self.put(SpanTree(Span(name, end_ns - max(0, now_ns - began_ns), end_ns, said, error)))


@dataclass(slots=True, kw_only=True)
class _OnItsWay:
    """Steps in ns, monotonic; 0: not yet."""

    last_offset: int
    leader_epoch: int
    contexts: tuple[TraceContext, ...]
    attributes: Attributes
    arrived_wall_ns: int
    appended_ns: int
    appended_wall_ns: int
    awaited: bool
    """Somebody waits for an ack."""
    missing: set[str]
    """Followers that have not flushed it yet, as far as this leader was told."""
    flushed_ns: int = 0
    replicated_ns: dict[str, int] = field(default_factory=dict)
    committed_ns: int = 0
    acked_ns: int = 0
    policy: str = ""

    @property
    def decided_ns(self) -> int:
        """Since when only followers that lag are missing; 0: more than those."""
        if not self.flushed_ns or not self.committed_ns or (self.awaited and not self.acked_ns):
            return 0
        return max(self.flushed_ns, self.committed_ns, self.acked_ns)


class PartitionTraces:
    """Of one partition that this node leads, or may."""

    def __init__(self, node: NodeTraces, stream: str, partition: int) -> None:
        self._node = node
        self._stream = stream
        self._partition = partition
        self._open: list[_OnItsWay] = []
        """In the order of their offsets."""
        self._elected_ns = 0
        """Since when this replica has been a candidate; 0: it is none."""

    @property
    def follows(self) -> bool:
        """Whether any batch is on its way."""
        return bool(self._open)

    @property
    def _name(self) -> str:
        return f"{self._stream}/{self._partition}"

    def _attributes(self, leader_epoch: int) -> Attributes:
        return {
            "messaging.destination.name": self._stream,
            "messaging.destination.partition.id": str(self._partition),
            "liftpy.leader_epoch": leader_epoch,
        }

    def appended(
        self,
        batch: bytes,
        base_offset: int,
        record_count: int,
        leader_epoch: int,
        *,
        arrived_wall_ns: int,
        flushed: bool,
        awaited: bool,
        followers: frozenset[str],
    ) -> None:
        """A batch is in the log. ``flushed``: also on the disk; ``awaited``: somebody waits for its ack."""
        node = self._node
        now_ns, spans = node.now_ns(), _STEPS - (not awaited) + len(followers)
        if node.open_count >= MOST_OPEN or not node.budget.has(spans, now_ns):
            node.budget.dropped += spans if may_bear(batch) else 0
            return
        contexts = traced_in(batch)
        if not contexts:
            return
        node.budget.takes(spans, now_ns)
        self._open.append(
            _OnItsWay(
                last_offset=base_offset + record_count - 1,
                leader_epoch=leader_epoch,
                contexts=contexts,
                attributes={
                    "messaging.system": "nats",
                    "messaging.operation.name": "append",
                    **self._attributes(leader_epoch),
                    "messaging.batch.message_count": record_count,
                    "liftpy.offset": base_offset,
                    "liftpy.node": node.node_id,
                },
                arrived_wall_ns=arrived_wall_ns,
                appended_ns=now_ns,
                appended_wall_ns=node.wall_ns(),
                awaited=awaited,
                missing=set(followers),
                flushed_ns=now_ns if flushed else 0,
            )
        )
        node.open_count += 1
        node.open[self] = None

    def flushed(self, end_offset: int) -> None:
        """Everything below ``end_offset`` is on the disk."""
        now_ns = self._node.now_ns()
        for one in self._open:
            if one.last_offset >= end_offset:
                break
            one.flushed_ns = one.flushed_ns or now_ns
        self._hand_over(now_ns)

    def fetched(self, replica: str, offset: int, leader_epoch: int) -> None:
        """A follower says that it has flushed what is up to ``offset``, inclusive."""
        now_ns = self._node.now_ns()
        for one in self._open:
            if one.last_offset > offset:
                break
            if replica in one.missing and one.leader_epoch == leader_epoch:
                one.missing.discard(replica)
                one.replicated_ns[replica] = now_ns
        self._hand_over(now_ns)

    def committed(self, high_watermark: int) -> None:
        """HW, inclusive, has risen."""
        now_ns = self._node.now_ns()
        for one in self._open:
            if one.last_offset > high_watermark:
                break
            one.committed_ns = one.committed_ns or now_ns
        self._hand_over(now_ns)

    def acked(self, policy: AckPolicy, through_offset: int) -> None:
        """Publishers that wait for ``policy`` have their answers, up to ``through_offset``, inclusive. The last answers count."""
        now_ns = self._node.now_ns()
        for one in self._open:
            if one.last_offset > through_offset:
                break
            if one.awaited and (policy is AckPolicy.ALL or not one.acked_ns):
                one.acked_ns, one.policy = now_ns, policy.value
        self._hand_over(now_ns)

    def ended(self, why: str = ENDED) -> None:
        """The leadership is over, and what is not committed another's; or else ``why`` it is not followed any more."""
        self._let_go(self._open, why)

    def look(self, now_ns: int) -> None:
        """Hand over what has waited long enough."""
        self._let_go([one for one in self._open if now_ns - one.appended_ns >= MOST_NS], SLOW)
        self._hand_over(now_ns)

    def role_is(self, role: str, is_ready: bool, leader_epoch: int) -> None:
        """This replica is something else now: an election lasts from CANDIDATE until it takes publishes, or does not."""
        now_ns = self._node.now_ns()
        if role == "CANDIDATE":
            self._elected_ns = self._elected_ns or now_ns
        elif self._elected_ns and (is_ready or role != "LEADER"):
            error = "" if is_ready else f"it became {role} instead"
            self._node.whole(f"election {self._name}", self._elected_ns, self._attributes(leader_epoch), error)
            self._elected_ns = 0

    # ---- what is finished ------------------------------------------------------------------------------------------------
    def _hand_over(self, now_ns: int) -> None:
        done = [one for one in self._open if (since := one.decided_ns) and (not one.missing or now_ns - since >= LINGER_NS)]
        if done:
            self._let_go(done)

    def _let_go(self, some: list[_OnItsWay], error: str = "") -> None:
        node = self._node
        going = {id(one) for one in some}
        for one in some:
            node.put(self._tree(one, "" if one.committed_ns else error))
        self._open = [one for one in self._open if id(one) not in going]
        node.open_count -= len(going)
        if not self._open:
            node.open.pop(self, None)

    def _tree(self, one: _OnItsWay, error: str) -> SpanTree:
        def wall_ns(at_ns: int) -> int:
            return one.appended_wall_ns + at_ns - one.appended_ns

        begun, own = one.appended_wall_ns, self._attributes(one.leader_epoch)
        children = [Span("flush", begun, wall_ns(one.flushed_ns), own)] if one.flushed_ns else []
        for replica, at_ns in one.replicated_ns.items():
            children.append(Span(f"replicate {replica}", begun, wall_ns(at_ns), {**own, "liftpy.replica": replica}))
        if one.committed_ns:
            children.append(Span("commit", begun, wall_ns(one.committed_ns), own))
        if one.acked_ns:
            due_ns = min(one.flushed_ns if one.policy == AckPolicy.LEADER.value else one.committed_ns, one.acked_ns)
            children.append(
                Span("ack", wall_ns(due_ns or one.acked_ns), wall_ns(one.acked_ns), {**own, "liftpy.ack_policy": one.policy})
            )
        end_ns = max(child.end_ns for child in children) if children else self._node.wall_ns()
        start_ns = min(one.arrived_wall_ns, begun)
        root = Span(f"append {self._name}", start_ns, max(end_ns, begun), one.attributes, error)
        return SpanTree(root, tuple(children), one.contexts[0], one.contexts)
