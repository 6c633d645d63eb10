"""Decisions of a controller around the Raft log, for the real shell and the simulator. Pure.

``MemberLogView`` is its view of the log. The shell calls ``tick`` after each flush and carries out the returned
effects. It calls ``request`` for each control request. A ``ProposedEntry`` is a request that must be logged:
``entry`` returns the bytes, and ``proposal_ended`` turns the result into the answer. The duties of a metadata leader
begin after a barrier of its own term is applied [M12], and end before it transfers its leadership. A barrier is a log
entry without effect.

If the controllers hold different images and no majority agrees, the leader proposes only barriers. A controller that
restarts needs one before it counts again. Then it reports its digest.

Before a planned transfer by command, the metadata leader requests that the leader of the partition stops accepting
publishes and answers the pending ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller.active_controller import ActiveController, merge_answers
from liftpy.core.metadata.controller.admission import LEADER, LOG, LeaderFacts, LogFacts, first_rejection
from liftpy.core.metadata.controller.election_triggers import LeaderCheck, ProbeResult
from liftpy.core.metadata.controller.feature_levels import LevelBootstrap, levels_answer
from liftpy.core.metadata.controller.record_builder import Rules, repeated_answer
from liftpy.core.metadata.controller.requests import changes_nothing
from liftpy.core.metadata.controller_list import (
    CONTROLLERS,
    ControllerList,
    GroupView,
    leader_must_transfer,
    next_step,
    plan_change,
)
from liftpy.core.metadata.describe import describer
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.idempotency import error_response
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2

MAX_BARRIERS = 32
"""Maximum number of unfinished barriers of the metadata leader."""


LONG_NS = 2_000_000_000
"""Time after which a missing metadata leader is reported, in nanoseconds. An election or a short stop of the process takes
less.
"""
_STOOD_STILL_NS = 1_000_000_000
"""Time between two ticks from which the process counts as stopped, in nanoseconds. Normal ticks come every few milliseconds."""
DUTY_TIMEOUT_NS = 2 * NS_PER_S
MAX_DUTY_PROPOSALS = 64
"""Maximum number of unfinished requests of the metadata leader itself. Further due requests wait."""
PROBE_EVERY_NS = NS_PER_S // 10
MAX_PROBES = 64
"""Maximum number of nodes that the metadata leader probes at a time. It probes further nodes later."""
MAX_QUESTIONS = 256
"""Maximum number of unanswered questions. Further questions are dropped, and the witnesses report again."""
HEAD_EVERY_NS = NS_PER_S // 2
"""Interval at which the feed reports its head while nothing changes, in nanoseconds."""
TRANSFER_EVERY_NS = NS_PER_S
"""Interval at which a leader that leaves the group asks another controller to take over, in nanoseconds."""


class LeaderlessTimer:
    """Measures for how long there was no metadata leader. Time in which the process did not run does not count."""

    def __init__(self) -> None:
        self._since_ns = -1  # -1: there is a leader, or no tick has been
        self._ticked_ns = 0

    def tick(self, there_is_a_leader: bool, now_ns: int) -> None:
        """Record a tick. ``there_is_a_leader``: True if the member knows a leader. ``now_ns`` is monotonic."""
        if there_is_a_leader:
            self._since_ns = -1
        elif self._since_ns < 0 or now_ns - self._ticked_ns > _STOOD_STILL_NS:
            self._since_ns = now_ns
        self._ticked_ns = now_ns

    @property
    def for_long(self) -> bool:
        """True if no tick of the last ``LONG_NS`` nanoseconds found a leader."""
        return self._since_ns >= 0 and self._ticked_ns - self._since_ns >= LONG_NS


class MemberLogView(Protocol):
    """The log of the metadata group and its members, as one member knows them. ``QuorumMember`` reads it."""

    @property
    def leads(self) -> bool:
        """True if this member believes that it is the metadata leader. Another member may have been elected since."""

    @property
    def term(self) -> int: ...

    @property
    def leader_id(self) -> str:
        """Node id of the known metadata leader. '': none."""

    @property
    def image(self) -> ClusterImage:
        """Image after the last entry that this member has applied."""

    def confirmed_ns(self) -> int:
        """Return the monotonic time until which a majority has not voted for another leader [D22]."""

    def view(self) -> GroupView:
        """Return what this member knows about all members of the group, such as which are live."""


class EntryOutcome(Enum):
    """Result of a proposed log entry, as far as this controller knows it."""

    APPLIED = "applied"
    NEVER = "it is not in the log, and never will be"
    UNKNOWN = "it may be applied at any time"


@dataclass(slots=True, eq=False)
class ProposedEntry:
    """Effect: put the request into the log.

    The shell calls ``entry``, proposes the bytes, and calls ``proposal_ended``, each once.
    """

    request: pb.ControlRequest
    timeout_ns: int = DUTY_TIMEOUT_NS
    here: pb.ControlResponse | None = None
    """Answers to the items of a batch that need no log entry. None: there are none."""
    barrier_term: int = -1
    """Raft term in which the leader's duties begin after this barrier is applied. -1: the entry is not such a barrier."""
    own: bool = False
    """True if the entry comes from the leader's own duties, so that no caller waits for the answer."""
    is_first: bool = False
    """True if the log had no entry of the operation before."""

    @property
    def changes_controllers(self) -> bool:
        """True if the entry changes the members of the group. The change takes effect when the entry is appended."""
        return self.request.HasField("changeControllers")


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Effect: commit and apply a barrier, then call ``caught_up``."""


@dataclass(frozen=True, slots=True)
class ProbeNode:
    """Effect: probe the node on NATS, then call ``probe_ended``."""

    node_id: str


@dataclass(frozen=True, slots=True)
class PublishEntry:
    """Effect: publish the entry on the feed, in order."""

    entry: pb.FeedEntry


@dataclass(frozen=True, slots=True)
class TransferMetadataLeadership:
    """Effect: transfer the metadata leadership to another voter, because this member leaves the group."""


MemberEffect = ProposedEntry | CatchUp | ProbeNode | LeaderCheck | PublishEntry | TransferMetadataLeadership
"""Effects of ``QuorumMember``. After a LeaderCheck, the shell calls ``question_answered``."""


class QuorumMember:
    """Decides what one controller does around the Raft log.

    ``log``: log of the group. ``feed``: receives applied entries. ``new_id``: returns a new operation id. All times are
    monotonic.
    """

    def __init__(
        self, config: ReplicationConfig, rules: Rules, log: MemberLogView, feed: FeedProducer, new_id: Callable[[], bytes]
    ) -> None:
        self._rules = rules
        self._duties = ActiveController(config, rules)
        self._log = log
        self._feed = feed
        self._new_id = new_id
        self._leaderless = LeaderlessTimer()
        self._image = log.image
        """Last image that was passed to the duties of the leader."""
        self._term = -1
        """Raft term in which the leader's duties began. -1: they have not begun."""
        self._taking_over = -1
        """Raft term of the barrier that must be applied before the duties begin. -1: no barrier is in progress."""
        self._leaving = False
        """True if this member stops and accepts no further duties."""
        self._catching_up = True
        """True while this member waits for a barrier to be applied. A member starts with such a wait."""
        self._own_proposals = 0
        self._probing: set[str] = set()
        self._probe_at_ns = 0
        self._deadline_ns: int | None = None
        """Monotonic time of the next duty, as of the last tick. None: no duty has a time."""
        self._asking: set[LeaderCheck] = set()
        self._head_at_ns = 0
        self._step_is_proposed = False
        """True if a step of a controller change is proposed and not finished."""
        self._transfer_at_ns = 0
        """Earliest monotonic time of the next request to another voter to take the leadership."""
        self._transferred_term = -1
        """Last Raft term in which this member, as the leader, requested that another voter takes the leadership. -1: none."""
        self._times = config.session_times
        self._level_bootstrap = LevelBootstrap(rules, self._times)

    @property
    def is_active(self) -> bool:
        return self._term >= 0

    @property
    def counters(self) -> Counter[str]:
        return Counter(self._duties.counters)

    def set_preferred_leader_interval(self, every_s: float) -> None:
        """Set how often the metadata leader moves leaderships back to preferred leaders. ``every_s``: seconds, 0: never."""
        self._duties.preferred.change(every_s)

    # ---- the leadership ------------------------------------------------------------------------------------------------
    def resign(self) -> None:
        self._term = self._taking_over = -1
        self._duties.resign()

    def transfer_requested(self) -> None:
        """Record that the shell has requested another voter to take the leadership, and end the duties of this term.

        The request may arrive late, and the other voter then wins without an election timeout. So this member must not become
        active again in the same term [D22].
        """
        self._transferred_term = self._log.term
        self.resign()

    def leave(self) -> None:
        """Start no further duties of the metadata leader, because this member stops soon."""
        self._leaving = True

    def caught_up(self) -> None:
        """Record that the shell has ended the effect ``CatchUp``, with or without success."""
        self._catching_up = False

    # ---- every tick ----------------------------------------------------------------------------------------------------
    def tick(self, now_ns: int, *, votes: bool, online: bool) -> list[MemberEffect]:
        """Return the effects that the shell must carry out now. The shell calls it after each flush of the log.

        ``votes``: this member is not on probation. ``online``: NATS is connected.
        """
        self._leaderless.tick(self._log.leader_id != "", now_ns)
        effects: list[MemberEffect] = []
        if not (votes or self._catching_up or self._leaving):
            self._catching_up = True
            effects.append(CatchUp())
        if not self._log.leads:
            if self.is_active:
                self.resign()
        elif self._log.term == self._transferred_term:
            effects += self._transfer_again(now_ns)
        elif self._term != self._log.term:
            effects += self._begin_leadership()
        else:
            effects += self._tick_active(now_ns, online)
        return effects

    def time_to_next_duty_ns(self, now_ns: int) -> int:
        """Return the time until the next duty of the metadata leader is due, in nanoseconds, at most ``NS_PER_S``."""
        deadline_ns = self._deadline_ns if self.is_active else None
        if deadline_ns is None or deadline_ns <= now_ns:  # what is due already waits for the end of a proposal
            return NS_PER_S
        return min(deadline_ns - now_ns, NS_PER_S)

    def _begin_leadership(self) -> list[MemberEffect]:
        """Return the barrier that a new metadata leader proposes before its duties.

        When the barrier is applied, all earlier committed entries are applied, too.
        """
        if self.is_active:
            self.resign()
        if self._leaving or self._taking_over == self._log.term:
            return []
        self._taking_over = self._log.term
        return [ProposedEntry(pb.ControlRequest(barrier=pb.Barrier()), barrier_term=self._log.term)]

    def _tick_active(self, now_ns: int, online: bool) -> list[MemberEffect]:
        effects: list[MemberEffect] = []
        image = self._log.image
        if image is not self._image:
            self._image = image
            self._duties.image_changed(image, now_ns)
        view = self._log.view()
        deadline_ns = None if view.halted else self._duties.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns and self._own_proposals < MAX_DUTY_PROPOSALS:
            effects += map(self._propose, self._duties.take_due(now_ns))
            deadline_ns = self._duties.next_deadline_ns()
        self._deadline_ns = deadline_ns
        if view.halted and view.voters_without_digest & view.live:  # these voters report their digests with the barriers
            for _ in range(MAX_BARRIERS - self._own_proposals):
                effects.append(self._propose(pb.ControlRequest(barrier=pb.Barrier())))
        if online:
            effects += self._node_probes(now_ns)
        for question in self._duties.failure_reports.take_leader_checks():
            if online and len(self._asking) < MAX_QUESTIONS:
                self._asking.add(question)
                effects.append(question)
        bootstrap = self._level_bootstrap.take_due(image, view, now_ns)
        if bootstrap is not None:
            effects.append(self._propose(bootstrap))
        effects += self._controller_change_step(now_ns, view)
        effects += self._feed_entries(now_ns)
        return effects

    def _propose(self, request: pb.ControlRequest) -> ProposedEntry:
        self._own_proposals += 1
        return ProposedEntry(request, own=True)

    def _controller_change_step(self, now_ns: int, view: GroupView) -> list[MemberEffect]:
        if leader_must_transfer(view) and now_ns >= self._transfer_at_ns:
            self._transfer_at_ns = now_ns + TRANSFER_EVERY_NS
            return [TransferMetadataLeadership()]
        if self._step_is_proposed or view.halted or next_step(view) is None:
            return []
        self._step_is_proposed = True
        return [self._propose(pb.ControlRequest(changeControllers=pb.ChangeControllers()))]

    def _transfer_again(self, now_ns: int) -> list[MemberEffect]:
        """Return the effect to repeat a transfer that has not happened yet. A member that stops repeats it itself."""
        if self._leaving or now_ns < self._transfer_at_ns:
            return []
        self._transfer_at_ns = now_ns + TRANSFER_EVERY_NS
        return [TransferMetadataLeadership()]

    def _node_probes(self, now_ns: int) -> list[MemberEffect]:
        if now_ns < self._probe_at_ns:
            return []
        self._probe_at_ns = now_ns + PROBE_EVERY_NS
        late = [node_id for node_id in self._duties.overdue(now_ns) if node_id not in self._probing]
        late = late[: MAX_PROBES - len(self._probing)]
        self._probing.update(late)
        return [ProbeNode(node_id) for node_id in late]

    def _feed_entries(self, now_ns: int) -> list[MemberEffect]:
        entries = self._feed.take_entries()
        if not entries and now_ns - self._head_at_ns >= HEAD_EVERY_NS:
            entries = [self._feed.head()]
        if entries:
            self._head_at_ns = now_ns
        return [PublishEntry(entry) for entry in entries]

    def probe_ended(self, node_id: str, *, absent: bool) -> None:
        """Record the result of the effect ``ProbeNode``. ``absent``: NATS reported no responders."""
        self._probing.discard(node_id)
        if absent:
            self._duties.sessions.record_no_responders(node_id)

    def question_answered(self, question: LeaderCheck, result: ProbeResult | None) -> None:
        """Record a node's answer to a question about a reported leader. ``result`` None: the answer is missing or invalid."""
        self._asking.discard(question)
        if result is not None:
            self._duties.failure_reports.record_testimony(question, result)

    # ---- requests ------------------------------------------------------------------------------------------------------
    def request(self, request: pb.ControlRequest, timeout_ns: int, now_ns: int) -> pb.ControlResponse | ProposedEntry | None:
        """As the metadata leader, return the answer to a control request, or the entry to log for it.

        Return None on other members. While the controllers have different images without a majority, no decision is logged.
        ``timeout_ns``: time for which the sender waits.
        """
        entry = self._request(request, timeout_ns, now_ns)
        if not isinstance(entry, ProposedEntry):
            return entry
        log, is_active = self._log, self.is_active and self._term == self._log.term
        is_confirmed = self._duties.is_confirmed(now_ns, log.confirmed_ns())
        is_logged = not is_active or self._duties.is_logged(request.operationId)
        rejection = first_rejection(LOG, LogFacts(request, is_active, log.view(), is_confirmed, is_logged))
        return entry if rejection is None else rejection.response

    def _request(self, request: pb.ControlRequest, timeout_ns: int, now_ns: int) -> pb.ControlResponse | ProposedEntry | None:
        log = self._log
        if not log.leads:
            return None
        is_active = self.is_active and self._term == log.term
        level = log.image.feature_level
        facts = LeaderFacts(request, level, self._rules.features, is_active, self._level_bootstrap.why)
        rejection = first_rejection(LEADER, facts)
        if rejection is not None:
            return rejection.response
        if not is_active:
            return ProposedEntry(request, timeout_ns)
        if request.HasField("batch"):
            here, rest = self._duties.split_batch(request, log.image, now_ns, log.confirmed_ns())
            return here if rest is None else ProposedEntry(rest, timeout_ns, here)
        if request.HasField("setFeatureLevel"):
            answer = levels_answer(request, log.image, self._duties.levels, log.view().levels, self._rules, self._times)
        elif request.HasField("changeControllers"):
            answer = self._controllers_answer(request)
        else:
            answer = self._duties.answer(request, log.image, now_ns, log.confirmed_ns())
        return ProposedEntry(request, timeout_ns) if answer is None else answer

    def _controllers_answer(self, request: pb.ControlRequest) -> pb.ControlResponse | None:
        """Return the answer to a request to change the controllers, if it needs no log entry. None: it needs one."""
        operation = self._log.image.operations.get(request.operationId)
        if operation is not None:
            return pb.ControlResponse.FromString(repeated_answer(self._log.image, operation))
        plan = self._plan(request)
        return None if isinstance(plan, ControllerList) else plan

    def _plan(self, request: pb.ControlRequest) -> ControllerList | pb.ControlResponse:
        nodes = self._log.image.nodes
        fenced = frozenset(node_id for node_id, node in nodes.items() if node.fenced)
        plan = plan_change(request.changeControllers, self._log.view(), frozenset(nodes), fenced)
        return plan if isinstance(plan, ControllerList) else error_response(request, plan.error, plan.detail)

    def answer_without_leader(self, request: pb.ControlRequest) -> pb.ControlResponse | None:
        """Return an error for an operator's request while no metadata leader is known, so that the operator need not wait.

        Return None if this member lost the leader only a short time ago.
        """
        description = describer(request)
        if not self._leaderless.for_long or description is None or request.linearizable:
            return None
        response = description(self._log.image)
        response.operationId, response.index = request.operationId, self._log.image.index
        return response

    # ---- orders --------------------------------------------------------------------------------------------------------
    def entry(self, order: ProposedEntry, time_ns: int, max_bytes: int) -> bytes | pb.ControlResponse:
        """Return the log entry for the request of ``order`` as bytes. Return a rejection if it is too large or not possible now.

        ``time_ns``: wall clock in ns since 1970. ``max_bytes``: limit of an entry, exclusive.
        """
        request = order.request
        if not request.operationId:
            request.operationId = self._new_id()
        request.timeNs = time_ns
        if order.changes_controllers:
            plan = self._plan(request)
            if not isinstance(plan, ControllerList):
                self._is_over(order)
                return plan
            request.changeControllers.list.CopyFrom(CONTROLLERS.to_pb(replace(plan, index=0)))
            request.changeControllers.after = self._log.view().now.index
        command = request.SerializeToString(deterministic=True)
        if len(command) >= max_bytes:
            self._is_over(order)
            return error_response(request, pb.ControlResponse.INVALID, f"a request of {len(command)} bytes is too large")
        if not changes_nothing(request):
            order.is_first = self._duties.record_logged(request.operationId)
        return command

    def proposal_ended(
        self, order: ProposedEntry, outcome: EntryOutcome, answer: bytes | None, now_ns: int
    ) -> pb.ControlResponse:
        """Return the answer to the sender of a proposed request.

        ``outcome``: what is known about the log entry. ``answer``: answer of the state machine, None if the entry was not applied.
        """
        self._is_over(order)
        response = self._response(order, outcome, answer)
        log = self._log
        if order.barrier_term >= 0 and response.error == pb.ControlResponse.OK:
            still = log.leads and log.term == order.barrier_term and not self._leaving
            if still and not self.is_active:
                self._term, self._image = log.term, log.image
                self._duties.lead(log.image, now_ns, log.term)
                self._level_bootstrap.lead(log.image, now_ns)
                self._feed.lead()
        return response if order.here is None else merge_answers(order.here, response)

    def _is_over(self, order: ProposedEntry) -> None:
        self._own_proposals -= order.own
        if order.own and order.changes_controllers:
            self._step_is_proposed = False
        if order.own and order.request.HasField("setFeatureLevel"):
            self._level_bootstrap.request_ended()
        if order.barrier_term == self._taking_over:
            self._taking_over = -1

    def _response(self, order: ProposedEntry, outcome: EntryOutcome, answer: bytes | None) -> pb.ControlResponse:
        request = order.request
        match outcome:
            case EntryOutcome.APPLIED if answer is not None:
                return frames.parse(answer, pb.ControlResponse)
            case EntryOutcome.NEVER:
                if order.is_first:  # else an entry of the same operation, ordered before, may still be in the log
                    self._duties.record_not_logged(request.operationId)
                return error_response(request, pb.ControlResponse.UNAVAILABLE, "the metadata leader changed")
            case _:
                return error_response(
                    request, pb.ControlResponse.OUTCOME_UNKNOWN, "the metadata leader does not know what came of it"
                )


def leader_to_ask_first(image: ClusterImage, request: pb.ControlRequest) -> tuple[str, replication_pb2.StepAside] | None:
    """Return the partition leader to ask before ``request`` is logged, and the request that it stops accepting publishes.

    Only a planned transfer of a leadership needs this. None: no node must be asked.
    """
    move = request.electLeader
    location = image.find(move.stream, move.uid, move.partition) if request.HasField("electLeader") else None
    if location is None or move.unclean:
        return None
    stream, partition = location
    wanted = move.node or partition.replicas[0]
    if partition.status is not PartitionStatus.ONLINE or wanted == partition.leader or wanted not in partition.isr:
        return None
    return partition.leader, replication_pb2.StepAside(
        stream=stream.name, streamUid=stream.uid, partition=partition.partition, leaderEpoch=partition.leader_epoch
    )
