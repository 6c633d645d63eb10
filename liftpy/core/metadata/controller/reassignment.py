"""Replica moves: the moves of an image for display, and the planner for targets, drained nodes and lost nodes. Pure.

``movements`` describes the current moves. ``ReassignmentPlanner`` runs on the metadata leader.

Goal: every partition is on the nodes that its ``target`` names. The replicas of a node that is drained, or down for
``replacement_grace_s``, are copied to others. Publishers and readers notice little of it. Constraint: the planner moves
nothing without need. It does not touch a partition that lacks replicas, or has a running election. A move survives the
loss of any node, because its state is in the image. Only the time since which a node is down is kept in memory.

Algorithm, at each check (after a change, at most four times a second):

1. Copies. The next missing node of a target becomes ``joining`` (BeginCopy), the oldest target first. At most
   ``max_copies`` run, ``max_copies_per_node`` into one node, and as many from one leader. The partition must be Online
   with all its live, staying replicas in the ISR. The leader does the rest of a swap.
2. Failed copies. If the joining node is down for the grace time, or is drained, the copy is canceled (BeginCopy with no
   node), and the target names another node. If an operator had chosen the node, the move is canceled. If the target no
   longer names the joining node, only the copy is canceled. If the joining node reports that its storage has failed, the
   copy is canceled, too. The node gets no copy for ``NO_COPY_NS`` or until it restarts, and the target names another node.
   If an operator had chosen the node, the move waits. If the node to be replaced is back and no node has joined for
   it yet, the move is canceled. While another node of the partition is missing, the target names the returned one. If a
   staying replica is lost, the leaving one stays in its place, or another one joins.
3. Leaderships. The leaderships of a drained node go to live, staying members of the ISR, ``TRANSFERS_AT_ONCE`` at a
   time. Then the first replica of each partition that a rebalance has reordered becomes the leader if it is in the ISR.
4. New targets: first for nodes down beyond the grace time, then for drained nodes, at most ``TARGETS_AHEAD`` times
   ``max_copies`` in advance. Each new replica goes to the node with the least load (``placement/rebalance.py``).

Every proposal is a compare-and-set. The planner repeats it after ``REPEAT_AFTER_NS`` without an answer, or when the
partition has changed.

Worked example: a, b, c, d hold 8 partitions of 3 replicas, and c stops. For five minutes nothing happens. Then the 6
partitions of c get targets: (a b c) becomes (a b d), because only d may take it. Two copies run at a time: BeginCopy d,
its replica catches up and replaces that of c. c returns during the third copy. This copy and the three remaining
targets are canceled. c keeps those replicas, and deletes the replaced ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus
from liftpy.core.metadata.codec import reason_to_pb
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.placement.facts import facts_of
from liftpy.core.metadata.placement.rebalance import RACK_STRICT, DestinationNodes
from liftpy.core.wire._pb import cluster_pb2 as pb

PLAN_EVERY_NS = NS_PER_S // 4
REPEAT_AFTER_NS = 5 * NS_PER_S
NO_COPY_NS = 300 * NS_PER_S
"""Time for which a node whose storage has failed gets no copy, in nanoseconds. A restart of the node ends it earlier."""
TRANSFERS_AT_ONCE = 16
TARGETS_AHEAD = 2
_MAX_CHECKED = 10_000
"""Maximum number of partitions waiting for a copy that one planning step checks."""

Proposed = pb.BeginCopy | pb.Reassign | pb.ElectLeader
_Key = tuple[str, int]
"""Key of a partition: (uid of the stream, partition number)."""
_Place = tuple[StreamImage, PartitionState]
_OWN = (MoveReason.REPLACED, MoveReason.DRAINED)
_CHOSEN_BY_PLANNER = (*_OWN, MoveReason.FACTOR)
"""Reasons of moves whose destination no operator has chosen, so that another node may take its place."""


class Phase(Enum):
    """Phase of the move of a partition's replicas or leadership."""

    WAITS = "waits"
    """The move waits for its turn, for a complete partition, or for a node."""
    COPIES = "copies"
    """The new replica copies the log."""
    DROPS = "drops"
    """The new replica is in the ISR, or there is none. Another replica transfers its leadership if it leads, and then
    leaves.
    """
    LEADS = "leads"
    """No replica moves. Another replica becomes the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """The current move of one partition's replicas, for display."""

    stream: str
    uid: str
    partition: int
    replicas: tuple[str, ...]
    target: tuple[str, ...]
    phase: Phase
    into: str
    """Node that joins or becomes the leader. '': none."""
    out: str
    """Node that leaves. '': none."""
    why: str


