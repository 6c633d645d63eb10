"""The metadata group of a simulated cluster as it is: Raft, controllers on the cluster's own nodes, the feed for all others.

Takes the place of ``SimGroup`` below the shipped simulator: whole controllers (``tests.simulation.raft.member``: journal, library,
``QuorumMember``) on the cluster's clock. What befalls a node befalls its controller: kills, power cuts (its folder keeps what was
flushed), pauses, and cuts of its connection; "no metadata leader" is a bus that carries no frame of the group. A node is shown what
its own role knows: what its controller has applied, or its feed; the role changes in place, as ``sidecar.metadata.group_role`` does it.

The truth, which the checkers hold everything against, is the first apply of each entry anywhere (``Ghost``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from liftpy.core.metadata.controller.election_triggers import ANSWER_NS, LeaderCheck
from liftpy.core.metadata.controller.quorum_member import Decision, ProbeNode
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.feed import FeedSubscription
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.simulation.raft.asking import Asking
from tests.simulation.raft.faults import Faults
from tests.simulation.raft.group_simulation import TICK_S, Run
from tests.simulation.raft.member import SimMember
from tests.simulation.replica.clock import MS, Clock, S
from tests.simulation.replica.group import Answer, Heard, SimGroup

if TYPE_CHECKING:
    from liftpy.config import ReplicationConfig

_PROPOSE_TIMEOUT_NS = 1 * S
_REGISTER_TIMEOUT_NS = 5 * S
_OPERATOR_TIMEOUT_NS = 5 * S
_POLL_NS = 50 * MS
_LOOK_TIMEOUT_NS = 500 * MS
OPERATOR = "operator"


class Links(Faults):
    """Of the bus between controllers, by what the cluster's faults have cut; nothing of its own happens here."""

    def __init__(self, run: ControllerRun) -> None:
        super().__init__(run)
        self._group = run.cluster_group
        self.rates = dict.fromkeys(self.rates, 0.0)
        self.last = True

    def link_is_cut(self, sender: str, receiver: str) -> bool:
        return self._group.is_cut_between(sender, receiver)

    def connection_is_cut(self, name: str) -> bool:
        return self._group.is_cut_off(name)


