"""Test what a metadata leader stops, repeats and forgets."""

from __future__ import annotations

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller.quorum_member import (
    ProposedEntry,
    leader_to_ask_first,
)
from liftpy.core.metadata.request_limits import MAX_LIST_LENGTH, MAX_REQUEST_BYTES, MAX_TEXT_BYTES, fit
from liftpy.core.metadata.sessions import NodeSessions
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from tests.unit.metadata.small_images import S, a_partition, a_stream, an_image
from tests.unit.metadata.test_quorum_member import Member, heartbeat


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
def test_node_whose_id_another_process_claims_is_listed_as_overdue_for_one_second() -> None:
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