def movement_of(stream: StreamImage, partition: PartitionState) -> Movement | None:
    """Return the current move of the partition's replicas or leadership. None: there is none."""
    leads = partition.leader_to_elect if not partition.target else ""
    if not (partition.target or partition.joining or leads):
        return None
    into = partition.joining or partition.next_learner or leads
    going = [partition.leader] if leads else [n for n in partition.replicas if n not in partition.target]
    return Movement(
        stream=stream.name,
        uid=stream.uid,
        partition=partition.partition,
        replicas=partition.replicas,
        target=partition.target,
        phase=Phase.LEADS if leads else Phase.COPIES if partition.joining else Phase.WAITS if into else Phase.DROPS,
        into=into,
        out=partition.leaving or (going[0] if going else ""),
        why=partition.moved_for.words,
    )


def movements(image: ClusterImage) -> list[Movement]:
    """Return the current moves of all partitions, ordered by stream and partition."""
    places = ((image.streams[name], p) for name in sorted(image.streams) for p in image.streams[name].partitions)
    return [movement for stream, partition in places if (movement := movement_of(stream, partition)) is not None]


def offline_partitions_of(image: ClusterImage, node_id: str) -> list[tuple[StreamImage, PartitionState]]:
    """Return the partitions with a replica on the node and without a live node that can lead.

    Their replicas cannot be copied. They stay on the node until a complete replica returns or an operator gives them up.
    """
    return [place for place in image.partitions_of(node_id) if place[1].status is PartitionStatus.OFFLINE]


def yield_replica_changes(partition: PartitionState) -> Iterator[tuple[str, int]]:
    """Yield (node, change) for a partition: 1 for a node that will get a replica, -1 for a node that will lose one."""
    if not partition.target:
        return
    for node_id in partition.target:
        if node_id not in partition.holders:
            yield node_id, 1
    for node_id in partition.holders:
        if node_id not in partition.target:
            yield node_id, -1


