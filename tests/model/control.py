"""The control model: the shipped ``ClusterFsm``, three nodes, one partition, and everything that may be asked of it in any order.

Requests name what they were made on, so one of them may wait (``pending``) while the state goes on. Nodes die, are silent while they
live, come back, with what they had, with an empty folder, or with a copy of it that was made before. A process may die after it was
registered and before it has stored that. In the bounds with a swap the partition lies on two nodes, and a replica moves to the third.

The data are a number for each folder: how much of what was committed it holds. A commit is everything to all who count at that
moment, the ISR and who may have joined it; so whoever may lead has to hold all of it [D3], unless its folder has lost something and
nobody has been told yet. What replicas do beyond that is in the replica model.

What was applied to an image is remembered; an image is what the snapshot holds, and every one is restored from its snapshot [M7].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.codec import image_to_bytes
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.idempotency import IdempotencyCache
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm, registration
from tests.model.search import Broken
from tests.model.structure import Interned

NODES = ("a", "b", "c")
_WHERE: dict[str, Any] = {"stream": "s", "partition": 0}
_MIN_ISR = 2


class Node(NamedTuple):
    """A node: its folder, and the process on it. ``incarnation`` 0: none runs."""

    starts: DirectoryIdentity
    stored: int
    """The incarnation that the folder knows."""
    data: int
    """How many commits the folder holds."""
    incarnation: int
    lost: bool = False
    """The folder has lost something since a process registered on it."""


class Budget(NamedTuple):
    """What may still happen, in all."""

    commits: int = 2
    deaths: int = 2
    losses: int = 1
    """Folders that are emptied, or put back."""
    fences: int = 1
    """Sessions that end while the process lives."""
    moves: int = 1
    swaps: int = 0
    """RequestBatcher that a replica lies elsewhere, or that it stays. With some the partition begins on two of the nodes."""


class State(NamedTuple):
    """``copy``: (whose, its folder as it was). ``pending``: a request that was made earlier. ``witnesses``: who has reported the
    leadership of now, as the process that it is now."""

    image: int
    nodes: tuple[Node, Node, Node]
    copy: tuple[str, Node] | None
    pending: tuple[str, bytes] | None
    committed: int
    witnesses: frozenset[str]
    left: Budget


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, for people and for the group. ``sets`` is what else changes when it leaves."""

    what: str
    request: pb.ControlRequest


def _held(image: ClusterImage) -> tuple[Any, ...]:
    return (
        *(image.nodes[name] for name in NODES),
        image.streams["s"],
        image.reports.get((image.streams["s"].uid, 0)),
        image.counters,
    )