class ControllerRun(Run):
    """The raft simulator's world, on the cluster's clock and with the cluster's nodes."""

    def __init__(self, group: RaftGroup, seed: int, folder: Path, controllers: tuple[str, ...]) -> None:
        self.cluster_group = group
        self._looked_at = 0.0
        super().__init__(seed, folder)
        self.config = group.config
        self.first_image = group.fsm.image
        self.members = controllers
        self.roles = set(controllers)
        self.nodes = {}
        self.changes = True
        self._has_deadlines = False
        self.faults = Links(self)
        self.faults.rates["drop"] = group.loss
        self._next_tick = {}

    @property
    def now(self) -> float:
        """s, of the cluster."""
        return self.cluster_group.clock.now_ns / S

    @now.setter
    def now(self, value: float) -> None:
        """The cluster's clock goes by itself."""

    def now_ns(self) -> int:
        return self.cluster_group.clock.now_ns

    def wall_ns(self, name: str) -> int:
        return max(1, self.now_ns() + self.cluster_group.wall_offset_ns)

    def library_time(self) -> float:
        self._looked_at = max(self.now, self._looked_at + 1e-6)
        return self._looked_at

    def _at(self, at: float, callback: Callable[[], None]) -> None:
        self.cluster_group.clock.at(round(at * S), callback)

    def later(self, delay_ns: int, callback: Callable[[], None]) -> None:
        self.cluster_group.clock.after(delay_ns, callback)

    def travel(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        """One message beside the group's own frames."""
        self.cluster_group.travel(sender, receiver, arrive)

    def published(self, member: SimMember, entry: pb.FeedEntry) -> None:
        said = entry.SerializeToString()
        for host in self.cluster_group.hosts.values():
            self.travel(member.node_id, host.name, partial(host.published, said))

    def is_cut(self, name: str) -> bool:
        return self.cluster_group.is_cut_off(name)

    # ---- controllers ---------------------------------------------------------------------------------------------------
    def begin(self, name: str, joins: ControllerList | None = None) -> None:
        """Its process has started, or it becomes one."""
        self._start(name, joins)
        if name in self.up:
            self._tick_later(name, self.up[name])

    def _tick_later(self, name: str, member: SimMember) -> None:
        delay_ns = round(TICK_S * (0.5 + self.draws["ticks"].random()) * S)
        self.later(delay_ns, lambda: self._ticks(name, member))

    def _ticks(self, name: str, member: SimMember) -> None:
        if self.up.get(name) is not member:
            return
        if member.paused_until <= self.now:
            self._tick(member, chaos=False)
        if self.up.get(name) is member:
            if member.log.is_member:
                self.cluster_group.ticked(member)
            else:
                self.cluster_group.hosts[name].dismissed(member)
        self._tick_later(name, member)

    def _work(self, member: SimMember, chaos: bool) -> None:
        """Nobody asks for anything but the cluster's nodes and its operator."""

    def gone(self, name: str, *, power: bool) -> None:
        """The controller has died with its node."""
        member = self.up.pop(name, None)
        if member is not None:
            self.faults.collect(member)
            member.died()
        if power and (self.folder / name).exists():
            self.disk.power_cut(self.folder / name, self.draws["power"])

    def ceases(self, name: str, member: SimMember) -> None:
        """It is none any more, by its own log."""
        del self.up[name]
        self.faults.collect(member)
        member.log.journal.close()
        member.died()
        self._no_role(name)

    def barrier_term(self, name: str) -> None:
        """A node that is told that it is a controller becomes one."""
        self.seen["nodes that become controllers"] += 1
        self.roles.add(name)

    def _no_role(self, name: str) -> None:
        self.seen["controllers that cease to be one"] += 1
        self.roles.discard(name)

    def _decided(self, before: ClusterImage, after: ClusterImage, request: pb.ControlRequest) -> None:
        self.cluster_group.decided()


class ClusterMember(SimMember):
    """A controller whose questions go over the cluster's network."""

    def _do(self, decision: Decision) -> None:
        group = self.run_.cluster_group  # type: ignore[attr-defined]
        if isinstance(decision, ProbeNode):
            node_id = decision.node_id
            looking = [True]

            def looked(absent: bool) -> None:
                if looking.pop() if looking else False:
                    self.run_.seen["nodes found absent"] += absent
                    self.member.probe_ended(node_id, absent=absent)

            group.look_for(node_id, lambda: self.run(lambda: looked(True)))
            self.run_.later(_LOOK_TIMEOUT_NS, lambda: self.run(lambda: looked(False)))
        elif isinstance(decision, LeaderCheck):
            asking = [True]

            def answered(said: object) -> None:
                if asking.pop() if asking else False:
                    self.member.question_answered(decision, said)  # type: ignore[arg-type]

            group.ask(decision, lambda said: self.run(lambda: answered(said)))
            self.run_.later(ANSWER_NS, lambda: self.run(lambda: answered(None)))
        else:
            super()._do(decision)


class Host:
    """What one node knows of the metadata group: as a controller, or by the feed. It lives as long as the node's process."""

    def __init__(self, group: RaftGroup, name: str) -> None:
        self._group = group
        self.name = name
        self.process: object = None
        """Of its machine; None: it is down."""
        self.subscription: FeedSubscription | None = None
        """None while it takes part as a controller alone."""
        self.member: SimMember | None = None
        """That has taken the feed's place."""
        self._left_at = -1
        """Index of the list that named it no longer."""
        self.paused = False
        self._backlog: list[Callable[[], None]] = []

    @property
    def image(self) -> ClusterImage:
        """As its role has it."""
        if self.member is not None:
            image: ClusterImage = self.member.log.image
            return image
        return self.subscription.image if self.subscription is not None else ClusterImage()

    def begin(self, process: object) -> None:
        """Its process has started."""
        self.process, self.paused, self._backlog = process, False, []
        run = self._group.run
        self.subscription = self.member = None
        self._left_at = -1
        if self.name in run.roles:
            run.begin(self.name)
            self.member = run.up.get(self.name)
        if self.member is None:
            self._subscribe()

    def end(self) -> None:
        """Its process is gone."""
        self.process = self.subscription = self.member = None

    def through(self, process: object, callback: Callable[[], None]) -> None:
        """Run ``callback`` in ``process``, if that lives: now, or when its pause ends."""
        if self.process is not process or process is None:
            return
        if self.paused:
            self._backlog.append(partial(self.through, process, callback))
        else:
            callback()

    def pause(self) -> None:
        """It stands still, and its controller with it."""
        self.paused = True
        member = self._group.run.up.get(self.name)
        if member is not None:
            member.paused_until = float("inf")

    def resume(self) -> None:
        """What waited comes at once."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        member = self._group.run.up.get(self.name)
        if member is not None:
            member.paused_until = 0.0
            member.resume()
        for callback in backlog:
            callback()

    # ---- the feed ------------------------------------------------------------------------------------------------------
    def _subscribe(self) -> None:
        self.subscription = FeedSubscription(self.name)
        self._poll(self.subscription)

    def _poll(self, subscription: FeedSubscription) -> None:
        if self.subscription is not subscription:
            return
        group, process = self._group, self.process
        request = subscription.request(group.clock.now_ns)
        asked = group.run.somebody()
        if request is not None and asked is not None:
            said = request.SerializeToString()
            group.travel(self.name, asked.node_id, lambda: asked.run(lambda: self._asked(asked, process, said)))
        group.clock.after(_POLL_NS, lambda: self.through(process, lambda: self._poll(subscription)))

    def _asked(self, member: SimMember, process: object, said: bytes) -> None:
        response = member.fed(pb.FeedSnapshotRequest.FromString(said))
        if response is not None:
            back = response.SerializeToString()
            self._group.travel(member.node_id, self.name, lambda: self.through(process, lambda: self._told(back)))

    def _told(self, said: bytes) -> None:
        if self.subscription is not None:
            before = self.subscription.image
            self.subscription.response_received(pb.FeedSnapshotResponse.FromString(said))
            self._fed(before)

    def published(self, said: bytes) -> None:
        """An entry of the feed arrives."""
        self.through(self.process, lambda: self._published(said))

    def _published(self, said: bytes) -> None:
        if self.subscription is not None:
            before = self.subscription.image
            self.subscription.entry_received(pb.FeedEntry.FromString(said))
            self._fed(before)

    def _fed(self, before: ClusterImage) -> None:
        subscription, run = self.subscription, self._group.run
        if subscription is None or subscription.image is before:
            return
        run.seen["images by the feed"] += 1
        run.ghost.check_fed(subscription.image, self.name)
        if self.member is None:
            self._group.shown(self)
            named = subscription.image.controllers
            if self.name not in run.roles and named.names(self.name) and named.index > self._left_at and subscription.synced:
                run.barrier_term(self.name)
                run.begin(self.name, named)
        self.take_role()

    # ---- the role ------------------------------------------------------------------------------------------------------
    def take_role(self) -> None:
        """Whoever follows takes the place of the other as soon as it knows as much; the image never goes back."""
        member = self._group.run.up.get(self.name)
        if self.member is None and member is not None and self.subscription is not None and member.log.is_member:
            if member.log.probation.over and member.log.image.index >= self.subscription.image.index:
                self.member, self.subscription = member, None
                self._group.counters["controller in the place of its feed"] += 1
                self._group.shown(self)
            return
        fed = self.subscription.image.index if self.subscription is not None and self.subscription.synced else -1
        if self.member is not None and member is None and fed >= self.member.log.image.index:
            self.member = None
            self._group.counters["feed in the place of a controller"] += 1
            self._group.shown(self)

    def dismissed(self, member: SimMember) -> None:
        """The group goes on without it."""
        self._left_at = max(member.log.core.controllers.index, member.log.core.dismissed_at)
        self._group.run.ceases(self.name, member)
        if self.subscription is None:
            self._subscribe()


class RaftGroup(SimGroup):
    """``folder``: of the controllers' folders, one each; ``controllers``: who forms the group at first."""

    def __init__(self, clock: Clock, seed: int, config: ReplicationConfig, folder: Path, controllers: tuple[str, ...]) -> None:
        self.config = config
        self.hosts: dict[str, Host] = {}
        super().__init__(clock, seed, config)
        self.down: Callable[[str], bool] = lambda host: False
        """Whether a host's connection to NATS is down."""
        self.cut_between: Callable[[str, str], bool] = lambda one, other: False
        self._frames_pass = True
        self._asked: set[tuple[int, bytes]] = set()
        """(process, operation id) of registrations under way."""
        self.at_once = True
        """``apply`` waits for the answer: at the start, when nothing else happens."""
        self.operators: list[str] = []
        """What came of what the operator asked for."""
        self.run = ControllerRun(self, seed, folder, controllers)

    # ---- the truth -----------------------------------------------------------------------------------------------------
    def decided(self) -> None:
        """An entry was applied for the first time anywhere."""
        before, ghost = self.image, self.run.ghost
        index = ghost.newest.index
        self.fsm.apply(ghost.entries[index], index)
        if not self.fsm.last_records:
            return
        image = self.image
        for node_id, node in image.nodes.items():
            old = before.nodes.get(node_id)
            if node.fenced and (old is None or not old.fenced):
                self.fenced_at[node_id] = image.index
        self.images.append(image)
        self.watch(before, image)

    def _tick(self) -> None:
        """Controllers tick by themselves."""

    def ticked(self, member: SimMember) -> None:
        """A controller has worked; its node sees what it has applied."""
        host = self.hosts[member.node_id]
        host.take_role()
        if host.member is member:
            self.shown(host)

    def shown(self, host: Host) -> None:
        """Its role has a newer image, perhaps."""
        self.deliver(host.name, host.image)

    # ---- what travels --------------------------------------------------------------------------------------------------
    def is_cut_off(self, host: str) -> bool:
        """Whether nothing of the group's reaches the host."""
        return host in self.cut or self.down(host)

    def is_cut_between(self, sender: str, receiver: str) -> bool:
        """Whether no frame of the group passes."""
        if not self._frames_pass or sender in self.unheard:
            return True
        return self.is_cut_off(sender) or self.is_cut_off(receiver) or self.cut_between(sender, receiver)

    def travel(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        """A request, an answer, or what the feed says."""
        lost = self._rng.random() < self.loss or sender in self.unheard or self.cut_between(sender, receiver)
        if sender == receiver:
            arrive_ns = MS // 10
        elif lost or self.is_cut_off(sender) or self.is_cut_off(receiver):
            self.counters["lost on the metadata path"] += 1
            return
        else:
            arrive_ns = MS // 2 + int(self._rng.random() ** 4 * self.slow_ns) + self.late_ns.get(receiver, 0)
        self.clock.after(arrive_ns, lambda: None if sender != receiver and self.is_cut_off(receiver) else arrive())

    # ---- what nodes ask ------------------------------------------------------------------------------------------------
    @property
    def available(self) -> bool:
        """Whether a metadata leader does its duties."""
        return any(m.member.is_active and m.log.leads and m.paused_until <= self.run.now for m in self.run.up.values())

    @available.setter
    def available(self, value: bool) -> None:
        """Nobody decides that."""

    def set_available(self, available: bool) -> None:
        """Whether controllers hear each other."""
        self._frames_pass = available

    def propose(self, host: str, request: pb.ControlRequest, on_answer: Answer) -> None:
        timeout_ns = _PROPOSE_TIMEOUT_NS
        known = self.hosts[host]
        process = known.process
        once = (id(process), request.operationId)
        if request.HasField("registerNode"):
            if once in self._asked:
                return
            self._asked.add(once)
            timeout_ns = _REGISTER_TIMEOUT_NS
        elif not request.operationId:
            request.operationId = self.new_operation_id()

        def done(response: pb.ControlResponse) -> None:
            self._asked.discard(once)
            self._count_answer(request, response)
            on_answer(response)

        self._ask_group(host, request, timeout_ns, done)

    def _ask_group(
        self, host: str, request: pb.ControlRequest, timeout_ns: int, done: Callable[[pb.ControlResponse], None]
    ) -> None:
        known = self.hosts[host]
        process = known.process
        own = known.member if known.member is not None and known.member is self.run.up.get(host) else None
        Asking(self.run, host, partial(known.through, process), request, timeout_ns, done, here=own)

    def _count_answer(self, request: pb.ControlRequest, response: pb.ControlResponse) -> None:
        if not request.HasField("batch") or response.HasField("batch"):
            self.response_received(request, response)
        else:
            self.counters["batches without an answer"] += 1

    def heartbeat(self, host: str, node: str, incarnation: int, seen_index: int, on_heard: Heard) -> None:
        beat = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId=node, incarnation=incarnation))
        beat.operationId = self.new_operation_id()

        def done(response: pb.ControlResponse) -> None:
            on_heard(response)

        self._ask_group(host, beat, round(self.config.session_s / 2 * S), done)

    def send_image(self, host: str) -> None:
        """What its role knows."""
        self.shown(self.hosts[host])

    # ---- what the operator asks ----------------------------------------------------------------------------------------
    def apply(self, request: pb.ControlRequest) -> pb.ControlResponse:
        """The operator asks, and asks again where nobody can say what came of it. At the start the answer is waited for."""
        answers: list[pb.ControlResponse] = []
        request.operationId = request.operationId or self.new_operation_id()
        self._operator(request, answers, 10)
        while self.at_once and not answers:
            self.clock.step()
        return answers[0] if answers else pb.ControlResponse()

    def _operator(self, request: pb.ControlRequest, answers: list[pb.ControlResponse], times: int) -> None:
        def done(response: pb.ControlResponse) -> None:
            again = response.error in (pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.OUTCOME_UNKNOWN)
            if again and times:
                self._operator(request, answers, times - 1)
                return
            answers.append(response)
            self._count_answer(request, response)

        Asking(self.run, OPERATOR, lambda callback: callback(), request, _OPERATOR_TIMEOUT_NS, done)


ControllerRun.make_member = ClusterMember