class ReassignmentPlanner:
    """Plans the moves of replicas. Only the metadata leader runs it. ``now_ns`` is monotonic."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._grace_ns = round(config.replacement_grace_s * NS_PER_S)
        self._at_once = config.max_copies
        self._per_node = config.max_copies_per_node
        self._image: ClusterImage | None = None
        self._plan_at_ns: int | None = None
        """Monotonic time of the next check. None: no check is needed until the image changes."""
        self._earliest_ns = 0
        self._touched: set[str] | None = set()
        """Names of the streams to check. None: all streams."""
        self._down_since_ns: dict[str, int] = {}
        self._names: dict[str, str] = {}
        """Uid -> name of the streams in ``_waiting``, ``_copying``, ``_finishing`` and ``_leading``."""
        self._waiting: dict[_Key, _Place] = {}
        """Partitions whose target wants another node, oldest first."""
        self._copying: dict[_Key, _Place] = {}
        """Partitions into which a node is joining, oldest first."""
        self._finishing: dict[_Key, _Place] = {}
        """Partitions where a node has joined and another node must leave, oldest first."""
        self._leading: dict[_Key, _Place] = {}
        """Partitions without a move whose first replica must become the leader."""
        self._proposed: dict[_Key, tuple[int, int]] = {}
        """Partition -> (Epoch on which the last proposal was based, monotonic time of the proposal)."""
        self._transfers: dict[_Key, int] = {}
        """Partition -> Epoch before its leadership transfer was proposed."""
        self._started_copies: dict[_Key, tuple[int, str, str]] = {}
        """Partition -> (Epoch before its copy was proposed, node that joins, node that leaves)."""
        self._failed_nodes: dict[str, tuple[int, int]] = {}
        """Node whose storage has failed -> (incarnation, monotonic time until which it gets no copy)."""
        self._failed_copies: dict[_Key, int] = {}
        """Partition whose joining node has reported failed storage -> Epoch of the partition at that time."""
        self.counters: Counter[str] = Counter()

    # ---- what happens ------------------------------------------------------------------------------------------------
    def lead(self, image: ClusterImage, now_ns: int) -> None:
        self._image = ClusterImage()
        self._touched = None
        for places in self._lists:
            places.clear()
        self._down_since_ns.clear()
        self._names.clear()
        for table in (self._proposed, self._transfers, self._started_copies, self._failed_nodes, self._failed_copies):
            table.clear()
        self._earliest_ns = now_ns
        self.image_changed(image, now_ns)

    def resign(self) -> None:
        self._image = self._plan_at_ns = None

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        """Update the planner after an entry was applied. It checks the changed streams next."""
        if self._image is None:
            return
        before, self._image = self._image, image
        changed = before.nodes is not image.nodes
        if changed:
            down = {node_id for node_id, node in image.nodes.items() if node.fenced}
            self._down_since_ns = {node_id: self._down_since_ns.get(node_id, now_ns) for node_id in sorted(down)}
        if before.streams is not image.streams:
            touched = image.trail.since(before.trail)
            self._touched = None if touched is None or self._touched is None else self._touched | touched
            changed = True
        if changed:
            self._plan_soon()

    def storage_failed(self, request: pb.LeaveIsr, image: ClusterImage, now_ns: int) -> None:
        """Start no copy into the sender of ``request`` for ``NO_COPY_NS``, and end the copy that the request is about.

        A replica sends the request if its storage has failed, for example because the disk is full. ``image``: current image.
        """
        node = image.nodes.get(request.node)
        if node is None or node.incarnation != request.incarnation:
            return
        self._failed_nodes[request.node] = request.incarnation, now_ns + NO_COPY_NS
        location = image.find(request.stream, request.uid, request.partition)
        if location is not None and location[1].joining == request.node:
            self._failed_copies[location[0].uid, request.partition] = location[1].epoch
            self._plan_soon()

    def _plan_soon(self) -> None:
        self._plan_at_ns = self._earliest_ns if self._plan_at_ns is None else min(self._plan_at_ns, self._earliest_ns)

    def next_deadline_ns(self) -> int | None:
        return self._plan_at_ns if self._image is not None else None

    def take_due(self, now_ns: int) -> list[Proposed]:
        image = self._image
        if image is None or self._plan_at_ns is None or now_ns < self._plan_at_ns:
            return []
        self._scan(image)
        self._forget(image, now_ns)
        step = _PlanningStep(image, now_ns, self._nodes_to_replace(image, now_ns), frozenset(self._failed_nodes))
        proposals: list[Proposed] = [
            *self._cancellations(step),
            *self._copies(step),
            *self._leaderships(step),
            *self._targets(step),
        ]
        self._earliest_ns = now_ns + PLAN_EVERY_NS
        self._plan_at_ns = self._next_plan_ns(step)
        return proposals

    # ---- what there is -----------------------------------------------------------------------------------------------
    def _scan(self, image: ClusterImage) -> None:
        touched, self._touched = self._touched, set()
        if touched is None:
            for places in self._lists:
                places.clear()
            all_moving = [(s, p) for s in image.streams.values() for p in s.partitions if _moves(p)]
            for stream, partition in sorted(all_moving, key=lambda place: place[1].epoch):
                self._add_to_list(stream, partition)
            return
        streams = [image.streams[name] for name in touched.intersection(image.streams)]
        moving = [(s, p) for s in streams for p in s.partitions if _moves(p)]
        still = {(s.uid, p.partition) for s, p in moving}
        touched_uids = {uid for uid, name in self._names.items() if name in touched}
        for places in self._lists:
            for key in [key for key in places if key[0] in touched_uids and key not in still]:
                del places[key]
        for uid in touched_uids.difference(stream.uid for stream in streams):
            del self._names[uid]
        for stream, partition in sorted(moving, key=lambda place: place[1].epoch):
            self._add_to_list(stream, partition)

    def _add_to_list(self, stream: StreamImage, partition: PartitionState) -> None:
        key = (stream.uid, partition.partition)
        if partition.joining:
            place = self._copying
        elif partition.target:
            place = self._waiting if partition.next_learner else self._finishing
        else:
            place = self._leading
        for places in self._lists:
            if places is not place:
                places.pop(key, None)
        self._names[stream.uid] = stream.name
        place[key] = (stream, partition)

    @property
    def _lists(self) -> tuple[dict[_Key, _Place], ...]:
        return self._waiting, self._copying, self._finishing, self._leading

    def _nodes_to_replace(self, image: ClusterImage, now_ns: int) -> list[str]:
        down = sorted(self._down_since_ns, key=lambda node_id: (self._down_since_ns[node_id], node_id))
        beyond = [n for n in down if self._grace_ns and now_ns - self._down_since_ns[n] >= self._grace_ns]
        return [*beyond, *sorted(n for n, node in image.nodes.items() if node.leaving and n not in beyond)]

    def _forget(self, image: ClusterImage, now_ns: int) -> None:
        """Forget proposals whose change was applied, or that got no answer in time. They may be proposed again."""
        self._proposed = {
            key: (epoch, at_ns)
            for key, (epoch, at_ns) in self._proposed.items()
            if now_ns - at_ns < REPEAT_AFTER_NS and _epoch(image, self._names.get(key[0]), key) == epoch
        }
        self._started_copies = {key: start for key, start in self._started_copies.items() if key in self._proposed}
        self._transfers = {
            key: epoch
            for key, epoch in self._transfers.items()
            if key in self._proposed or not _is_online(image, self._names.get(key[0]), key)
        }
        self._failed_copies = {
            key: epoch for key, epoch in self._failed_copies.items() if _epoch(image, self._names.get(key[0]), key) == epoch
        }
        self._failed_nodes = {
            node_id: (incarnation, until_ns)
            for node_id, (incarnation, until_ns) in self._failed_nodes.items()
            if now_ns < until_ns and node_id in image.nodes and image.nodes[node_id].incarnation == incarnation
        }

    def _next_plan_ns(self, step: _PlanningStep) -> int | None:
        if any(self._lists) or any(step.image.replica_counts.get(n) for n in step.gone):
            return step.now_ns + REPEAT_AFTER_NS
        ends = [
            since_ns + self._grace_ns
            for node_id, since_ns in self._down_since_ns.items()
            if self._grace_ns and step.image.replica_counts.get(node_id) and since_ns + self._grace_ns > step.now_ns
        ]
        return min(ends, default=None)

    def _propose(self, step: _PlanningStep, place: _Place) -> bool:
        """Register a proposal for the partition at ``place``. Return False if a recent proposal for it is not finished yet.

        A proposal is finished when it is applied or has timed out.
        """
        stream, partition = place
        key = (stream.uid, partition.partition)
        if key in self._proposed:
            return False
        self._names[stream.uid] = stream.name
        self._proposed[key] = (partition.epoch, step.now_ns)
        return True

    # ---- what is proposed --------------------------------------------------------------------------------------------
    def _cancellations(self, step: _PlanningStep) -> Iterator[Proposed]:
        """Yield proposals that cancel moves and copies whose reason is gone or whose node is lost, or that change their target."""
        for place in list(self._copying.values()):
            partition = place[1]
            if self._is_needless(step, partition):
                if self._propose(step, place):
                    self.counters["moves_cancelled_no_reason"] += 1
                    yield _cancel_request(place)
            elif partition.joining not in partition.target and self._propose(step, place):
                self.counters["copies_cancelled_no_reason"] += 1
                yield _stop_copy_request(place)
            elif step.must_be_replaced(partition.joining) and self._propose(step, place):
                self.counters["copies_cancelled_node_unavailable"] += 1
                yield _stop_copy_request(place)
            elif (place[0].uid, partition.partition) in self._failed_copies and self._propose(step, place):
                self.counters["copies_cancelled_storage_failed"] += 1
                yield _stop_copy_request(place)
            else:
                yield from self._corrected_targets(step, place)
        for place in list(islice(self._waiting.values(), _MAX_CHECKED)):
            partition = place[1]
            if self._is_needless(step, partition):
                if self._propose(step, place):
                    self.counters["moves_cancelled_no_reason"] += 1
                    yield _cancel_request(place)
            elif step.needs_other_node(partition):
                yield from self._retargeted_moves(step, place)
            else:
                yield from self._corrected_targets(step, place)
        for place in list(islice(self._finishing.values(), _MAX_CHECKED)):
            yield from self._corrected_targets(step, place)
        for place in list(islice(self._leading.values(), _MAX_CHECKED)):
            if step.must_be_replaced(place[1].replicas[0]) and self._propose(step, place):
                self.counters["moves_cancelled_node_unavailable"] += 1
                yield _cancel_request(place)

    def _corrected_targets(self, step: _PlanningStep, place: _Place) -> Iterator[Proposed]:
        """Yield proposals that correct the target of a partition, because a node was lost or is back.

        Another node replaces a lost replica that should stay. A replica that was being replaced and is back stays.
        """
        stream, partition = place
        target, replicas = list(partition.target), partition.replicas
        spare = [node_id for node_id in replicas if node_id not in target and not step.is_down_or_drained(node_id)]
        spare.sort(key=lambda node_id: node_id not in partition.isr)
        for number, node_id in enumerate(target):
            if node_id in replicas and step.must_be_replaced(node_id):
                remaining = [n for n in target if n != node_id]
                other = spare.pop(0) if spare else None
                other = other or self._destination_nodes(step).choose(
                    remaining, replicas, strictly=stream.placement == RACK_STRICT
                )
                target[number] = other or node_id
        to_come = [node_id for node_id in target if node_id not in replicas]
        to_come.sort(key=lambda node_id: node_id == partition.joining)
        for back, node_id in zip(spare if partition.moved_for in _OWN else (), to_come, strict=False):
            target[target.index(node_id)] = back
        if tuple(target) != partition.target and self._propose(step, place):
            self.counters["targets_corrected"] += 1
            yield _reassign(place, tuple(target), partition.moved_for)

    def _is_needless(self, step: _PlanningStep, partition: PartitionState) -> bool:
        going = [node_id for node_id in partition.replicas if node_id not in partition.target]
        return partition.moved_for in _OWN and bool(going) and not any(step.is_down_or_drained(node_id) for node_id in going)

    def _retargeted_moves(self, step: _PlanningStep, place: _Place) -> Iterator[Proposed]:
        """Yield a proposal with another node in place of the one that should join next and is lost.

        If an operator had chosen the node, the proposal cancels the move.
        """
        stream, partition = place
        if partition.moved_for not in _CHOSEN_BY_PLANNER:
            if self._propose(step, place):
                self.counters["moves_cancelled_node_unavailable"] += 1
                yield _cancel_request(place)
            return
        lost = partition.next_learner
        remaining = [node_id for node_id in partition.target if node_id != lost]
        other = self._destination_nodes(step).choose(remaining, partition.replicas, strictly=stream.placement == RACK_STRICT)
        if other is not None and self._propose(step, place):
            yield _reassign(place, tuple(other if n == lost else n for n in partition.target), partition.moved_for)

    def _copies(self, step: _PlanningStep) -> Iterator[Proposed]:
        into: Counter[str] = Counter()
        out_of: Counter[str] = Counter()
        for _, partition in self._copying.values():
            into[partition.joining] += 1
            out_of[partition.leader] += 1
        for _, node_id, leader in self._started_copies.values():
            into[node_id] += 1
            out_of[leader] += 1
        count = into.total()
        for place in list(islice(self._waiting.values(), _MAX_CHECKED)):
            stream, partition = place
            node_id, leader = partition.next_learner, partition.leader
            if count >= self._at_once:
                return
            if into[node_id] >= self._per_node or out_of[leader] >= self._per_node or not step.may_copy(partition):
                continue
            if not self._propose(step, place):
                continue
            count += 1
            into[node_id] += 1
            out_of[leader] += 1
            self._started_copies[stream.uid, partition.partition] = (partition.epoch, node_id, leader)
            self.counters["copies_started"] += 1
            yield pb.BeginCopy(
                stream=stream.name, uid=stream.uid, partition=partition.partition, epoch=partition.epoch, node=node_id
            )

    def _leaderships(self, step: _PlanningStep) -> Iterator[Proposed]:
        """Yield proposals of leadership transfers: first away from drained nodes, then those of a rebalance."""
        yield from self._move_leaderships_off(step)
        for place in list(islice(self._leading.values(), _MAX_CHECKED)):
            stream, partition = place
            if len(self._transfers) >= TRANSFERS_AT_ONCE:
                return
            first = partition.leader_to_elect
            if first in step.leader_candidates(partition) and self._propose(step, place):
                self._transfers[stream.uid, partition.partition] = partition.epoch
                self.counters["leaderships_rebalanced"] += 1
                yield pb.ElectLeader(stream=stream.name, uid=stream.uid, partition=partition.partition, node=first)

    def _move_leaderships_off(self, step: _PlanningStep) -> Iterator[Proposed]:
        room = TRANSFERS_AT_ONCE - len(self._transfers)
        new_leaders: Counter[str] = Counter()
        for node_id in step.gone:
            if not (step.image.is_live(node_id) and step.image.leader_counts.get(node_id)):
                continue
            for place in step.image.partitions_of(node_id):
                stream, partition = place
                to = step.leader_candidates(partition) if partition.leader == node_id else []
                if room <= 0:
                    return
                if not to or not self._propose(step, place):
                    continue
                new_leader = min(
                    to, key=lambda n: (step.image.leader_counts.get(n, 0) + new_leaders[n], partition.replicas.index(n))
                )
                new_leaders[new_leader] += 1
                room -= 1
                self._transfers[stream.uid, partition.partition] = partition.epoch
                self.counters["leaderships_moved_from_drained_nodes"] += 1
                yield pb.ElectLeader(stream=stream.name, uid=stream.uid, partition=partition.partition, node=new_leader)

    def _targets(self, step: _PlanningStep) -> Iterator[Proposed]:
        room = TARGETS_AHEAD * self._at_once - len(self._waiting)
        for node_id in step.gone:
            for place in step.image.partitions_of(node_id):
                if room <= 0:
                    return
                stream, partition = place
                if partition.target or partition.joining or partition.status is not PartitionStatus.ONLINE:
                    continue
                if partition.leader == node_id and step.leader_candidates(partition):
                    continue  # its leadership goes first
                target = self._replace_lost_nodes(step, stream, partition)
                if target != partition.replicas and self._propose(step, place):
                    room -= 1
                    reason = MoveReason.DRAINED if step.image.nodes[node_id].leaving else MoveReason.REPLACED
                    self.counters[f"targets: {reason.words}"] += 1
                    yield _reassign(place, target, reason)

    def _replace_lost_nodes(self, step: _PlanningStep, stream: StreamImage, partition: PartitionState) -> tuple[str, ...]:
        """Return the partition's replicas with other nodes in place of the lost or drained ones.

        A node for which there is no other one stays.
        """
        target = list(partition.replicas)
        for number, node_id in enumerate(partition.replicas):
            if step.must_be_replaced(node_id):
                remaining = [n for n in target if n != node_id and not step.must_be_replaced(n)]
                other = self._destination_nodes(step).choose(remaining, target, strictly=stream.placement == RACK_STRICT)
                target[number] = other or node_id
        return tuple(target)

    def _destination_nodes(self, step: _PlanningStep) -> DestinationNodes:
        if step.destinations is None:
            places = (*self._waiting.values(), *self._copying.values(), *self._finishing.values())
            replica_counts = Counter(dict(step.image.replica_counts))
            for _, partition in places:
                for node_id, change in yield_replica_changes(partition):
                    replica_counts[node_id] += change
            stays = [node for node in facts_of(step.image) if not step.must_be_replaced(node.node_id)]
            step.destinations = DestinationNodes(  # the racks of nodes that get no replica count, too
                [node if step.may_receive(node.node_id) else replace(node, live=False) for node in stays], replica_counts
            )
        return step.destinations


class _PlanningStep:
    """Facts that the planner needs for one planning step.

    ``gone``: nodes whose replicas must move. ``failed``: nodes whose storage has failed, so that they get no copy.
    """

    def __init__(self, image: ClusterImage, now_ns: int, gone: list[str], failed: frozenset[str]) -> None:
        self.image = image
        self.now_ns = now_ns
        self.gone = gone
        self._lost_nodes = frozenset(gone)
        self._failed_nodes = failed
        self.destinations: DestinationNodes | None = None

    def must_be_replaced(self, node_id: str) -> bool:
        """Return whether the replicas of the node must move: it is down for too long, drained, or unknown."""
        return node_id in self._lost_nodes or node_id not in self.image.nodes

    def may_receive(self, node_id: str) -> bool:
        """Return whether the node may get copies: its replicas need not move, and its storage has not failed lately."""
        return not self.must_be_replaced(node_id) and node_id not in self._failed_nodes

    def needs_other_node(self, partition: PartitionState) -> bool:
        """Return whether the next copy of the partition cannot go to the node that its target names.

        A node that an operator has chosen, and whose storage has failed, stays the target. The copy to it starts later.
        """
        is_kept = partition.moved_for not in _CHOSEN_BY_PLANNER
        return self.must_be_replaced(partition.next_learner) or not (is_kept or self.may_receive(partition.next_learner))

    def is_down_or_drained(self, node_id: str) -> bool:
        return not self.image.is_live(node_id) or self.image.nodes[node_id].leaving

    def may_copy(self, partition: PartitionState) -> bool:
        """Return whether the next copy of the partition's log may begin.

        The partition needs a leader, and all live replicas that stay must be in the ISR.
        """
        staying = [n for n in partition.replicas if n in partition.target and self.image.is_live(n)]
        return (
            partition.status is PartitionStatus.ONLINE
            and self.image.is_live(partition.next_learner)
            and self.may_receive(partition.next_learner)
            and all(node_id in partition.isr for node_id in staying)
        )

    def leader_candidates(self, partition: PartitionState) -> list[str]:
        """Return the nodes to which a drained leader can transfer the leadership of the partition."""
        if partition.status is not PartitionStatus.ONLINE:
            return []
        return [
            n
            for n in partition.isr
            if n != partition.leader and not self.is_down_or_drained(n) and n not in partition.incomplete
        ]


def _moves(partition: PartitionState) -> bool:
    return bool(partition.target or partition.joining or partition.leader_to_elect)


def _reassign(place: _Place, target: tuple[str, ...], reason: MoveReason) -> pb.Reassign:
    stream, partition = place
    return pb.Reassign(
        stream=stream.name,
        uid=stream.uid,
        partition=partition.partition,
        replicas=target,
        movedFor=reason_to_pb(reason),
        epoch=partition.epoch,
    )


def _cancel_request(place: _Place) -> pb.Reassign:
    stream, partition = place
    return pb.Reassign(stream=stream.name, uid=stream.uid, partition=partition.partition, cancel=True, epoch=partition.epoch)


def _stop_copy_request(place: _Place) -> pb.BeginCopy:
    """Return the request that ends the running copy of a partition, so that no node joins."""
    stream, partition = place
    return pb.BeginCopy(stream=stream.name, uid=stream.uid, partition=partition.partition, epoch=partition.epoch)


def _epoch(image: ClusterImage, name: str | None, key: _Key) -> int:
    location = image.find(name, *key) if name is not None else None
    return location[1].epoch if location is not None else -1


def _is_online(image: ClusterImage, name: str | None, key: _Key) -> bool:
    location = image.find(name, *key) if name is not None else None
    return location is None or location[1].status is PartitionStatus.ONLINE
