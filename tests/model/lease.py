"""The lease model: who may speak for a partition, on a clock of 0.25 s.

The shipped ``NodeSessions`` of two metadata leaders, one of which may not know that it was replaced; the shipped ``Lease``,
``ReplicaLease`` and ``EarlierLeaders`` of three nodes; the shipped decisions. Nodes are suspended and go on, heartbeats and their
answers take any time, images come late, and a partition may learn of them later than its node (``Limits.lags``). The bus says that
nobody listens for a node that is cut off from it. A leadership may be moved while the session of the old leader lasts. Session and
lease may become others (``Limits.times``): the settings of nodes and metadata leaders say something else then, so that whoever goes
by them is found.

A node speaks if the image that it knows names it leader, its lease is current and nobody who led before may still speak, by its
own ``EarlierLeaders``; two that speak at one time break D22. A node that is suspended does not speak before it goes on.

Now is always ``NOW``: when time goes on, all that was gets older (``_age``). So states that differ in the time of day alone are
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from liftpy.config import NS_PER_MS, NS_PER_S, ReplicationConfig, SessionTimes
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata import sessions
from liftpy.core.metadata.sessions import NodeSessions
from liftpy.core.replication.lease import EarlierLeaders, Lease, ReplicaLease
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.model.cells import KEY
from tests.model.images import NODES, Images, first_image
from tests.model.search import Broken
from tests.model.structure import Interned, Structure

NOW = 1000 * NS_PER_S
TICK_NS = NS_PER_S // 4
ELECTION_TICKS = 2
"""A metadata leader appears 0.5 s after a majority confirmed the one before last, or later."""
_STRUCTURE = Structure(
    state=(NodeSessions, sessions._NodeSession, Lease, ReplicaLease, EarlierLeaders), values=(ReplicationConfig, SessionTimes)
)
OTHERWISE = ReplicationConfig(session_s=3600.0, lease_s=3000.0)
"""Settings that nobody is to go by, where the image has the times."""
_FORGOTTEN_NS = NOW - 4 * NS_PER_S
"""What happened before it makes no difference any more: every bound below is shorter."""


class Node(NamedTuple):
    """``lease``, ``earlier_leaders``: numbers of what is held. ``behind``: how many images its partition is behind;
    ``lags``: how many of them the node has seen.
    """

    lease: int
    earlier_leaders: int
    behind: int = 0
    lags: int = 0
    suspended: bool = False
    cut: bool = False
    waiting: tuple[tuple[int, int, int], ...] = ()
    """(images that it has to learn first, when the heartbeat was sent, the lease) of leases that were granted on a later image."""


class Metadata(NamedTuple):
    """A metadata leader: its sessions, when a majority confirmed it last, how many images it is behind."""

    sessions: int
    confirmed_ns: int


class State(NamedTuple):
    """``old``: the metadata leader that was replaced and goes on; ``sent``: (kind, node, when the heartbeat was sent, to whom or the
    number of images after the one that the answer was made on, the lease that it grants in ns)."""

    images: tuple[int, ...]
    nodes: tuple[Node, Node, Node]
    leader: Metadata
    old: Metadata | None
    old_image: int
    """That the old one knows: it learns nothing any more."""
    sent: frozenset[tuple[str, str, int, int, int]]
    left: tuple[int, ...]
    """Ticks, suspensions, cuts, moves, changes of the metadata leader and of the times, and images of which a partition learns later
    than its node, that may still happen."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may happen, in all, and the times that are tried."""

    ticks: int = 8
    suspensions: int = 1
    cuts: int = 0
    moves: int = 1
    takeovers: int = 1
    session_s: float = 1.0
    lease_s: float = 0.75
    in_flight: int = 1
    eager: bool = False
    """Who does not take itself for the leader learns at once: so it suspects those before it for as short as can be."""
    times: tuple[tuple[float, float], ...] = ()
    """(session, lease) that the image's become, one after the other, in s; (): the settings say them, and the image nothing."""
    lags: int = 0


