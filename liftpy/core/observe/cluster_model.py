"""Model of ``liftpy top``: rates, percentiles and the last minute of each node. Pure.

The model gets a summary of each node once a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from liftpy.core.observe.cluster_health import (
    ClusterVerdict,
    check_cluster,
    leader_of,
    newest_summary,
    reason,
    states,
    verdict_of,
)
from liftpy.core.observe.node_summary import NodeSummary, percentile

HISTORY = 60
"""Seconds that sparklines show, one value each."""
WINDOW = 10
"""Time over which percentiles are computed, in seconds."""
RATES = ("records_in", "bytes_in", "records_out", "bytes_out")
"""Counters whose rates are shown, with the suffix ``_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node in ``liftpy top``. None: the value is not known, because the node does not answer or was not observed long enough."""

    node: str
    state: str
    """State: live, fenced, drained or silent."""
    leads_metadata: bool = False
    glance: NodeSummary | None = None
    records_in_s: float | None = None
    bytes_in_s: float | None = None
    records_out_s: float | None = None
    bytes_out_s: float | None = None
    ack_p50_s: float | None = None
    ack_p99_s: float | None = None
    loop_p99_s: float | None = None
    history: tuple[float | None, ...] = ()
    """Received records per second, oldest first. None: no data for this second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """State of the cluster at one moment, as ``liftpy top`` shows it."""

    namespace: str
    verdict: ClusterVerdict
    metadata_leader: str
    rows: tuple[NodeRow, ...]
    streams: int | None
    records_in_s: float | None
    bytes_in_s: float | None
    records_out_s: float | None
    bytes_out_s: float | None
    ack_p50_s: float | None
    ack_p99_s: float | None
    history_in: tuple[float | None, ...]
    history_out: tuple[float | None, ...]


@dataclass(slots=True)
class _NodeSummaries:
    """The last summaries of one node with their times in s, and its rate of incoming records at each of them."""

    glances: deque[tuple[float, NodeSummary]] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    history: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def add_summaries(self, now_s: float, glance: NodeSummary | None) -> None:
        last = self.glances[-1][1] if self.glances else None
        if glance is None or (last is not None and glance.incarnation != last.incarnation):
            self.glances.clear()  # a restarted process counts from 0, so the rate is not known
        if glance is not None:
            self.glances.append((now_s, glance))
        self.history.append(self.rate("records_in"))

    def rate(self, name: str) -> float | None:
        """Return how fast the counter ``name`` of a node grew between its last two summaries, per second. None: not known."""
        if len(self.glances) < 2:
            return None
        (before_s, before), (now_s, now) = self.glances[-2], self.glances[-1]
        grown: int = getattr(now, name) - getattr(before, name)
        return max(0, grown) / (now_s - before_s) if now_s > before_s else None

    def counted(self, name: str) -> list[int]:
        """Return how many values each bucket of the histogram ``name`` got between the first and the last kept summary.

        []: not known, because there are fewer than two summaries.
        """
        if len(self.glances) < 2:
            return []
        old, new = getattr(self.glances[0][1], name), getattr(self.glances[-1][1], name)
        return [max(0, b - a) for a, b in zip(old or (0,) * len(new), new, strict=False)]


class ClusterMonitor:
    """Collects the summaries of all nodes, and builds the model that ``liftpy top`` shows."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._seen: dict[str, _NodeSummaries] = {}
        self._glances: dict[str, NodeSummary | None] = {}
        self._in: deque[float | None] = deque(maxlen=HISTORY)
        self._out: deque[float | None] = deque(maxlen=HISTORY)
        self._is_nats_lost = False

    def add_summaries(self, now_s: float, glances: Mapping[str, NodeSummary | None], *, is_nats_lost: bool = False) -> None:
        """Add the newest summaries of all known nodes. Nodes that are not in ``glances`` are forgotten.

        Args:
            now_s: Monotonic time, in seconds.
            glances: Summary of each node, None without an answer.
            is_nats_lost: True if the viewer's own connection to NATS is down, so that no node can answer.
        """
        self._is_nats_lost = is_nats_lost
        self._glances = dict(glances)
        self._seen = {node: self._seen.get(node) or _NodeSummaries() for node in glances}
        for node, glance in glances.items():
            self._seen[node].add_summaries(now_s, glance)
        self._in.append(self._sum("records_in"))
        self._out.append(self._sum("records_out"))

    def nodes(self, fallback: Sequence[str] = ()) -> list[str]:
        """Return the nodes from which to request the next summary.

        These are the nodes that the controller with the newest metadata names, else the known ones, else ``fallback``.
        """
        newest = newest_summary(glance for glance in self._glances.values() if glance is not None and glance.nodes)
        return sorted(newest.nodes if newest is not None else self._glances or fallback)

    def model(self) -> Model:
        state_of, leader = states(self._glances), leader_of(self._glances)
        newest = newest_summary(glance for glance in self._glances.values() if glance is not None and glance.is_controller)
        acks = self._sum_of("acks")
        return Model(
            namespace=self._namespace,
            verdict=verdict_of([reason("nats-lost", who="This command", why="")])
            if self._is_nats_lost
            else check_cluster(self._glances),
            metadata_leader=leader,
            rows=tuple(self._row(node, state_of[node], node == leader) for node in sorted(state_of)),
            streams=newest.streams if newest is not None else None,
            **{f"{name}_s": self._sum(name) for name in RATES},
            ack_p50_s=percentile(acks, 0.5),
            ack_p99_s=percentile(acks, 0.99),
            history_in=tuple(self._in),
            history_out=tuple(self._out),
        )

    def _row(self, node: str, state: str, leads: bool) -> NodeRow:
        seen = self._seen.get(node) or _NodeSummaries()
        return NodeRow(
            node=node,
            state=state,
            leads_metadata=leads,
            glance=self._glances.get(node),
            **{f"{name}_s": seen.rate(name) for name in RATES},
            ack_p50_s=percentile(seen.counted("acks"), 0.5),
            ack_p99_s=percentile(seen.counted("acks"), 0.99),
            loop_p99_s=percentile(seen.counted("loop_lag"), 0.99),
            history=tuple(seen.history),
        )

    def _sum(self, name: str) -> float | None:
        rates = [rate for seen in self._seen.values() if (rate := seen.rate(name)) is not None]
        return sum(rates) if rates else None

    def _sum_of(self, name: str) -> list[int]:
        counts = [count for seen in self._seen.values() if (count := seen.counted(name))]
        width = max(map(len, counts), default=0)
        return [sum(one[number] for one in counts if number < len(one)) for number in range(width)]
