"""Every bound and comparison that replication rests on, at it and one beside; and whom a replica believes [D7, D8, D15, D19, D22]."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import CommitPolicy, ReplicationConfig
from liftpy.errors import InvariantError
from liftpy.log.epochs import EpochCache
from liftpy.log.horizon import NEVER, Horizon
from liftpy.partition import PartitionStatus
from liftpy.replica import effects as do
from liftpy.replica import events as ev
from liftpy.replica import lag
from liftpy.replica.assembling import FetchAssembly
from liftpy.replica.backoff import Backoff
from liftpy.replica.commit import isr_high_watermark, quorum_high_watermark
from liftpy.replica.events import RefusalReason
from liftpy.replica.intake import RECORD_OVERHEAD_BYTES, Gate, Intake, NodeIntake, size_in_memory
from liftpy.replica.isr_change import IsrChange
from liftpy.replica.lease import Lease
from liftpy.replica.lineage import Lineage, judge
from liftpy.replica.local_log import LocalLog
from liftpy.replica.overflow import Overflow
from liftpy.replica.progress import DOUBT_NS, REACH_NS, FollowerProgress
from liftpy.replica.quiet import QuietFetch, QuietFetches
from liftpy.replica.slow_flushes import SlowFlushes
from liftpy.replica.succession import Succession
from liftpy.replica.waiters import Waiter, Waiters
from liftpy.wire.pieces import Piece
from tests.unit.replica.stepping import KEY, S, Stepped, state

MS = 1_000_000


# ---- commitment --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("min_isr", [1, 2, 3])
@pytest.mark.parametrize("isr_count", [1, 2, 3])
def test_hw_by_the_isr_is_the_lowest_of_all_and_waits_for_min_isr(min_isr: int, isr_count: int) -> None:
    members = "abc"[:isr_count]
    positions: dict[str, int | None] = {"a": 9, "b": 7, "c": 5}
    found = isr_high_watermark(positions, members, isr_count, min_isr, 4)
    assert found == (4 if isr_count < min_isr else min(positions[m] or 0 for m in members))
    assert isr_high_watermark({**positions, members[-1]: None}, members, isr_count, min_isr, 4) == 4
    assert isr_high_watermark(positions, members, isr_count, min_isr, 20) == 20, "it never falls"


@pytest.mark.parametrize(
    ("replicas", "min_isr", "hw"), [("abc", 1, 7), ("abc", 2, 7), ("abc", 3, 5), ("abcd", 1, 5), ("abcde", 4, 3)]
)
def test_hw_by_quorum_takes_a_majority_and_min_isr_and_this_epochs_records(replicas: str, min_isr: int, hw: int) -> None:
    positions: dict[str, int | None] = dict(zip("abcde", (9, 7, 5, 3, 1), strict=True))
    for epoch_start in range(12):
        found = quorum_high_watermark(positions, replicas, len(replicas), min_isr, epoch_start, 0)
        assert found == (hw if hw >= epoch_start else 0), epoch_start


def test_a_leader_counts_what_it_has_flushed_and_no_more() -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    leader.publish(5, flush=False)
    for follower in "bc":
        leader.fetch(follower, 4)
    assert leader.replica.high_watermark == -1, "its own flush counts too"
    leader.step(ev.LogFlushed(end_offset=3))
    assert leader.replica.high_watermark == 2
    leader.step(ev.LogFlushed(end_offset=5))
    assert leader.replica.high_watermark == 4


def test_by_quorum_hw_stays_at_or_below_the_leaders_own_flush() -> None:
    leader = Stepped("a").leads(state(leader_epoch=2, policy=CommitPolicy.QUORUM))
    leader.publish(5, flush=False)
    for follower in "bc":
        leader.fetch(follower, 4)
    assert leader.replica.high_watermark == -1
    leader.step(ev.LogFlushed(end_offset=2))
    assert leader.replica.high_watermark == 1


# ---- who is believed ---------------------------------------------------------------------------------------------------------
def test_a_fetch_of_a_fenced_process_is_served_and_does_not_count() -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    leader.told(state(leader_epoch=2, epoch=2), {"a": 1, "b": 1})  # c is fenced
    leader.publish(3)
    leader.fetch("b", 2)
    leader.fetch("c", 2, incarnation=1)
    assert leader.has(do.SendFetchResponse)
    assert leader.replica.high_watermark == -1
    leader.told(state(leader_epoch=2, epoch=3), {"a": 1, "b": 1, "c": 2})
    leader.fetch("c", 2, incarnation=1)
    assert leader.only(do.SendFetchRefusal).reason is RefusalReason.STALE_INCARNATION
    assert leader.replica.high_watermark == -1
    leader.fetch("c", 2, incarnation=2)
    assert leader.replica.high_watermark == 2


@pytest.mark.parametrize(
    ("offset", "reason"), [(-1, None), (0, None), (2, None), (3, RefusalReason.DIVERGED), (4, RefusalReason.DIVERGED)]
)
def test_where_a_follower_may_be(offset: int, reason: RefusalReason | None) -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    leader.publish(3)
    leader.fetch("b", offset)
    assert leader.has(do.SendFetchRefusal) is (reason is not None)
    if reason is not None:
        assert leader.only(do.SendFetchRefusal).reason is reason


@pytest.mark.parametrize(("asked", "given"), [(0, 1000), (999, 999), (1000, 1000), (1001, 1000)])
def test_answers_are_as_large_as_both_sides_allow(asked: int, given: int) -> None:
    leader = Stepped("a", ReplicationConfig(replication_max_bytes=1_000_000)).leads(state(leader_epoch=2))
    leader.publish(3)
    leader.fetch("b", -1, max_bytes=asked * 1000)
    assert leader.only(do.SendFetchResponse).max_bytes == given * 1000


@pytest.mark.parametrize(("incarnation", "heard"), [(1, True), (0, False)])
def test_complaints_of_the_living_are_looked_into(incarnation: int, heard: bool) -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    leader.publish(3)
    leader.fetch("b", -1, bad_offset=1, incarnation=incarnation)
    assert leader.has(do.RecheckLog) is heard
    if heard:
        assert (leader.only(do.RecheckLog).offset, leader.only(do.RecheckLog).replica) == (1, "b")


def test_an_answer_that_was_kept_tells_hw_once() -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    for follower in "bc":
        leader.fetch(follower, -1, awaits_more=True)
    leader.publish(2)
    assert {effect.replica for effect in leader.out if isinstance(effect, do.AnswerWaiter)} <= {"b", "c"}
    followers = leader.replica._role.desk.followers  # type: ignore[attr-defined]
    assert all(progress.told_high_watermark == leader.replica.high_watermark for progress in followers.values())


# ---- followers ---------------------------------------------------------------------------------------------------------------
def following(end: int = 5) -> Stepped:
    """At offset ``end``, with a fetch under way in epoch 1 of leader a."""
    follower = Stepped("b")
    follower.opened(end, end - 1, ((1, 0),) if end else ())
    follower.told(state())
    if end:
        query = follower.only(do.SendEpochQuery)
        follower.step(
            ev.EpochQueryAnswered(
                request_id=query.request_id, leader_epoch=1, last_offset=end - 1, current_epoch=1, log_start_offset=0
            )
        )
    assert follower.has(do.SendFetch)
    return follower


@pytest.mark.parametrize("reason", list(RefusalReason))
def test_a_refusal_of_another_epoch_changes_nothing_here(reason: RefusalReason) -> None:
    follower = following()
    request = follower.only(do.SendFetch).request_id
    follower.step(ev.FetchRefused(request_id=request, reason=reason, leader_epoch=7, log_start_offset=100))
    assert not any(isinstance(effect, do.CutLog | do.StartLogAfresh) for effect in follower.out)
    assert follower.replica.log.log_end_offset == 5
    assert follower.replica.phase == "FOLLOWER_FETCH_BACKOFF"


@pytest.mark.parametrize(("log_start", "afresh"), [(3, False), (4, False), (5, True), (9, True)])
def test_a_fresh_start_needs_a_log_that_begins_behind_ones_own(log_start: int, afresh: bool) -> None:
    follower = following(5)
    follower.step(
        ev.FetchRefused(
            request_id=follower.only(do.SendFetch).request_id,
            reason=RefusalReason.BEFORE_LOG_START,
            leader_epoch=1,
            log_start_offset=log_start,
        )
    )
    assert follower.has(do.StartLogAfresh) is afresh


@pytest.mark.parametrize(("sender", "epoch", "heard"), [("a", 1, True), ("c", 1, False), ("a", 2, False)])
def test_a_notice_counts_that_is_of_the_leader_and_its_epoch(sender: str, epoch: int, heard: bool) -> None:
    follower = following()
    follower.now_ns += 3 * S
    notice = ev.NoticeReceived(
        leader=sender, leader_epoch=epoch, epoch=1, epoch_start_offset=0, high_watermark=4, log_start_offset=0
    )  # fmt: skip
    follower.step(notice)
    assert (follower.replica._role._heard_ns == follower.now_ns) is heard  # type: ignore[attr-defined]


@pytest.mark.parametrize(("offset", "named"), [(0, 5), (4, 5), (5, 5), (7, 7)])
def test_a_complaint_is_about_what_one_does_not_hold(offset: int, named: int) -> None:
    follower = following(5)
    follower.step(ev.RequestFailed(request_id=follower.only(do.SendFetch).request_id, reason="crc", bad_offset=offset))
    follower.fire(ev.Deadline.FETCH)
    assert follower.only(do.SendFetch).bad_offset == named


def test_a_suspended_host_blames_nobody() -> None:
    follower = following(0)
    follower.answered([], -1)
    late_s = 60.0
    follower.fire(ev.Deadline.LEADER, late_s=late_s)
    assert not follower.has(do.ReportLeader), "what came meanwhile lies in a queue"
    follower.fire(ev.Deadline.LEADER)
    assert follower.has(do.ReportLeader)


def test_request_ids_are_never_used_twice_even_in_one_instant() -> None:
    follower = following(0)
    seen = [follower.only(do.SendFetch).request_id]
    for _ in range(5):
        follower.step(ev.RequestFailed(request_id=seen[-1], reason="lost"))
        role: Any = follower.replica._role
        role._fetch(follower.now_ns, follower.out)
        seen.append(follower.only(do.SendFetch).request_id)
    assert seen == sorted(set(seen))


def test_pieces_are_of_one_batch_of_one_leader() -> None:
    assembly = FetchAssembly()

    def asks(epoch: int, offset: int, bad: int | None = None) -> int:
        return assembly.asks(
            do.SendFetch(
                request_id=1, leader="a", offset=offset, offset_epoch=0, leader_epoch=epoch, max_bytes=100, bad_offset=bad
            )
        ).position

    assert asks(1, 4) == 0
    assembly.take(Piece(1, 6, 0, memoryview(b"abc")))
    assert asks(1, 4) == 3, "it goes on"
    assert asks(2, 4) == 0, "another leader's batch may be another"
    for other in ((2, 5, None), (2, 5, 5)):
        assembly.take(Piece(1, 6, 0, memoryview(b"abc")))
        assert asks(*other) == 0


# ---- candidates --------------------------------------------------------------------------------------------------------------
def candidate(epoch: int = 3) -> Stepped:
    made = Stepped("b").opened(4, 3, ((1, 0),))
    made.told(state(leader="", candidate="b", status=PartitionStatus.CANDIDATE_FOUND, leader_epoch=2, epoch=epoch))
    return made


def test_a_candidate_replays_what_is_stored_and_flushed() -> None:
    made = candidate()
    made.replica.log.flushed_end_offset = 2
    made.step(ev.LeaderEpochPersisted(leader_epoch=2))
    assert not made.has(do.ReplayLog), "the end of its log is not flushed"
    made.step(ev.LogFlushed(end_offset=4))
    assert made.only(do.ReplayLog).end_offset == 4
    assert made.only(do.ReportPromotion).newest_offset == 3


def test_a_candidate_reports_again_under_each_epoch_and_with_time() -> None:
    made = candidate()
    made.step(ev.LeaderEpochPersisted(leader_epoch=2))
    made.step(ev.ReplayFinished(end_offset=4))
    assert made.only(do.ReportPromotion).finished
    for epoch in (4, 5):
        made.told(state(leader="", candidate="b", status=PartitionStatus.CANDIDATE_FOUND, leader_epoch=2, epoch=epoch))
        assert made.only(do.ReportPromotion).epoch == epoch
    for _ in range(3):
        made.fire(ev.Deadline.PROMOTION)
        assert made.has(do.ReportPromotion)


def test_promises_only_rise() -> None:
    follower = Stepped("b").opened()
    follower.told(state())
    follower.step(ev.LeaderEpochPersisted(leader_epoch=7))
    follower.step(ev.LeaderEpochPersisted(leader_epoch=5))
    follower.told(state(leader="c", leader_epoch=6, epoch=9))
    assert follower.replica.state.leader_epoch == 1, "it has promised to follow nobody below 7"
    follower.told(state(leader="c", leader_epoch=7, epoch=10))
    assert follower.replica.state.leader_epoch == 7


# ---- the ISR -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("behind", "lags"), [(9, False), (10, False), (11, True)])
def test_lag_in_records(behind: int, lags: bool) -> None:
    progress = FollowerProgress(caught_up_ns=0, position=99 - behind)
    assert lag.is_lagging(progress, 100, 5, 5, 10) is lags
    assert not lag.is_lagging(progress, 100, 5, 5, 0), "0: no bound"
    assert lag.is_lagging(FollowerProgress(caught_up_ns=0), 100, 6, 5, 0), "by time"
    assert not lag.is_lagging(FollowerProgress(caught_up_ns=0), 100, 5, 5, 10)


def wanted(followers: dict[str, FollowerProgress], **more: Any) -> frozenset[str]:
    given: dict[str, Any] = {
        "high_watermark": 5, "epoch_start_offset": 0, "log_end_offset": 6, "now_ns": 10, "max_lag_ns": 100, "max_lag_records": 0,
        "min_isr": 2, "replica_count": 4,
    }  # fmt: skip
    live = dict.fromkeys("abcd", 1)
    return lag.wanted_isr("a", frozenset("abcd"), followers, live, **(given | more))


@pytest.mark.parametrize(
    ("min_isr", "silent", "leave"), [(2, 1, True), (3, 1, True), (4, 1, False), (3, 2, False), (1, 3, False), (2, 2, True)]
)
@pytest.mark.parametrize("absences", [1, 2])
def test_the_silent_leave_together_and_leave_enough(min_isr: int, silent: int, leave: bool, absences: int) -> None:
    followers = {node: FollowerProgress(caught_up_ns=9, incarnation=1, live=True, position=5) for node in "bcd"}
    for node in "bcd"[:silent]:
        followers[node].probed, followers[node].absences = True, absences
    staying = frozenset("abcd") - frozenset("bcd"[:silent]) if leave and absences == 2 else frozenset("abcd")
    assert wanted(followers, min_isr=min_isr) == staying


@pytest.mark.parametrize(
    ("position", "hw", "start", "joins"), [(5, 5, 0, True), (4, 5, 0, False), (5, 5, 6, True), (5, 5, 7, False)]
)
def test_who_joins_holds_what_is_committed_and_where_the_epoch_began(position: int, hw: int, start: int, joins: bool) -> None:
    progress = FollowerProgress(caught_up_ns=0, incarnation=3, position=position)
    assert lag.may_join(progress, 3, hw, start) is joins
    assert not lag.may_join(progress, 4, hw, start), "of the process before"
    assert not lag.may_join(progress, 0, hw, start), "fenced"
    assert not lag.may_join(FollowerProgress(caught_up_ns=0, incarnation=3), 3, hw, start)


def test_an_unknown_outcome_keeps_all_that_may_be_members() -> None:
    change = IsrChange()
    change.proposed(frozenset("abc"))
    assert change.maximal(frozenset("ab")) == frozenset("abc")
    change.unanswered(5)
    change.proposed(frozenset("ab"))
    change.refused(6)
    assert change.maximal(frozenset("ab")) == frozenset("abc"), "the first one may still be made"
    change.settled()
    assert change.maximal(frozenset("ab")) == frozenset("ab")
    change.proposed(frozenset("abc"))
    change.refused(7)
    assert change.maximal(frozenset("ab")) == frozenset("ab")


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_an_answer_is_to_the_change_of_this_epoch(epoch: int) -> None:
    leader = Stepped("a").leads(state(leader_epoch=2, epoch=2, isr="ab"))
    role: Any = leader.replica._role
    role.isr_change.proposed(frozenset("abc"))
    leader.step(ev.IsrChangeAnswered(epoch=epoch, accepted=False))
    assert role.isr_change.in_flight is (epoch != 2)


# ---- progress ----------------------------------------------------------------------------------------------------------------
def fetched(*ids: int, now_ns: int = 0) -> FollowerProgress:
    progress = FollowerProgress(caught_up_ns=0)
    for number, request_id in enumerate(ids):
        progress.fetched(number, request_id, 100, now_ns)
    return progress


@pytest.mark.parametrize(
    ("request_id", "believed"), [(99, False), (100, False), (101, True), (100 + REACH_NS, True), (101 + REACH_NS, False)]
)
def test_only_the_next_request_ids_are_believed(request_id: int, believed: bool) -> None:
    assert fetched(100).believes(request_id, 0) is believed


def test_doubts_last_and_end() -> None:
    progress = fetched(100)
    for now_ns, believed in ((0, False), (1, False), (DOUBT_NS, False), (DOUBT_NS + 1, True)):
        assert progress.believes(50, now_ns) is believed
    progress.fetched(1, 101, 100, 0)
    assert not progress.believes(50, DOUBT_NS + 2), "a fetch that fits ends the doubt"


def test_a_fetch_and_a_wait_end_what_was_said_of_absence() -> None:
    for sign in (lambda p: p.fetched(1, 5, 100, 7), lambda p: p.still_waits(7)):
        progress = FollowerProgress(caught_up_ns=0, absences=1, probed=True)
        sign(progress)
        assert (progress.absences, progress.probed) == (0, False)


def test_another_process_has_to_show_everything_anew() -> None:
    progress = fetched(5, 6)
    progress.live_is(1, 0)
    assert progress.position is None
    progress.fetched(9, 7, 10, 0)
    progress.live_is(1, 1)
    assert (progress.position, progress.was_caught_up) == (9, True), "the same"
    progress.live_is(2, 1)
    assert (progress.position, progress.was_caught_up, progress.last_request_id) == (None, False, 0)


# ---- time --------------------------------------------------------------------------------------------------------------------
def test_a_lease_runs_from_when_it_was_asked_for_and_only_grows() -> None:
    lease = Lease(100)
    assert not lease.is_current(0)
    lease.heard(50)
    lease.heard(20)
    assert [lease.is_current(now) for now in (149, 150)] == [True, False]
    assert (lease.until_ns(10), lease.until_ns(150), lease.until_ns(200)) == (150, 150, 200)


def test_waits_grow_to_their_bound_and_differ() -> None:
    waits = {seed: Backoff(100 * MS, 800 * MS, seed).next_ns() for seed in range(50)}
    assert len(set(waits.values())) > 40
    assert all(50 * MS <= wait <= 100 * MS for wait in waits.values())
    backoff = Backoff(100 * MS, 800 * MS, 1)
    for base in (100, 200, 400, 800, 800, 800):
        assert base * MS // 2 <= backoff.next_ns() <= base * MS
    backoff.succeeded()
    assert backoff.next_ns() <= 100 * MS


def test_who_may_still_speak_is_waited_for_as_long_as_a_lease() -> None:
    live = {"a": 1, "b": 1, "c": 1}
    succession = Succession("c", 100)
    succession.partition_changed(state("a", leaderships=1).state, live, 0)
    assert succession.is_over(0)
    succession.partition_changed(state("b", epoch=2, leader_epoch=2, leaderships=2).state, live, 10)
    assert [succession.is_over(now) for now in (10, 109, 110)] == [False, False, True]
    assert succession.until_ns() == 110
    succession.partition_changed(state("c", epoch=3, leader_epoch=4, leaderships=4).state, live, 20)  # one was missed
    assert set(succession._suspects) == {"a", "b"}, "whoever it was"
    succession.asked_by("a")
    assert not succession.is_over(20)
    succession.asked_by("b")
    assert succession.is_over(20)


def test_a_waiter_is_told_of_what_is_past_its_end() -> None:
    waiters = Waiters()
    for name, end in (("a", 5), ("b", 6), ("c", 7)):
        waiters.register(Waiter(name, end, 1))
    assert [w.replica for w in waiters.signal(6)] == ["a"]
    assert [w.replica for w in waiters.signal(6)] == []
    assert [w.replica for w in waiters.signal(8)] == ["b", "c"]


# ---- the log's mirror --------------------------------------------------------------------------------------------------------
def mirror(end: int = 10, flushed: int = 10, hw: int = 5) -> LocalLog:
    return LocalLog(0, end, flushed, hw, EpochCache([(1, 0), (3, 6)]))


def test_a_flush_that_ran_before_a_cut_says_nothing_of_what_comes_after() -> None:
    log = mirror(flushed=4)
    log.was_cut(6)
    log.flushed(10)
    assert log.flushed_end_offset == 6
    log.append(3, 4)
    assert (log.flushed_end_offset, log.is_flushed) == (6, False)
    log.flushed(5)
    assert log.flushed_end_offset == 6, "it never falls"


def test_an_emptied_log_lacks_nothing() -> None:
    for cut in (lambda log: log.was_cut(0), lambda log: log.start_afresh(20)):
        log = mirror()
        log.compacted(Horizon(8, 3))
        cut(log)
        assert log.is_empty
        assert log.horizon == NEVER
    log = mirror()
    log.compacted(Horizon(8, 3))
    log.was_cut(9)
    assert log.horizon == Horizon(8, 3)
    with pytest.raises(InvariantError):
        log.was_cut(10)


@pytest.mark.parametrize(
    ("last_offset", "last_epoch", "lineage", "end"),
    [
        (5, 1, Lineage.SAME, 0),
        (6, 3, Lineage.SAME, 0),
        (6, 1, Lineage.CUT, 6),
        (8, 2, Lineage.CUT, 6),
        (12, 3, Lineage.CUT, 10),
        (3, 3, Lineage.CUT, 3),
    ],
)
def test_where_a_reader_parted_from_this_log(last_offset: int, last_epoch: int, lineage: Lineage, end: int) -> None:
    found = judge(mirror(), last_offset=last_offset, last_epoch=last_epoch, is_latest=True)
    assert (found.lineage, found.end_offset) == (lineage, end)
    if lineage is Lineage.CUT:
        assert judge(mirror(), last_offset=last_offset, last_epoch=last_epoch, is_latest=False).lineage is Lineage.BEHIND


# ---- intake ------------------------------------------------------------------------------------------------------------------
def publishes(count: int, size: int, *, plain: bool = True) -> ev.PublishesReceived:
    return ev.PublishesReceived(
        token=1, record_count=count, size_bytes=size, received_wall_ns=0, plain_count=count if plain else 0
    )


def test_intake_counts_every_byte_in_and_out() -> None:
    config = ReplicationConfig(ingest_queue_bytes=1 << 20, ingest_buffer_bytes=1 << 22)
    node = NodeIntake()
    intakes = [Intake(node, config) for _ in range(2)]
    event = publishes(3, 1000)
    assert size_in_memory(event) == 1000 + 3 * RECORD_OVERHEAD_BYTES
    for intake in intakes:
        assert intake.hold(event)
        intake.appended(4, 100)
        intake.appended(9, 200)
    assert (node.held_bytes, node.unreplicated_bytes) == (2 * size_in_memory(event), 600)
    intakes[0].committed(3)
    assert intakes[0].uncommitted_bytes == 300
    intakes[0].committed(4)
    assert (intakes[0].uncommitted_bytes, node.unreplicated_bytes) == (200, 500)
    assert intakes[0].next() is event
    assert (node.held_bytes, node.released_bytes, intakes[0].held_bytes) == (size_in_memory(event), size_in_memory(event), 0)
    for intake in intakes:
        list(intake.close())
    assert (node.held_bytes, node.unreplicated_bytes, node.full_count) == (0, 0, 0)


@pytest.mark.parametrize("of_node", [False, True])
def test_what_is_held_has_a_bound(of_node: bool) -> None:
    size = size_in_memory(publishes(1, 1000))
    bounds = {"ingest_queue_bytes": 1 << 20, "ingest_buffer_bytes": 1 << 22}
    node = NodeIntake()
    intake = Intake(node, ReplicationConfig(**bounds))  # type: ignore[arg-type]
    bound = bounds["ingest_queue_bytes"]
    if of_node:
        node.held_bytes = bounds["ingest_buffer_bytes"] // 2 - size * 3
        bound = size * 3
    taken = sum(1 for _ in itertools.takewhile(bool, (intake.hold(publishes(1, 1000)) for _ in range(5000))))
    assert taken == bound // size
    assert intake.held_bytes == taken * size


def test_a_full_gate_is_patient_then_keeps_its_rate_and_opens_for_the_stuck() -> None:
    node = NodeIntake(full_count=1)
    gate = Gate(node)
    assert gate.may_take(0, True, 1 * S) is False, "nothing is due at once"
    patient = [gate.may_take(0, True, S + ms * MS) for ms in (100, 300, 490)]
    assert patient == [False, False, False], "it is only just full"
    assert gate.may_take(0, True, S + 600 * MS), "then some is due"
    assert not gate.may_take(gate.least_rate_bytes, True, S + 700 * MS), "and no more than that"
    node.released_bytes += 1
    assert not gate.may_take(1 << 30, True, 3 * S + 100 * MS), "it gets on: not stuck"
    assert gate.may_take(1 << 40, True, 6 * S), "stuck"
    node.full_count = 0
    assert gate.may_take(1 << 40, True, 6 * S)


# ---- overflow, quiet fetches, slow flushes -----------------------------------------------------------------------------------
def test_an_older_word_of_the_server_is_not_believed_and_limits_are_learned_downwards() -> None:
    overflow = Overflow()
    overflow.heard(1000, 0, 10)
    overflow.heard(5, 0, 9)
    assert overflow.backlog_bytes == 1000
    before = overflow.limit_bytes
    overflow.cut_at(1 << 40)
    assert overflow.limit_bytes == before
    overflow.cut_at(before)
    lower = overflow.limit_bytes
    assert lower < before
    overflow.cut_at(before)
    assert overflow.limit_bytes == lower
    overflow.cut_at(0)
    assert 0 < overflow.limit_bytes < lower


def quiet(count: int) -> tuple[QuietFetches, list[QuietFetch]]:
    fetches = QuietFetches(ReplicationConfig())
    made = [QuietFetch(type(KEY)("s", "u", number), 1, 1 + number) for number in range(count)]
    for fetch in made:
        assert fetches.add(fetch, "n2", 0)
    return fetches, made


def test_every_page_of_quiet_fetches_has_to_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.replica.quiet.MAX_PER_QUESTION", 2)
    fetches, made = quiet(40)
    questions, _ = fetches.due(fetches.interval_ns)
    assert len(questions) > 1
    fetches.answered(questions[0], ())
    again, ended = fetches.due(2 * fetches.interval_ns)
    assert not ended
    assert {f for q in questions[1:] for f in q.fetches} <= {f for q in again for f in q.fetches}, "lost pages are asked again"
    _, ended = fetches.due(3 * fetches.interval_ns)
    assert {f for e in ended for f in e.fetches} == set(made), "twice without an answer: the leader's node is silent"


def test_an_old_failure_ends_nothing() -> None:
    fetches, made = quiet(3)
    first, _ = fetches.due(fetches.interval_ns)
    for question in first:
        fetches.answered(question, ())
    fetches.due(2 * fetches.interval_ns)
    assert fetches.failed(first[0]) is None
    assert len(fetches) == 3
    second, _ = fetches.due(3 * fetches.interval_ns)
    ended = fetches.failed(second[0])
    assert ended is not None
    assert set(ended.fetches) == set(made)


def test_a_disk_is_slow_that_is_so_for_a_time_and_is_out_ever_longer_up_to_a_bound() -> None:
    config = ReplicationConfig()
    flushes = SlowFlushes(config)
    now = 0

    def fast() -> None:
        for other in "ab":
            for _ in range(5):
                flushes.flushed(other, MS, now)

    fast()
    out_ns = round(config.slow_flush_out_s * S)
    slow_ns = round(max(config.slow_flush_s, config.slow_flush_factor * 0.001) * S) + MS
    flushes.flushed("b", slow_ns, now)
    assert not flushes.is_slow("b", now), "one slow flush is no slow disk"
    longest = 0
    for _ in range(12):
        for _ in range(100):
            now += slow_ns
            flushes.flushed("b", slow_ns, now)
            if flushes.is_slow("b", now):
                break
        assert flushes.is_slow("b", now)
        length = flushes._records["b"].slow_until_ns - now
        assert longest <= length <= 16 * out_ns
        longest = length
        now = flushes._records["b"].slow_until_ns
    assert longest == 16 * out_ns


# ---- reads -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("uid", "refused"), [("u1", False), ("", False), ("u2", True)])
def test_a_read_is_of_the_stream_that_it_names(uid: str, refused: bool) -> None:
    from liftpy.replica.reads import Reads
    from liftpy.wire._pb import client_pb2 as pb

    source = SimpleNamespace(leads=True, may_serve=True, may_answer_latest=lambda now: True)
    reads: Any = Reads(type(KEY)("s", "u1", 0), "n1", source, SimpleNamespace(now_ns=lambda: 0), None)  # type: ignore[arg-type]
    assert (reads._why_not(pb.ReadRequest(streamUid=uid)) is not None) is refused


@pytest.mark.parametrize("end", [8, 9, 10])
@pytest.mark.parametrize(("flushed", "hw"), [(10, 9), (10, 7), (9, 8), (6, 5)])
def test_nothing_that_was_cut_is_flushed_or_committed(end: int, flushed: int, hw: int) -> None:
    log = LocalLog(0, 10, flushed, hw, EpochCache([(1, 0), (3, 6)]))
    log.cut(end)
    assert (log.log_end_offset, log.flushed_end_offset, log.high_watermark) == (end, min(flushed, end), min(hw, end - 1))