class LeaseModel:
    """Within ``limits``."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        times = SessionTimes(round(self._limits.session_s * 1000), round(self._limits.lease_s * 1000))
        self._times = times if self._limits.times else None
        self._config = (
            OTHERWISE
            if self._limits.times
            else ReplicationConfig(session_s=times.session_ms / 1000, lease_s=times.lease_ms / 1000)
        )
        self._images = Images()
        self._held = Interned()
        self._aged: dict[int, int] = {}

    def _number(self, what: Any) -> int:
        if isinstance(what, NodeSessions):
            what._nodes = None  # which image it looked at last: it looks again
        return self._held.number(_STRUCTURE.form(what), what)

    def _copy(self, number: int) -> Any:
        return _STRUCTURE.copy(self._held[number])

    def first(self) -> State:
        """a leads; everybody has a lease of now, and the metadata leader has heard everybody now."""
        image = self._images.add(replace(first_image(), session_times=self._times))
        lease_ns = round(self._config.lease_s * NS_PER_S)
        led = NodeSessions(self._config)
        led.lead(self._images[image], NOW)
        nodes = []
        for name in NODES:
            granted_ms = led.heartbeat(name, 1, NOW, NOW).lease_ms
            lease, earlier_leaders = ReplicaLease(Lease(lease_ns)), EarlierLeaders(name, lease_ns)
            lease.node_lease.extend(NOW, granted_ms * NS_PER_MS, NOW)
            held, live = self._images.state(image)
            earlier_leaders.partition_changed(held.state, dict(live), NOW, held.longest_lease_ns)
            nodes.append(Node(self._number(lease), self._number(earlier_leaders)))
        limits = self._limits
        left = limits.ticks, limits.suspensions, limits.cuts, limits.moves, limits.takeovers, len(limits.times), limits.lags
        leader = Metadata(self._number(led), NOW)
        return State((image,), (nodes[0], nodes[1], nodes[2]), leader, None, image, frozenset(), left)

    # ---- time --------------------------------------------------------------------------------------------------------
    def _age(self, number: int) -> int:
        """What is held, a tick later."""
        found = self._aged.get(number)
        if found is None:
            what = self._copy(number)
            if isinstance(what, ReplicaLease):
                for lease in (what, what.node_lease) if what.lags else (what.node_lease,):
                    lease._until_ns = _left(lease.until_ns(NOW) - TICK_NS)
            elif isinstance(what, EarlierLeaders):
                what._suspects = {n: (i, max(until - TICK_NS, NOW)) for n, (i, until) in what._suspects.items()}
            else:
                what._began_ns, what._earliest_ns = _earlier(what._began_ns), _earlier(what._earliest_ns)
                what._times_ns, what._settling_ns = _earlier(what._times_ns), _earlier(what._settling_ns)
                for session in what._sessions.values():
                    session.began_ns, session.deadline_ns = _earlier(session.began_ns), _earlier(session.deadline_ns)
                    session.lasts_ns, session.leased_ns = _earlier(session.lasts_ns), _earlier(session.leased_ns)
                    session.heard_ns, session.beat_ns = _earlier(session.heard_ns), _earlier(session.beat_ns)
                    session.proposed_ns = _earlier(session.proposed_ns)
            found = self._aged[number] = self._number(what)
        return found

    def _leading(self, state: State) -> frozenset[str]:
        """Who leads, or is to lead, in an image that somebody goes by."""
        partitions = map(self._images.partition, state.images)
        return frozenset(partition.leader or partition.candidate for partition in partitions)

    def _tick(self, state: State) -> State:
        """Time goes by. The heartbeats of nodes that nobody takes for a leader are answered at once: what counts of them is that
        their sessions last, and that they have a lease when they come to lead."""
        leading, led = self._leading(state), self._copy(self._age(state.leader.sessions))
        nodes = []
        for name, node in zip(NODES, state.nodes, strict=True):
            lease = self._age(node.lease)
            if name not in leading and not (node.suspended or node.cut):
                answer = led.heartbeat(name, 1, NOW, NOW)
                held = self._copy(lease)
                held.node_lease.extend(NOW, answer.lease_ms * NS_PER_MS, NOW)
                lease = self._number(held)
            waiting = tuple((index, _earlier(sent), length) for index, sent, length in node.waiting)
            nodes.append(node._replace(lease=lease, earlier_leaders=self._age(node.earlier_leaders), waiting=waiting))
        leader = Metadata(self._number(led), _earlier(state.leader.confirmed_ns))
        old = state.old and Metadata(self._age(state.old.sessions), _earlier(state.old.confirmed_ns))
        sent = frozenset((kind, name, _earlier(at), to, length) for kind, name, at, to, length in state.sent)
        left = (state.left[0] - 1, *state.left[1:])
        return state._replace(nodes=(nodes[0], nodes[1], nodes[2]), leader=leader, old=old, sent=sent, left=left)

    # ---- steps -------------------------------------------------------------------------------------------------------
    def steps(self, state: State) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        """Everything that may happen next."""
        for action, reached in self._steps(state):
            yield action, reached if isinstance(reached, Broken) else self._looked(reached)

    def _steps(self, state: State) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        ticks, suspensions, cuts, _, takeovers, *_ = state.left
        leading = self._leading(state)
        if ticks:
            yield ("0.25 s go by",), self._tick(state)
        for i, name in enumerate(NODES):
            node = state.nodes[i]
            if node.suspended:
                yield (name, "goes on"), self._with(state, i, node._replace(suspended=False))
                continue
            if suspensions and name in leading:
                left = (ticks, suspensions - 1, *state.left[2:])
                yield (name, "is suspended"), self._with(state, i, node._replace(suspended=True), left=left)
            if cuts and not node.cut and name in leading:
                left = (*state.left[:2], cuts - 1, *state.left[3:])
                yield (name, "is cut off"), self._with(state, i, node._replace(cut=True), left=left)
            if node.cut:
                yield (name, "is back"), self._with(state, i, node._replace(cut=False))
                continue
            yield from self._node_steps(state, i, name, node, name in leading)
        yield from self._arrivals(state)
        if state.leader.confirmed_ns != NOW:
            yield ("a majority confirms the metadata leader",), state._replace(leader=state.leader._replace(confirmed_ns=NOW))
        if takeovers and NOW - state.leader.confirmed_ns >= ELECTION_TICKS * TICK_NS:
            led = NodeSessions(self._config)
            led.lead(self._images[state.images[-1]], NOW)
            fresh, left = Metadata(self._number(led), NOW), (*state.left[:4], takeovers - 1, *state.left[5:])
            taken = state._replace(leader=fresh, old=state.leader, old_image=state.images[-1], left=left)
            yield ("another metadata leader takes over",), taken
        yield from self._decisions(state)

    def _with(self, state: State, i: int, node: Node, **others: Any) -> State:
        return state._replace(nodes=(*state.nodes[:i], node, *state.nodes[i + 1 :]), **others)

    def _node_steps(
        self, state: State, i: int, name: str, node: Node, leads: bool
    ) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        if leads and len(state.sent) < self._limits.in_flight:
            for to in range(1 + (state.old is not None)):
                yield (
                    (name, "sends a heartbeat", "old" if to else ""),
                    state._replace(sent=state.sent | {("beat", name, NOW, to, 0)}),
                )
        if node.behind:
            yield (name, "learns"), self._forgotten(self._learned(state, i, node))
        if leads and state.left[6] and node.behind > node.lags:
            lease = self._copy(node.lease)
            if not lease.lags:
                lease.announce_change(NOW)
            waiting = self._image_seen(lease, node)
            lagging = node._replace(lags=node.lags + 1, lease=self._number(lease), waiting=waiting)
            left = (*state.left[:6], state.left[6] - 1)
            yield (name, "has an image of which its partition does not learn yet"), self._with(state, i, lagging, left=left)
        seen = self._images.partition(state.images[-1 - node.behind])
        leader = seen.leader or seen.candidate
        if leader and leader != name:
            j = NODES.index(leader)
            other = state.nodes[j]
            theirs = self._images.partition(state.images[-1 - other.behind])
            same = (theirs.leader or theirs.candidate, theirs.leader_epoch) == (leader, seen.leader_epoch)
            earlier_leaders = self._copy(other.earlier_leaders)
            if same and not (other.cut or other.suspended) and name in earlier_leaders._suspects:
                earlier_leaders.record_fetch(name)
                yield (
                    (name, "asks", leader),
                    self._with(state, j, other._replace(earlier_leaders=self._number(earlier_leaders))),
                )
        if seen.status is PartitionStatus.CANDIDATE_FOUND and seen.candidate == name:
            ready = ("promoted", name, "M", 1, seen.leader_epoch, seen.epoch)
            yield from self._decided(state, ready, state.left)

    def _learned(self, state: State, i: int, node: Node) -> State:
        """The images that the node has and its partition does not, or the next image, and what was granted on it."""
        behind = node.behind - (node.lags or 1)
        held, live = self._images.state(state.images[-1 - behind])
        earlier_leaders, lease = self._copy(node.earlier_leaders), self._copy(node.lease)
        earlier_leaders.partition_changed(held.state, dict(live), NOW, held.longest_lease_ns)
        waiting = node.waiting if node.lags else self._image_seen(lease, node)
        lease = ReplicaLease(lease.node_lease)  # without the number of the changes so far
        learned = node._replace(
            behind=behind, lags=0, earlier_leaders=self._number(earlier_leaders), lease=self._number(lease), waiting=waiting
        )
        return self._with(state, i, learned)

    def _image_seen(self, lease: ReplicaLease, node: Node) -> tuple[tuple[int, int, int], ...]:
        """The node has another image: the leases that wait for more."""
        waiting = tuple((index - 1, sent, length) for index, sent, length in node.waiting)
        for index, sent, length in waiting:
            if index <= 0:
                self._heard(lease, sent, length)
        return tuple(entry for entry in waiting if entry[0] > 0)

    @staticmethod
    def _heard(lease: ReplicaLease, sent_ns: int, lease_ns: int) -> None:
        lease.node_lease.extend(sent_ns, lease_ns, NOW)
        lease.node_lease._until_ns = _left(lease.node_lease.until_ns(NOW))

    def _arrivals(self, state: State) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        for message in sorted(state.sent):
            kind, name, sent_ns, to, length = message
            rest, i = state.sent - {message}, NODES.index(name)
            yield (kind, "of", name, "is lost"), state._replace(sent=rest)
            if kind == "beat":
                metadata = state.old if to else state.leader
                if metadata is None:
                    continue
                led = self._copy(metadata.sessions)
                answer = led.heartbeat(name, 1, NOW, metadata.confirmed_ns)
                heard = metadata._replace(sessions=self._number(led))
                image = state.old_image if to else state.images[-1]
                after = state.images[::-1].index(image) if image in state.images else len(state.images)
                grant = ("grant", name, sent_ns, after, answer.lease_ms * NS_PER_MS)
                answered = rest | {grant} if answer.granted else rest
                reached = state._replace(old=heard) if to else state._replace(leader=heard)
                yield ("beat of", name, "comes"), reached._replace(sent=answered)
            elif not (state.nodes[i].suspended or state.nodes[i].cut):
                node = state.nodes[i]
                missing = node.behind - node.lags - to
                if missing > 0:
                    waiting = tuple(sorted({*node.waiting, (missing, sent_ns, length)}))
                    yield (
                        ("grant to", name, "waits for its image"),
                        self._with(state, i, node._replace(waiting=waiting), sent=rest),
                    )
                else:
                    lease = self._copy(node.lease)
                    self._heard(lease, sent_ns, length)
                    yield ("grant to", name), self._with(state, i, node._replace(lease=self._number(lease)), sent=rest)

    def _decisions(self, state: State) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        """What the metadata leader's clocks, the bus and people have it decide; what an old one proposes is not committed."""
        image, left = state.images[-1], state.left
        for i, name in enumerate(NODES):
            if state.nodes[i].cut:
                led = self._copy(state.leader.sessions)
                led.record_no_responders(name)
                yield ("nobody listens for", name), state._replace(leader=state.leader._replace(sessions=self._number(led)))
            partition = self._images.partition(image)
            if left[3] and partition.status is PartitionStatus.ONLINE and name in partition.isr and name != partition.leader:
                yield from self._decided(state, ("leadership is moved to", name), (*left[:3], left[3] - 1, *left[4:]))
        if left[5]:
            session_s, lease_s = self._limits.times[-left[5]]
            become = ("times become", round(session_s * 1000), round(lease_s * 1000))
            yield from self._decided(state, become, (*left[:5], left[5] - 1, *left[6:]))
        led = self._copy(state.leader.sessions)
        proposed = led.take_due(NOW)
        ticking = state._replace(leader=state.leader._replace(sessions=self._number(led)))
        for proposal in proposed:
            if isinstance(proposal, pb.SettleSessionTimes):
                yield from self._decided(ticking, ("times are settled", proposal.change), left)
                continue
            what = "session ends" if type(proposal).__name__ == "FenceNode" else "session is back"
            yield from self._decided(ticking, (what, proposal.nodeId), left)
        if self._images.partition(image).status is PartitionStatus.ELECTION:
            yield from self._decided(state, ("positions are waited for no longer",), left)

    def _decided(
        self, state: State, message: tuple[Any, ...], left: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        decided = self._images.decide(state.images[-1], message)
        if isinstance(decided, Broken):
            yield message, decided
            return
        for image, accepted in decided:
            if not accepted or image == state.images[-1]:
                continue
            led = self._copy(state.leader.sessions)
            led.image_changed(self._images[image], NOW)
            nodes = tuple(node._replace(behind=node.behind + 1) for node in state.nodes)
            sent = frozenset((kind, *rest, to + (kind == "grant"), length) for kind, *rest, to, length in state.sent)
            reached = state._replace(
                images=(*state.images, image), nodes=nodes, left=left, sent=sent,
                leader=state.leader._replace(sessions=self._number(led)),
            )  # fmt: skip
            yield message, self._forgotten(self._told_at_once(reached) if self._limits.eager else reached)

    def _told_at_once(self, state: State) -> State:
        for i, name in enumerate(NODES):
            while (node := state.nodes[i]).behind and not (node.suspended or node.cut):
                if self._images.partition(state.images[-1 - node.behind]).leader == name:
                    break
                state = self._learned(state, i, node)
        return state

    def _forgotten(self, state: State) -> State:
        """Without images that everybody has learned."""
        return state._replace(images=state.images[-1 - max(node.behind for node in state.nodes) :])

    # ---- who speaks --------------------------------------------------------------------------------------------------
    def _speaks(self, state: State, i: int) -> bool:
        node, name = state.nodes[i], NODES[i]
        partition = self._images.partition(state.images[-1 - node.behind])
        if node.suspended or partition.status is not PartitionStatus.ONLINE or partition.leader != name:
            return False
        lease: ReplicaLease = self._held[node.lease]
        earlier_leaders: EarlierLeaders = self._held[node.earlier_leaders]
        return lease.is_current(NOW) and earlier_leaders.is_over(NOW)

    def _looked(self, state: State) -> State | Broken:
        speakers = [NODES[i] for i in range(3) if self._speaks(state, i)]
        if len(speakers) > 1:
            return Broken(f"invariant D22 does not hold: {speakers} speak for {KEY.stream} at one time")
        return state

    # ---- for people --------------------------------------------------------------------------------------------------
    def told(self, state: State, action: tuple[Any, ...]) -> str:
        """What was done."""
        return " ".join(str(part) for part in action if part != "")

    def shown(self, state: State) -> str:
        """Whom each node takes for the leader, and for how long it may speak, in seconds."""
        parts = []
        for i, name in enumerate(NODES):
            node, lease = state.nodes[i], self._held[state.nodes[i].lease]
            partition = self._images.partition(state.images[-1 - node.behind])
            seen = partition.leader or f"{partition.status.name} {partition.candidate}"
            length = (lease.until_ns(NOW) - NOW) / NS_PER_S
            state_of = f"{' suspended' if node.suspended else ''}{' cut' if node.cut else ''}"
            parts.append(f"{name}{state_of} sees {seen} e{partition.leader_epoch}, lease {length:g} s")
        return "; ".join(parts)


def _left(until_ns: int) -> int:
    """The end of a lease; 0 stands for all that have ended."""
    return until_ns if until_ns > NOW else 0


def _earlier(at_ns: int) -> int:
    """A tick longer ago; -1 stands for never."""
    return at_ns if at_ns == -1 else max(at_ns - TICK_NS, _FORGOTTEN_NS)
