"""The metadata group of a model: the shipped decisions on shipped images, each taken once and remembered.

An image here is a ``ClusterImage`` of three nodes and one partition. Its number stands for all that decides: the partition, the
nodes, what was reported, the next LeaderEpoch and Epoch.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import permutations
from typing import Any

from immutables import Map

from liftpy.config import StreamConfig
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionMetadata, PartitionState
from liftpy.core.metadata.controller.record_builder import Rules
from liftpy.core.metadata.controller.requests import decide
from liftpy.core.metadata.image import ClusterImage, Counters, LeaderReport, NodeImage, StreamImage
from liftpy.core.metadata.records import replay_all
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import registration
from tests.model.cells import KEY, Message, in_name_order
from tests.model.search import Broken
from tests.model.structure import Interned, Names, Structure

NODES = ("a", "b", "c")
PERMUTATIONS: tuple[dict[str, str], ...] = tuple(dict(zip(NODES, order, strict=True)) for order in permutations(NODES))
_RULES = Rules("liftpy", elections=True)
_STRUCTURE = Structure(state=(), values=(PartitionState, NodeImage, LeaderReport))

State = tuple[PartitionMetadata, tuple[tuple[str, int], ...]]


def first_image() -> ClusterImage:
    """a leads, all are in sync; every node is in its first incarnation, so that they differ by name alone."""
    nodes = Map({name: NodeImage(node_id=name, incarnation=1) for name in NODES})
    partition = PartitionState(
        partition=0, replicas=NODES, isr=NODES, leader="a", leader_epoch=1, epoch=1, last_leader="a", leaderships=1
    )
    image = ClusterImage(nodes=nodes, counters=Counters(2, 1, 2, 2))
    return image.with_stream(StreamImage(KEY.stream, KEY.uid, "subject", StreamConfig(), (partition,)))


def form(image: ClusterImage) -> Hashable:
    """What decides."""
    partition = image.streams[KEY.stream].partitions[0]
    nodes = tuple(image.nodes[name] for name in NODES)
    counters = image.counters
    reports = image.reports.get((KEY.uid, 0), ())
    return partition, nodes, reports, counters.next_leader_epoch, counters.next_epoch, image.session_times


def request_of(message: Message, image: ClusterImage) -> pb.ControlRequest:
    """The request that a message is, or that a timer or a command of this name makes on this image."""
    kind = message[0]
    partition = image.streams[KEY.stream].partitions[0]
    where = {"stream": KEY.stream, "uid": KEY.uid, "partition": 0}
    if kind == "isr":
        _, src, _, isr, leader_epoch, epoch, incarnations, lost = message
        change = pb.ChangeIsr(**where, leader=src, leaderEpoch=leader_epoch, epoch=epoch, isr=isr, lost=lost)
        change.incarnations.update(dict(incarnations))
        return pb.ControlRequest(changeIsr=change)
    if kind == "report":
        _, src, _, incarnation, leader, leader_epoch, last_epoch, newest, hw, lacks = message
        report = pb.ReportLeader(
            **where, witness=src, witnessIncarnation=incarnation, leader=leader, leaderEpoch=leader_epoch, lastEpoch=last_epoch,
            newestOffset=newest, highWatermark=hw, leaderLacks=lacks,
        )  # fmt: skip
        return pb.ControlRequest(reportLeader=report)
    if kind == "promoted":
        _, src, _, incarnation, leader_epoch, epoch = message
        promotion = pb.ReportPromotion(
            **where, candidate=src, candidateIncarnation=incarnation, leaderEpoch=leader_epoch, epoch=epoch, finished=True
        )
        return pb.ControlRequest(reportPromotion=promotion)
    if kind == "session ends":
        return pb.ControlRequest(fenceNode=pb.FenceNode(nodeId=message[1], incarnation=image.nodes[message[1]].incarnation))
    if kind == "session is back":
        return pb.ControlRequest(unfenceNode=pb.UnfenceNode(nodeId=message[1], incarnation=image.nodes[message[1]].incarnation))
    if kind == "registers":
        known = image.nodes[message[1]].incarnation
        return pb.ControlRequest(registerNode=registration(nodeId=message[1], previousIncarnation=known, flushedAlways=True))
    if kind == "positions are waited for no longer":
        return pb.ControlRequest(concludeElection=pb.ConcludeElection(**where, epoch=partition.epoch))
    if kind == "candidate is passed over":
        over = pb.PassOver(**where, candidate=partition.candidate, leaderEpoch=partition.leader_epoch, epoch=partition.epoch)
        return pb.ControlRequest(passOver=over)
    if kind == "leadership is moved to":
        return pb.ControlRequest(electLeader=pb.ElectLeader(**where, node=message[1]))
    if kind == "times become":
        change = image.session_times.change if image.session_times is not None else 0
        return pb.ControlRequest(setSessionTimes=pb.SetSessionTimes(sessionMs=message[1], leaseMs=message[2], change=change))
    if kind == "times are settled":
        return pb.ControlRequest(settleSessionTimes=pb.SettleSessionTimes(change=message[1]))
    raise AssertionError(kind)


class Images:
    """All images that were ever met, by number."""

    def __init__(self) -> None:
        self._images = Interned()
        self._decided: dict[tuple[int, Message], tuple[tuple[int, bool], ...] | Broken] = {}
        self._renamed: dict[tuple[int, int], int] = {}

    def __getitem__(self, number: int) -> ClusterImage:
        return self._images[number]  # type: ignore[no-any-return]

    def add(self, image: ClusterImage) -> int:
        """Its number."""
        return self._images.number(form(image), image)

    def partition(self, number: int) -> PartitionState:
        """The one partition."""
        return self[number].streams[KEY.stream].partitions[0]

    def state(self, number: int) -> State:
        """As a replica is told of it."""
        image = self[number]
        stream = image.streams[KEY.stream]
        live = tuple((name, image.nodes[name].incarnation) for name in NODES if not image.nodes[name].fenced)
        return image.partition_metadata(stream, stream.partitions[0]), live

    def electable_replicas(self, number: int) -> tuple[str, ...]:
        """Who may be elected without a command."""
        stream = self[number].streams[KEY.stream]
        return stream.partitions[0].electable_replicas(stream.config.commit_policy)

    def renamed(self, number: int, permutation: int) -> int:
        """The same image with other node ids; the replicas stay in the order of the names."""
        found = self._renamed.get((number, permutation))
        if found is None:
            names = PERMUTATIONS[permutation]
            found = self._renamed[number, permutation] = self.add(_renamed(self[number], names))
        return found

    def decide(self, number: int, message: Message) -> tuple[tuple[int, bool], ...] | Broken:
        """(image after it, whether it was accepted), one for each outcome.

        Where candidates are equal, the order of the replicas and what they lead elsewhere decide: so it is decided under every
        order, and any of the outcomes may be. That keeps the nodes alike, as the symmetry wants it.
        """
        found = self._decided.get((number, message))
        if found is None:
            outcomes: dict[tuple[int, bool], None] = {}
            try:
                for permutation, names in enumerate(PERMUTATIONS):
                    image = self[self.renamed(number, permutation)]
                    renamed = rename_message(message, names)
                    decision = decide(image, request_of(renamed, image), 1, _RULES)
                    after = self.add(replay_all(image, decision.records))
                    self._check(self.add(image), after)
                    back = next(i for i, p in enumerate(PERMUTATIONS) if all(p[names[name]] == name for name in NODES))
                    outcomes[self.renamed(after, back), decision.response.error == pb.ControlResponse.OK] = None
                found = tuple(outcomes)
            except AssertionError:
                raise
            except Exception as error:  # an invariant, or what apply must never do [M6]
                found = Broken(f"metadata: {type(error).__name__}: {error}")
            self._decided[number, message] = found
        return found

    def _check(self, before: int, after: int) -> None:
        old, new = self.partition(before), self.partition(after)
        check(set(new.isr) <= set(new.replicas) and bool(new.isr), "C3", new)
        check(not new.leader or new.leader in new.isr, "C3", new)
        check(new.epoch >= old.epoch and new.leader_epoch >= old.leader_epoch, "C2", old, new)
        check(new == old or new.epoch > old.epoch, "C2", old, new)
        same = (old.leader or old.candidate) == (new.leader or new.candidate) or not (old.leader or old.candidate)
        check(same or not (new.leader or new.candidate) or new.leader_epoch > old.leader_epoch, "C1", old, new)
        for name in set(new.isr) - set(old.isr):
            check(self[after].is_live(name), "C6", name, "joins and is fenced")


def _renamed(image: ClusterImage, names: Names) -> ClusterImage:
    stream = image.streams[KEY.stream]
    partition: PartitionState = _STRUCTURE.copy(stream.partitions[0], names)
    partition = in_name_order(partition)
    nodes = {names[name]: _STRUCTURE.copy(image.nodes[name], names) for name in NODES}
    held: tuple[Any, ...] = _STRUCTURE.copy(image.reports.get((KEY.uid, 0), ()), names)
    reports = Map({(KEY.uid, 0): held}) if held else Map()
    bare = ClusterImage(nodes=Map(nodes), counters=image.counters).with_stream(replace(stream, partitions=(partition,)))
    return replace(bare, reports=reports, session_times=image.session_times)


def rename_message(message: Message, names: Names) -> Message:
    """The same message between nodes of other names."""
    return tuple(_rename(part, names) for part in message)


def _rename(part: Any, names: Names) -> Any:
    if isinstance(part, str):
        return names.get(part, part)
    if not isinstance(part, tuple) or not part:
        return part
    renamed = tuple(_rename(item, names) for item in part)
    is_set = isinstance(part[0], str) and all(isinstance(item, str) for item in part)
    is_map = isinstance(part[0], tuple) and isinstance(part[0][0], str)
    return tuple(sorted(renamed)) if is_set or is_map else renamed
