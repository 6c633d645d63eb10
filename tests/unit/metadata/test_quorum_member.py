"""Test QuorumMember: when the duties of a leader begin and end, and what becomes of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller.election_triggers import LeaderCheck, ProbeResult
from liftpy.core.metadata.controller.quorum_member import (
    HEAD_EVERY_NS,
    MAX_DUTY_PROPOSALS,
    MAX_PROBES,
    MAX_QUESTIONS,
    PROBE_EVERY_NS,
    TRANSFER_EVERY_NS,
    CatchUp,
    EntryOutcome,
    MemberEffect,
    ProbeNode,
    ProposedEntry,
    PublishEntry,
    QuorumMember,
    TransferMetadataLeadership,
    leader_to_ask_first,
)
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.controller_list import ControllerList, GroupView
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.request_limits import MAX_LIST_LENGTH, MAX_REQUEST_BYTES, MAX_TEXT_BYTES, fit
from liftpy.core.metadata.sessions import NodeSessions
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from tests.born import born_fsm, registration
from tests.unit.metadata.small_images import S, a_partition, a_stream, an_image

MAX_BYTES = 1 << 20


@dataclass
class Log:
    """Provide the state of the Raft log. ``fsm`` applies committed entries at once."""

    leads: bool = False
    term: int = 1
    leader_id: str = "n1"
    now_ns: int = 100 * NS_PER_S
    fsm: ClusterFsm = field(default_factory=born_fsm)
    feed: FeedProducer = field(default_factory=FeedProducer)

    @property
    def image(self) -> ClusterImage:
        return self.fsm.image

    def confirmed_ns(self) -> int:
        return self.now_ns

    view_: GroupView = field(default_factory=lambda: GroupView(ControllerList(("n1",)), "n1", frozenset(("n1",))))

    def view(self) -> GroupView:
        return self.view_

    def apply(self, entry: bytes) -> bytes:
        index = self.image.index + 1
        answer = self.fsm.apply(entry, index)
        self.feed.entry_applied(index, self.fsm.last_records)
        return answer


class Member:
    """Provide a QuorumMember with a scripted shell."""

    def __init__(self) -> None:
        self.log = Log()
        self.ids = 0
        self.config = ReplicationConfig()
        self.member = QuorumMember(self.config, self.log.fsm.rules, self.log, self.log.feed, self.new_id)
        self.member.caught_up()

    def new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16)

    def tick(self, *, votes: bool = True, online: bool = True, later_ns: int = 0) -> list[MemberEffect]:
        self.log.now_ns += later_ns
        return self.member.tick(self.log.now_ns, votes=votes, online=online)

    def do(self, order: ProposedEntry) -> pb.ControlResponse:
        entry = self.member.entry(order, 1, MAX_BYTES)
        assert isinstance(entry, bytes)
        return self.member.proposal_ended(order, EntryOutcome.APPLIED, self.log.apply(entry), self.log.now_ns)

    def lead(self) -> None:
        """Elect this member and apply its barrier."""
        self.log.leads = True
        [order] = self.tick()
        assert isinstance(order, ProposedEntry)
        assert self.do(order).error == pb.ControlResponse.OK
        assert self.member.is_active

    def ask(self, request: pb.ControlRequest) -> pb.ControlResponse | ProposedEntry | None:
        return self.member.request(request, NS_PER_S, self.log.now_ns)

    def register(self, count: int) -> None:
        for number in range(count):
            answer = self.ask(pb.ControlRequest(registerNode=registration(nodeId=f"d{number}")))
            assert isinstance(answer, ProposedEntry)
            assert self.do(answer).node.incarnation
        self.tick()


def heartbeat(number: int = 0) -> pb.ControlRequest:
    return pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId=f"d{number}", incarnation=number + 1))


@pytest.mark.parametrize("outcome", [EntryOutcome.NEVER, EntryOutcome.UNKNOWN])
def test_metadata_leader_repeats_a_barrier_with_an_unknown_outcome(outcome: EntryOutcome) -> None:
    made = Member()
    made.log.leads = True
    [order] = made.tick()
    assert isinstance(order, ProposedEntry)
    made.member.entry(order, 1, MAX_BYTES)
    made.member.proposal_ended(order, outcome, None, made.log.now_ns)
    assert not made.member.is_active
    [again] = made.tick()
    assert isinstance(again, ProposedEntry)
    assert again.barrier_term == 1


def test_metadata_leader_stays_inactive_after_a_barrier_of_an_older_term() -> None:
    made = Member()
    made.log.leads = True
    [order] = made.tick()
    assert isinstance(order, ProposedEntry)
    made.log.term = 5
    made.do(order)
    assert not made.member.is_active
    [again] = made.tick()
    assert isinstance(again, ProposedEntry)
    assert again.barrier_term == 5


def test_metadata_leader_that_resigned_grants_no_leases() -> None:
    made = Member()
    made.lead()
    made.register(1)
    granted = made.ask(heartbeat())
    assert isinstance(granted, pb.ControlResponse)
    assert granted.error == pb.ControlResponse.OK
    made.member.leave()
    made.member.resign()
    denied = made.ask(heartbeat())
    assert isinstance(denied, pb.ControlResponse)
    assert denied.error == pb.ControlResponse.UNAVAILABLE
    assert made.tick() == [], "and takes them up again never"


def test_controller_without_a_vote_requests_one_barrier_at_a_time() -> None:
    made = Member()
    assert made.tick(votes=False) == [CatchUp()]
    assert made.tick(votes=False) == []
    made.member.caught_up()
    assert made.tick(votes=False) == [CatchUp()], "that its folder went back is found out at any time"
    made.member.caught_up()
    made.member.leave()
    assert made.tick(votes=False) == []


def test_metadata_leader_checks_late_nodes_periodically_and_a_few_at_a_time() -> None:
    made = Member()
    made.lead()
    made.register(MAX_PROBES + 6)
    made.ask(heartbeat())
    assert not [d for d in made.tick(later_ns=PROBE_EVERY_NS) if isinstance(d, ProbeNode)], "nobody is late"
    assert not [d for d in made.tick(later_ns=NS_PER_S, online=False) if isinstance(d, ProbeNode)]
    looks = [d for d in made.tick() if isinstance(d, ProbeNode)]
    assert len(looks) == MAX_PROBES
    assert not [d for d in made.tick(later_ns=PROBE_EVERY_NS // 2) if isinstance(d, ProbeNode)]
    assert not [d for d in made.tick(later_ns=PROBE_EVERY_NS) if isinstance(d, ProbeNode)], "as many are under way"
    for look in looks[:2]:
        made.member.probe_ended(look.node_id, absent=False)
    again = [d for d in made.tick(later_ns=PROBE_EVERY_NS) if isinstance(d, ProbeNode)]
    assert len(again) == 2


def test_metadata_leader_fences_a_silent_node_early_only_after_a_no_responders_result() -> None:
    for absent in (False, True):
        made = Member()
        made.lead()
        made.register(2)
        made.ask(heartbeat())
        made.ask(heartbeat(1))
        made.tick(later_ns=NS_PER_S)
        made.member.probe_ended("d1", absent=absent)
        fenced = [
            d
            for d in made.tick(later_ns=6 * NS_PER_S // 10)
            if isinstance(d, ProposedEntry) and d.request.HasField("fenceNode")
        ]
        assert [order.request.fenceNode.nodeId for order in fenced] == (["d1"] if absent else [])


def test_metadata_leader_bounds_its_probes_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Member()
    made.lead()
    questions = [LeaderCheck(PartitionKey("s", "u", number), 1, "d0") for number in range(MAX_QUESTIONS + 2)]
    said: list[tuple[LeaderCheck, ProbeResult]] = []
    reports = made.member._duties.failure_reports
    monkeypatch.setattr(reports, "record_testimony", lambda *told: said.append(told))
    monkeypatch.setattr(reports, "take_leader_checks", lambda: questions)
    assert [d for d in made.tick() if isinstance(d, LeaderCheck)] == questions[:MAX_QUESTIONS]
    made.member.question_answered(questions[0], None)
    made.member.question_answered(questions[1], ProbeResult.SERVES)
    assert said == [(questions[1], ProbeResult.SERVES)], "silence is no testimony"
    monkeypatch.setattr(reports, "take_leader_checks", lambda: questions[MAX_QUESTIONS:])
    assert [d for d in made.tick() if isinstance(d, LeaderCheck)] == questions[MAX_QUESTIONS:]


def test_metadata_leader_limits_its_proposals_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Member()
    made.lead()
    monkeypatch.setattr(made.member._duties, "next_deadline_ns", lambda: 0)
    due = [pb.ControlRequest(fenceNode=pb.FenceNode(nodeId="d0")) for _ in range(MAX_DUTY_PROPOSALS)]
    monkeypatch.setattr(made.member._duties, "take_due", lambda _: due)
    orders = [d for d in made.tick() if isinstance(d, ProposedEntry)]
    assert len(orders) == MAX_DUTY_PROPOSALS
    assert not [d for d in made.tick() if isinstance(d, ProposedEntry)]
    made.member.entry(orders[0], 1, MAX_BYTES)
    made.member.proposal_ended(orders[0], EntryOutcome.UNKNOWN, None, made.log.now_ns)
    assert [d for d in made.tick() if isinstance(d, ProposedEntry)]


def test_metadata_leader_publishes_applied_entries_at_once_and_the_last_index_periodically() -> None:
    made = Member()
    made.lead()
    made.tick()
    order = made.ask(pb.ControlRequest(registerNode=registration(nodeId="d0")))
    assert isinstance(order, ProposedEntry)
    made.do(order)
    [publish] = [d for d in made.tick() if isinstance(d, PublishEntry)]
    assert publish.entry.index == made.log.image.index
    assert len(publish.entry.records)
    assert not [d for d in made.tick(later_ns=HEAD_EVERY_NS - 1) if isinstance(d, PublishEntry)]
    [head] = [d for d in made.tick(later_ns=1) if isinstance(d, PublishEntry)]
    assert head.entry.index == head.entry.previousIndex == made.log.image.index


def test_operation_id_with_an_entry_in_flight_is_answered_only_after_apply() -> None:
    """A full queue rejected the second attempt, and the entry of the first one is applied."""
    made = Member()
    made.lead()
    delete = pb.ControlRequest(deleteStream=pb.DeleteStream(name="s"), operationId=b"d" * 16)
    alone = made.ask(delete)
    assert isinstance(alone, pb.ControlResponse), "there is no such stream: the log need not be asked"
    first = ProposedEntry(delete)
    made.member.entry(first, 1, MAX_BYTES)
    made.member.proposal_ended(first, EntryOutcome.UNKNOWN, None, made.log.now_ns)
    second = made.ask(delete)
    assert isinstance(second, ProposedEntry)
    made.member.entry(second, 1, MAX_BYTES)
    made.member.proposal_ended(second, EntryOutcome.NEVER, None, made.log.now_ns)
    assert isinstance(made.ask(delete), ProposedEntry), "the first entry is still on its way"


def test_control_request_above_the_entry_size_is_rejected_and_not_logged() -> None:
    made = Member()
    made.lead()
    order = ProposedEntry(pb.ControlRequest(createStream=pb.CreateStream(name="s" * 300)))
    refused = made.member.entry(order, 1, 300)
    assert isinstance(refused, pb.ControlResponse)
    assert refused.error == pb.ControlResponse.INVALID


def test_remove_node_of_a_configured_controller_is_rejected() -> None:
    """No image names the controllers of a group that never changed."""
    one = Member()
    one.lead()
    one.register(2)
    one.log.view_ = GroupView(ControllerList(("d1", "n1")), "n1", frozenset(("n1",)))
    one.member._duties.answer = lambda *_: None  # type: ignore[method-assign]  # it has stopped: nothing else is in the way
    remove = pb.ControlRequest(removeNode=pb.RemoveNode(nodeId="d1"), operationId=b"r" * 16)
    refused = one.ask(remove)
    assert isinstance(refused, pb.ControlResponse)
    assert (refused.error, refused.operationId) == (pb.ControlResponse.INVALID, b"r" * 16)
    assert "liftpy controllers remove d1" in refused.detail
    remove.removeNode.nodeId = "d0"
    assert isinstance(one.ask(remove), ProposedEntry)


# ---- controllers that come and go ------------------------------------------------------------------------------------------
def a_view(*voters: str, learner: str = "", leaving: str = "", caught_up: bool = True) -> GroupView:
    now = ControllerList(voters, learner, leaving, 7)
    return GroupView(now, "n1", frozenset(now.members), caught_up)


def test_metadata_leader_removed_from_the_controllers_repeats_its_leadership_transfer() -> None:
    member = Member()
    member.lead()
    member.log.view_ = a_view("n1", "n2", "n3", leaving="n1")

    def leader_must_transfer(later_ns: int) -> bool:
        return TransferMetadataLeadership() in member.tick(later_ns=later_ns)

    looks = [leader_must_transfer(later_ns) for later_ns in (1, 1, TRANSFER_EVERY_NS - 2, 1, TRANSFER_EVERY_NS - 1, 1)]
    assert looks == [True, False, False, True, False, True]
    member.log.view_ = a_view("n1", "n2", "n3")
    assert not leader_must_transfer(TRANSFER_EVERY_NS)


def test_metadata_leader_that_requested_a_transfer_is_not_active_again_in_the_same_term() -> None:
    """The request may arrive late, and the other voter then wins while this member still leads [D22]."""
    member = Member()
    member.lead()
    member.log.view_ = a_view("n1", "n2", "n3", leaving="n1")
    assert TransferMetadataLeadership() in member.tick(later_ns=1)
    member.member.transfer_requested()
    assert [member.tick(later_ns=later_ns) for later_ns in (1, TRANSFER_EVERY_NS)] == [[], [TransferMetadataLeadership()]]
    assert not member.member.is_active
    member.log.term += 1
    member.lead()
    assert member.member.is_active


def test_controller_change_step_is_proposed_once_until_it_ends() -> None:
    member = Member()
    member.lead()

    def steps() -> list[ProposedEntry]:
        found = [decision for decision in member.tick(later_ns=1) if isinstance(decision, ProposedEntry)]
        return [order for order in found if order.request.HasField("changeControllers")]

    assert steps() == []
    member.log.view_ = a_view("n1", "n2", "n3", learner="n4", caught_up=False)
    assert steps() == [], "it waits"
    member.log.view_ = a_view("n1", "n2", "n3", learner="n4")
    wanted = pb.ControlRequest(changeControllers=pb.ChangeControllers())
    [order] = steps()
    assert (order.request, order.own) == (wanted, True)
    assert steps() == []
    member.member.proposal_ended(order, EntryOutcome.UNKNOWN, b"", member.log.now_ns)
    assert [again.request for again in steps()] == [wanted]


# ---- the member --------------------------------------------------------------------------------------------------------------
def test_metadata_leader_that_loses_and_regains_the_leadership_proposes_a_new_barrier_first() -> None:
    made = Member()
    made.lead()
    made.register(1)
    answer = made.ask(heartbeat())
    assert isinstance(answer, pb.ControlResponse)
    assert answer.error == pb.ControlResponse.OK
    made.log.leads = False
    assert made.tick() == []
    assert not made.member.is_active
    assert made.tick() == []
    made.log.leads = True
    [barrier] = made.tick()
    assert isinstance(barrier, ProposedEntry)
    assert barrier.barrier_term == made.log.term, "a new one, in the same term too"


# ---- whose place is wanted -----------------------------------------------------------------------------------------------------
def test_overdue_nodes_after_a_second_claim_of_an_id_list_the_node_for_one_second() -> None:
    now_ns = 100 * S
    sessions = NodeSessions(ReplicationConfig())
    sessions.lead(an_image(), now_ns)
    for name, incarnation in (("a", 1), ("b", 2), ("c", 3)):
        assert sessions.heartbeat(name, incarnation, now_ns, now_ns).granted
    assert sessions.overdue(now_ns) == []
    assert sessions.may_still_run("b", now_ns)
    assert not sessions.may_still_run("x", now_ns)
    assert sessions.overdue(now_ns) == ["b"]
    for later_ns, overdue in ((S, ["b"]), (S + 1, [])):
        for name, incarnation in (("a", 1), ("b", 2), ("c", 3)):
            sessions.heartbeat(name, incarnation, now_ns + later_ns, now_ns + later_ns)
        assert sessions.overdue(now_ns + later_ns) == overdue


# ---- a leader is asked to step aside -------------------------------------------------------------------------------------------
def asked(**move: object) -> pb.ControlRequest:
    return pb.ControlRequest(electLeader=pb.ElectLeader(stream="s", **move))  # type: ignore[arg-type]


def test_metadata_leader_asks_a_partition_leader_to_resign_only_before_a_transfer() -> None:
    image = an_image(a_stream(a_partition(replicas=("c", "a", "b"), isr=("a", "b")), a_partition(partition=1)))
    question = replication_pb2.StepAside(stream="s", streamUid="u1", partition=0, leaderEpoch=5)
    assert leader_to_ask_first(image, asked(node="b")) == ("a", question)
    assert leader_to_ask_first(image, asked(node="b", uid="u1")) == ("a", question)
    assert leader_to_ask_first(image, asked(node="a")) is None, "it leads already"
    assert leader_to_ask_first(image, asked(node="c")) is None, "no member of the ISR"
    assert leader_to_ask_first(image, asked()) is None, "the preferred one is none"
    assert leader_to_ask_first(image, asked(partition=1)) is None, "the preferred one leads"
    assert leader_to_ask_first(image, asked(node="b", unclean=True)) is None
    assert leader_to_ask_first(image, asked(node="b", uid="old")) is None
    assert leader_to_ask_first(image, asked(node="b", partition=2)) is None
    assert leader_to_ask_first(image, pb.ControlRequest(barrier=pb.Barrier())) is None
    nobody = an_image(a_stream(a_partition(status=PartitionStatus.ELECTION, leader="")))
    assert leader_to_ask_first(nobody, asked(node="b")) is None
    wanted = an_image(a_stream(a_partition(replicas=("b", "a", "c"))))
    assert leader_to_ask_first(wanted, asked()) == ("a", question), "toward the preferred one"


# ---- entries, pages, bounds ----------------------------------------------------------------------------------------------------


def test_control_request_above_the_size_list_or_text_limit_is_rejected() -> None:
    many = pb.ControlRequest(changeIsr=pb.ChangeIsr(isr=["n"] * MAX_LIST_LENGTH))
    assert fit(many, MAX_REQUEST_BYTES) == ""
    assert fit(many, MAX_REQUEST_BYTES + 1) == f"the request has {MAX_REQUEST_BYTES + 1} bytes, more than {MAX_REQUEST_BYTES}"
    many.changeIsr.isr.append("n")
    assert fit(many, 1) == f"changeIsr.isr has {MAX_LIST_LENGTH + 1} items, more than {MAX_LIST_LENGTH}"
    long = pb.ControlRequest(changeIsr=pb.ChangeIsr(isr=["n", "x" * (MAX_TEXT_BYTES + 1)]))
    assert fit(long, 1).startswith("changeIsr.isr is 'xxx")
    long.changeIsr.isr[1] = "é" * (MAX_TEXT_BYTES // 2)
    assert fit(long, 1) == ""
    long.changeIsr.isr[1] += "x"
    assert fit(long, 1).endswith(f"longer than {MAX_TEXT_BYTES} bytes")
    named = pb.ControlRequest(operationId=b"o" * MAX_TEXT_BYTES)
    assert fit(named, 1) == ""
    named.operationId += b"o"
    assert fit(named, 1) == f"operationId has {MAX_TEXT_BYTES + 1} bytes, more than {MAX_TEXT_BYTES}"
    wordy = pb.ControlRequest(giveUpLeadership=pb.GiveUpLeadership(stream="s", reason="é" * 9_999))
    assert fit(wordy, 1) == ""
    assert wordy.giveUpLeadership == pb.GiveUpLeadership(stream="s", reason="é" * (MAX_TEXT_BYTES // 4)), "it is for people"