class ControlModel:
    """``pending``: whether requests may wait."""

    def __init__(self, budget: Budget | None = None, *, pending: bool = True) -> None:
        self._budget = budget or Budget()
        self._pending = pending
        self._images = Interned()
        self._applied: dict[tuple[int, bytes], tuple[int, bool] | Broken] = {}

    # ---- the first state ---------------------------------------------------------------------------------------------
    def first(self) -> State:
        """All nodes have registered, the stream is there, a leads it and all are in sync."""
        fsm, nodes = born_fsm(elections=True), []
        for number, name in enumerate(NODES, 1):
            starts = DirectoryIdentity(f"folder-{name}").next(number)
            request = registration(nodeId=name)
            starts.write_to(request)
            self._apply_to(fsm, pb.ControlRequest(registerNode=request))
            nodes.append(Node(starts.after_registration(), number, 0, number))
        create = pb.CreateStream(name="s", subject="s", partitions=1, replicationFactor=3)
        if self._budget.swaps:
            create = pb.CreateStream(name="s", subject="s", manual=[pb.ReplicaList(partition=0, replicas=NODES[:2])])
        self._apply_to(fsm, pb.ControlRequest(createStream=create))
        assert self._partition_of(fsm.image).leader, "no stream was made"
        return State(self._add(fsm.image), (nodes[0], nodes[1], nodes[2]), None, None, 0, frozenset(), self._budget)

    @staticmethod
    def _apply_to(fsm: ClusterFsm, request: pb.ControlRequest) -> pb.ControlResponse:
        request.operationId, request.timeNs = b"0123456789abcdef", 1
        response = pb.ControlResponse.FromString(fsm.apply(request.SerializeToString(deterministic=True), fsm.image.index + 1))
        check(fsm.failure_count == 0, "M6", response.detail)
        fsm.image = replace(fsm.image, index=0, time_ns=0, operations=IdempotencyCache())
        return response

    def _add(self, image: ClusterImage) -> int:
        return self._images.number(image_to_bytes(image), image)

    @staticmethod
    def _partition_of(image: ClusterImage) -> PartitionState:
        return image.streams["s"].partitions[0]

    def _apply(self, number: int, data: bytes) -> tuple[int, bool] | Broken:
        """(image after it, whether it was accepted)."""
        found = self._applied.get((number, data))
        if found is None:
            fsm = born_fsm(elections=True)
            before: ClusterImage = self._images[number]
            fsm.image = before
            try:
                response = self._apply_to(fsm, pb.ControlRequest.FromString(data))
                restored = born_fsm(elections=True)
                restored.restore(fsm.snapshot())
                check(_held(restored.image) == _held(fsm.image), "M7", _held(restored.image), "is not", _held(fsm.image))
                self._look(before, fsm.image, pb.ControlRequest.FromString(data), response)
                found = self._add(fsm.image), response.error == pb.ControlResponse.OK
            except AssertionError:
                raise
            except Exception as error:
                found = Broken(f"{type(error).__name__}: {error}")
            self._applied[number, data] = found
        return found

    def _look(
        self, before: ClusterImage, after: ClusterImage, request: pb.ControlRequest, response: pb.ControlResponse
    ) -> None:
        """What a single decision may not do."""
        old, new = self._partition_of(before), self._partition_of(after)
        electable_replicas = old.electable_replicas(before.streams["s"].config.commit_policy)
        check(set(new.isr) <= set(new.replicas) and bool(new.isr), "C3", new)
        check(not new.leader or new.leader in new.isr, "C3", new)
        check(new == old or new.epoch > old.epoch, "C2", old, new)
        check(new.leader_epoch >= old.leader_epoch and after.counters.next_leader_epoch > new.leader_epoch, "C2", old, new)
        acting = old.leader or old.candidate, new.leader or new.candidate
        if all(acting) and acting[0] != acting[1]:
            check(new.leader_epoch > old.leader_epoch, "C1", "epoch", new.leader_epoch, "of", *acting)
        if new.candidate and new.leader_epoch > old.leader_epoch:
            check(after.is_live(new.candidate), "C5", new.candidate, "is fenced and shall lead")
            registers = request.HasField("registerNode")
            check(
                registers or new.candidate in electable_replicas,
                "C5",
                new.candidate,
                "shall lead, who may is",
                electable_replicas,
            )
        same_leadership = new.leader and (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)
        if same_leadership:
            processes = before.nodes[new.leader].incarnation, after.nodes[new.leader].incarnation
            check(processes[0] == processes[1], "C1", "epoch", new.leader_epoch, "spans the processes", processes)
        for name in set(new.isr) - set(old.isr):
            check(after.is_live(name), "C6", name, "joins and is fenced")
        if request.HasField("changeIsr") and response.error == pb.ControlResponse.OK:
            asked = request.changeIsr
            current = asked.leader, asked.leaderEpoch, asked.epoch
            check(current == (old.leader, old.leader_epoch, old.epoch), "C4", "made on", current, "but it is", old)
            for name in set(new.isr) - set(old.isr):
                check(asked.incarnations[name] == after.nodes[name].incarnation, "C6", name, "joins as another incarnation")

    # ---- steps -------------------------------------------------------------------------------------------------------
    def steps(self, state: State) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        """Everything that may happen next."""
        image: ClusterImage = self._images[state.image]
        partition = self._partition_of(image)
        yield from self._commits(state, image, partition)
        yield from self._copies(state, image, partition)
        for i, name in enumerate(NODES):
            yield from self._lives(state, i, name)
        for asked in self._requests(state, image, partition):
            data = asked.request.SerializeToString(deterministic=True)
            yield from self._decided(state, asked.what, data, state.pending)
            if (
                self._pending
                and state.pending is None
                and asked.request.WhichOneof("request") in ("changeIsr", "reportPromotion")
            ):
                yield (asked.what, "leaves"), state._replace(pending=(asked.what, data))
        if state.pending is not None:
            yield from self._decided(state, f"late: {state.pending[0]}", state.pending[1], None)
            yield (state.pending[0], "is lost"), state._replace(pending=None)

    def _runs(self, state: State, image: ClusterImage, name: str) -> bool:
        """Whether the process that is registered runs."""
        return state.nodes[NODES.index(name)].incarnation == image.nodes[name].incarnation

    def _commits(
        self, state: State, image: ClusterImage, partition: PartitionState
    ) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        """To all who count: the ISR, and who may be in it by a request on its way [C8]."""
        counted = set(partition.isr)
        if state.pending is not None:
            request = pb.ControlRequest.FromString(state.pending[1])
            if request.HasField("changeIsr") and request.changeIsr.epoch == partition.epoch:
                counted |= set(request.changeIsr.isr)
        online = partition.status is PartitionStatus.ONLINE and len(partition.isr) >= _MIN_ISR
        holds = online and state.nodes[NODES.index(partition.leader)].data == state.committed
        if holds and state.left.commits and all(self._runs(state, image, name) for name in counted):
            nodes = tuple(
                node._replace(data=state.committed + 1) if name in counted else node
                for name, node in zip(NODES, state.nodes, strict=True)
            )
            left = state.left._replace(commits=state.left.commits - 1)
            yield ("commit", *sorted(counted)), state._replace(nodes=nodes, committed=state.committed + 1, left=left)

    def _copies(
        self, state: State, image: ClusterImage, partition: PartitionState
    ) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        """The learner has got everything from the leader."""
        name, leader = partition.joining, partition.leader
        if not (name and leader and self._runs(state, image, name) and self._runs(state, image, leader)):
            return
        i, has = NODES.index(name), state.nodes[NODES.index(leader)].data
        if state.nodes[i].data < has:
            copied = state.nodes[i]._replace(data=has)
            yield (name, "has copied"), state._replace(nodes=(*state.nodes[:i], copied, *state.nodes[i + 1 :]))

    def _lives(self, state: State, i: int, name: str) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        """Processes begin and end, folders are copied, put back and emptied."""
        node, left = state.nodes[i], state.left

        def with_node(changed: Node, **others: Any) -> State:
            return state._replace(nodes=(*state.nodes[:i], changed, *state.nodes[i + 1 :]), **others)

        if node.incarnation:
            if left.deaths:
                yield (name, "dies"), with_node(node._replace(incarnation=0), left=left._replace(deaths=left.deaths - 1))
            return
        if left.losses:
            spent = left._replace(losses=left.losses - 1)
            if state.copy is None:
                yield (name, "folder is copied"), state._replace(copy=(name, node))
            elif state.copy[0] == name and state.copy[1] != node:
                back = state.copy[1]._replace(lost=state.copy[1].data < state.committed)
                yield (name, "copy is put back"), with_node(back, left=spent)
            if node.stored:
                empty = Node(DirectoryIdentity(f"new-{name}"), 0, 0, 0, lost=bool(node.data))
                yield (name, "folder is emptied"), with_node(empty, left=spent)
        starts = node.starts.next(self._nonce(state))
        request = registration(nodeId=name, previousIncarnation=node.stored, flushedAlways=True)
        starts.write_to(request)
        data = pb.ControlRequest(registerNode=request).SerializeToString(deterministic=True)
        applied = self._apply(state.image, data)
        if isinstance(applied, Broken):
            yield (name, "registers"), applied
            return
        image, accepted = applied
        registered = self._images[image].nodes[name].incarnation
        witnesses = state.witnesses - {name}
        if accepted:
            taken = Node(starts.after_registration(), registered, node.data, registered)
            yield (name, "registers"), self._looked(state, with_node(taken, image=image, witnesses=witnesses))
        if left.deaths:
            died = node._replace(starts=starts, incarnation=0)
            dead = with_node(died, image=image, witnesses=witnesses, left=left._replace(deaths=left.deaths - 1))
            yield (name, "registers and dies"), self._looked(state, dead)

    def _nonce(self, state: State) -> int:
        known = [nonce for node in state.nodes for nonce in (node.starts.nonce, *node.starts.earlier)]
        if state.copy is not None:
            known += [state.copy[1].starts.nonce, *state.copy[1].starts.earlier]
        image: ClusterImage = self._images[state.image]
        return max(known + [image.nodes[name].nonce for name in NODES]) + 1

    def _requests(self, state: State, image: ClusterImage, partition: PartitionState) -> Iterator[Asked]:
        """What somebody may ask for in this state."""
        epoch, leader_epoch, status = partition.epoch, partition.leader_epoch, partition.status
        for name in NODES:
            incarnation = image.nodes[name].incarnation
            if image.nodes[name].fenced:
                if self._runs(state, image, name):
                    back = pb.UnfenceNode(nodeId=name, incarnation=incarnation)
                    yield Asked(f"session of {name} is back", pb.ControlRequest(unfenceNode=back))
            elif not self._runs(state, image, name) or state.left.fences:
                ends = pb.FenceNode(nodeId=name, incarnation=incarnation)
                yield Asked(f"session of {name} ends", pb.ControlRequest(fenceNode=ends))
            if self._runs(state, image, name) and status in (PartitionStatus.ONLINE, PartitionStatus.ELECTION):
                report = pb.ReportLeader(
                    **_WHERE, witness=name, witnessIncarnation=incarnation, leader=partition.leader, leaderEpoch=leader_epoch,
                    lastEpoch=1, newestOffset=state.nodes[NODES.index(name)].data,
                )  # fmt: skip
                yield Asked(f"{name} reports", pb.ControlRequest(reportLeader=report))
        yield from self._swaps(state, partition)
        if status is PartitionStatus.ONLINE:
            yield from self._isr_changes(state, image, partition)
            if state.left.moves:
                for name in partition.isr:
                    if name != partition.leader:
                        yield Asked(f"move to {name}", pb.ControlRequest(electLeader=pb.ElectLeader(**_WHERE, node=name)))
        elif status is PartitionStatus.ELECTION:
            ends_now = pb.ConcludeElection(**_WHERE, epoch=epoch)
            yield Asked("positions are waited for no longer", pb.ControlRequest(concludeElection=ends_now))
        elif status is PartitionStatus.CANDIDATE_FOUND:
            over = pb.PassOver(**_WHERE, candidate=partition.candidate, leaderEpoch=leader_epoch, epoch=epoch)
            yield Asked(f"{partition.candidate} is passed over", pb.ControlRequest(passOver=over))
            if self._runs(state, image, partition.candidate):
                promoted = pb.ReportPromotion(
                    **_WHERE, candidate=partition.candidate, candidateIncarnation=image.nodes[partition.candidate].incarnation,
                    leaderEpoch=leader_epoch, epoch=epoch, finished=True,
                )  # fmt: skip
                yield Asked(f"{partition.candidate} is ready", pb.ControlRequest(reportPromotion=promoted))

    def _swaps(self, state: State, partition: PartitionState) -> Iterator[Asked]:
        """Where the replicas are to be; the copies that follow from it begin, and are given up."""
        if state.left.swaps:
            for kept in partition.replicas:
                wanted = [kept, *(name for name in NODES if name not in partition.holders)]
                if len(wanted) == 2:
                    there = pb.Reassign(**_WHERE, replicas=wanted)
                    yield Asked(f"to be on {''.join(wanted)}", pb.ControlRequest(reassign=there))
            if partition.target:
                yield Asked("they stay", pb.ControlRequest(reassign=pb.Reassign(**_WHERE, cancel=True)))
        if partition.next_learner:
            begun = pb.BeginCopy(**_WHERE, epoch=partition.epoch, node=partition.next_learner)
            yield Asked(f"{partition.next_learner} learns", pb.ControlRequest(beginCopy=begun))
        if partition.joining and state.left.swaps:
            given_up = pb.BeginCopy(**_WHERE, epoch=partition.epoch)
            yield Asked("its copy is given up", pb.ControlRequest(beginCopy=given_up))

    def _isr_changes(self, state: State, image: ClusterImage, partition: PartitionState) -> Iterator[Asked]:
        """By the leader: one leaves, or one joins that holds everything and runs; or one goes for good."""
        if not self._runs(state, image, partition.leader):
            return
        if partition.leaving not in ("", partition.leader):
            yield self._change(image, partition, [n for n in partition.isr if n != partition.leaving], partition.leaving)
        for i, name in enumerate(NODES):
            if name == partition.leader or name not in partition.holders:
                continue
            leaves = name in partition.isr
            if not leaves and not (self._runs(state, image, name) and state.nodes[i].data == state.committed):
                continue
            yield self._change(image, partition, [n for n in NODES if (n in partition.isr) != (n == name)])

    @staticmethod
    def _change(image: ClusterImage, partition: PartitionState, members: list[str], evicted: str = "") -> Asked:
        change = pb.ChangeIsr(
            **_WHERE,
            leader=partition.leader,
            leaderEpoch=partition.leader_epoch,
            epoch=partition.epoch,
            isr=members,
            evicted=evicted,
        )
        change.incarnations.update({n: image.nodes[n].incarnation for n in members})
        goes = f", {evicted} goes" if evicted else ""
        return Asked(f"ISR {''.join(members)}{goes}", pb.ControlRequest(changeIsr=change))

    def _decided(
        self, state: State, what: str, data: bytes, pending: tuple[str, bytes] | None
    ) -> Iterator[tuple[tuple[Any, ...], State | Broken]]:
        applied = self._apply(state.image, data)
        if isinstance(applied, Broken):
            yield (what,), applied
            return
        image, accepted = applied
        request, left, witnesses = pb.ControlRequest.FromString(data), state.left, state.witnesses
        before: ClusterImage = self._images[state.image]
        if request.HasField("fenceNode") and self._runs(state, before, request.fenceNode.nodeId):
            left = left._replace(fences=left.fences - 1)
        if request.HasField("reassign") or (request.HasField("beginCopy") and not request.beginCopy.node):
            left = left._replace(swaps=left.swaps - 1)
        if request.HasField("electLeader"):
            left = left._replace(moves=left.moves - 1)
        if request.HasField("reportLeader") and accepted:
            witnesses |= {request.reportLeader.witness}
        if image == state.image and pending == state.pending:
            return
        reached = state._replace(image=image, pending=pending, left=left, witnesses=witnesses)
        if request.HasField("reportLeader"):
            broken = self._deposed_by_few(state, reached)
            if broken is not None:
                yield (what,), broken
                return
        yield (what,), self._looked(state, reached)

    def _deposed_by_few(self, state: State, reached: State) -> Broken | None:
        old, new = self._partition_of(self._images[state.image]), self._partition_of(self._images[reached.image])
        deposed = old.status is PartitionStatus.ONLINE and new.status is not PartitionStatus.ONLINE
        told = reached.witnesses & set(old.isr) - {old.leader}
        if deposed and not (len(old.isr) > _MIN_ISR and 2 * len(told) > len(old.isr) - 1):
            return Broken(f"invariant C9 does not hold: {old.leader} is deposed, told by {sorted(told)} of {old.isr}")
        return None

    def _looked(self, state: State, reached: State) -> State | Broken:
        """What holds in every state."""
        image: ClusterImage = self._images[reached.image]
        old, new = self._partition_of(self._images[state.image]), self._partition_of(image)
        if (old.leader, old.leader_epoch) != (new.leader, new.leader_epoch):
            reached = reached._replace(witnesses=frozenset())
        for name in new.electable_replicas(image.streams["s"].config.commit_policy):
            node = reached.nodes[NODES.index(name)]
            told = node.incarnation == image.nodes[name].incarnation
            if node.data < reached.committed and (told or not node.lost):
                return Broken(f"invariant D3 does not hold: {name} may lead and holds {node.data} of {reached.committed}")
        return reached

    # ---- for people --------------------------------------------------------------------------------------------------
    def told(self, state: State, action: tuple[Any, ...]) -> str:
        """What was done."""
        return " ".join(action)

    def shown(self, state: State) -> str:
        """The partition, and how many of the commits each node's folder holds."""
        image: ClusterImage = self._images[state.image]
        p = self._partition_of(image)
        nodes = ", ".join(
            f"{name}{'' if node.incarnation else ' down'}{' fenced' if image.nodes[name].fenced else ''} {node.data}"
            for name, node in zip(NODES, state.nodes, strict=True)
        )
        who = p.leader or f"{p.status.name} {p.candidate}".strip()
        moving = f" ({''.join(p.replicas)} to {''.join(p.target)}, {p.joining or 'nobody'} learns)" if p.target else ""
        return f"{who} e{p.leader_epoch}/{p.epoch} isr {''.join(p.isr)}{moving}; of {state.committed} commits: {nodes}"
