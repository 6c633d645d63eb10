"""Test a group whose controllers hold different images: without a majority it decides nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_quorum_member import MAX_BYTES, Log, Member

from liftpy.config import NS_PER_S
from liftpy.core.metadata.controller.quorum_member import MAX_BARRIERS, EntryOutcome, ProposedEntry
from liftpy.core.metadata.controller_list import ControllerList, GroupView
from liftpy.core.metadata.state_checksum import EVERY, NONE, AppliedDigests
from liftpy.core.wire._pb import cluster_pb2 as pb

Error = pb.ControlResponse
VOTERS = ControllerList(("n1", "n2", "n3"))
WHY = "the controllers n1, n2 hold different images"
D, E = b"d" * 8, b"e" * 8


def halted(live: str = "n1 n2", voters_without_digest: str = "") -> Member:
    """Return active metadata leader n1. Controller n3 does not acknowledge entries."""
    made = Member()
    made.log.view_ = GroupView(VOTERS, "n1", frozenset(live.split()))
    made.lead()
    made.log.view_ = replace(made.log.view_, halted=WHY, voters_without_digest=frozenset(voters_without_digest.split()))
    return made


def create() -> pb.ControlRequest:
    return pb.ControlRequest(createStream=pb.CreateStream(name="s", subject="s", partitions=1), operationId=b"c" * 16)


def barrier(sender: str) -> pb.ControlRequest:
    return pb.ControlRequest(barrier=pb.Barrier(), sender=sender)


def error_of(made: Member, request: pb.ControlRequest) -> pb.ControlResponse.Error:
    answer = made.ask(request)
    assert isinstance(answer, pb.ControlResponse)
    return answer.error


def own_barriers(made: Member) -> list[ProposedEntry]:
    return [d for d in made.tick() if isinstance(d, ProposedEntry) and d.request.HasField("barrier")]


def test_metadata_leader_halted_by_different_digests_answers_unavailable_with_the_reason() -> None:
    made = halted()
    answer = made.ask(create())
    assert isinstance(answer, pb.ControlResponse)
    assert (answer.error, answer.detail) == (Error.UNAVAILABLE, WHY)


def test_halted_metadata_leader_answers_unavailable_only_if_the_request_has_no_log_entry() -> None:
    """[D8] This log, or that of an unknown leader, may have an entry of the same operation."""
    made = halted()
    made.log.view_ = replace(made.log.view_, halted="")
    order = made.ask(create())
    assert isinstance(order, ProposedEntry)
    made.member.entry(order, 1, MAX_BYTES)
    made.log.view_ = replace(made.log.view_, halted=WHY)
    assert error_of(made, create()) == Error.OUTCOME_UNKNOWN, "it is in the log, and not applied yet"
    made.member.proposal_ended(order, EntryOutcome.NEVER, None, made.log.now_ns)
    assert error_of(made, create()) == Error.UNAVAILABLE

    new = halted()
    new.log.term += 1
    assert error_of(new, create()) == Error.OUTCOME_UNKNOWN, "the leader before may have logged it"


def test_halted_metadata_leader_without_a_confirmed_majority_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made = halted()
    monkeypatch.setattr(Log, "confirmed_ns", lambda log: log.now_ns - NS_PER_S)
    assert made.ask(create()) is None


def test_halted_metadata_leader_logs_only_barriers_of_controllers_without_the_newest_digest() -> None:
    made = halted()
    assert isinstance(made.ask(barrier("n3")), ProposedEntry), "without it its digest would be missing for ever"
    assert error_of(made, barrier("n2")) == Error.UNAVAILABLE, "it counts"
    assert error_of(made, barrier("d7")) == Error.UNAVAILABLE, "no controller"
    asked = create()
    asked.sender = "n3"
    assert error_of(made, asked) == Error.UNAVAILABLE


def test_halted_metadata_leader_logs_barriers_until_each_controller_reports_a_digest() -> None:
    made = halted(voters_without_digest="n2 n3")
    first = own_barriers(made)
    assert len(first) == MAX_BARRIERS
    assert own_barriers(made) == [], "so many at the same time"
    made.do(first[0])
    assert len(own_barriers(made)) == 1
    made.log.view_ = replace(made.log.view_, voters_without_digest=frozenset(("n3",)))
    made.do(first[1])
    assert own_barriers(made) == [], "n3 is not there: nothing is to be learned"
    assert own_barriers(halted()) == []
    well = halted(voters_without_digest="n2")
    well.log.view_ = replace(well.log.view_, halted="")
    assert own_barriers(well) == []


def test_applied_digests_list_controllers_without_the_newest_digest() -> None:
    made = AppliedDigests("a")
    assert made.voters_without_digest(("a", "b")) == {"a", "b"}
    made.entry_applied(EVERY - 1, EVERY, D)
    made.record_report("b", (EVERY, E))
    made.record_report("c", (2 * EVERY, E))
    assert made.voters_without_digest(("a", "b", "c", "d")) == {"c", "d"}
    made.entry_applied(2 * EVERY - 1, 2 * EVERY, D)
    assert made.voters_without_digest(("a", "b", "c", "d")) == {"b", "d"}


def test_applied_digests_without_a_majority_after_a_voter_is_removed_have_no_agreed_digest() -> None:
    """The data directory of a voter may be gone. The group then needs the one that differs, until the voter has caught up."""
    made = AppliedDigests("a")
    made.entry_applied(EVERY - 1, EVERY, D)
    made.record_report("b", (EVERY, D))
    made.record_report("c", (EVERY, E))
    made.compare_reports(("a", "b", "c"))
    assert made.agreed == (EVERY, D)
    made.forget("b")
    assert made.agreed == NONE
