"""Test bounds of the high watermark, of fetches and of the ISR [D7, D8, D22]."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liftpy.config import CommitPolicy, ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication import isr
from liftpy.core.replication.follower import LogReset, Truncation, reconcile
from liftpy.core.replication.isr import (
    REACH_NS,
    FollowerProgress,
    IsrChange,
    isr_high_watermark,
    quorum_high_watermark,
)
from liftpy.core.replication.lease import Lease
from liftpy.core.replication.log_offsets import LogOffsets
from liftpy.core.replication.messages import EpochAnswer, FetchRefusal, RefusalReason
from liftpy.core.replication.role import Backoff
from tests.each import each
from tests.unit.replication.stepping import Stepped, leader_context, state


@pytest.mark.parametrize(
    ("replicas", "min_isr", "hw"), [("abc", 1, 7), ("abc", 2, 7), ("abc", 3, 5), ("abcd", 1, 5), ("abcde", 4, 3)]
)
def test_quorum_high_watermark_needs_a_majority_min_isr_replicas_and_a_record_of_the_current_epoch(
    replicas: str, min_isr: int, hw: int
) -> None:
    positions: dict[str, int | None] = dict(zip("abcde", (9, 7, 5, 3, 1), strict=True))
    for epoch_start in range(12):
        found = quorum_high_watermark(positions, replicas, len(replicas), min_isr, epoch_start, 0)
        assert found == (hw if hw >= epoch_start else 0), epoch_start


def test_fetch_of_a_fenced_incarnation_is_answered_but_does_not_move_the_high_watermark() -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    leader.told(state(leader_epoch=2, epoch=2), {"a": 1, "b": 1})  # c is fenced
    leader.publish(3)
    leader.fetch("b", 2)
    leader.fetch("c", 2, incarnation=1)
    assert leader.has(do.SendFetchResponse)
    assert leader.replica.high_watermark == -1
    leader.told(state(leader_epoch=2, epoch=3), {"a": 1, "b": 1, "c": 2})
    leader.fetch("c", 2, incarnation=1)
    assert leader.only(FetchRefusal).reason is RefusalReason.STALE_INCARNATION
    assert leader.replica.high_watermark == -1
    leader.fetch("c", 2, incarnation=2)
    assert leader.replica.high_watermark == 2


def test_fetch_without_an_incarnation_is_answered_but_does_not_move_the_high_watermark() -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    leader.publish(3)
    leader.fetch("b", 2)
    leader.fetch("c", 2, incarnation=0)
    assert leader.has(do.SendFetchResponse)
    assert leader.replica.high_watermark == -1


@pytest.mark.parametrize(("copy_epoch", "counts"), [(0, False), (3, False), (4, True)])
def test_learner_fetch_with_an_old_copy_epoch_does_not_change_its_position(copy_epoch: int, counts: bool) -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    held = state(leader_epoch=2, epoch=2)
    learning = replace(held, state=replace(held.state, target=("a", "b", "d"), joining="d", copy_epoch=4))
    leader.told(learning, dict.fromkeys("abcd", 1))
    leader.publish(3)
    leader.fetch("d", 1, copy_epoch=copy_epoch)
    assert leader.has(do.SendFetchResponse)
    handler = leader.role.handler  # type: ignore[attr-defined]
    assert handler.newest_offset_of("d") == (1 if counts else None)


@pytest.mark.parametrize(("target", "joins"), [("abcd", True), ("abc", False), ("", False)])
def test_leader_lets_a_caught_up_learner_join_the_isr_only_if_the_target_names_it(target: str, joins: bool) -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    held = state(leader_epoch=2, epoch=2)
    leader.told(
        replace(held, state=replace(held.state, target=tuple(target), joining="d", copy_epoch=2)), dict.fromkeys("abcd", 1)
    )
    leader.publish(1)
    for follower in "bcd":
        leader.fetch(follower, 0, copy_epoch=2 if follower == "d" else 0)
    assert [effect.isr for effect in leader.out if isinstance(effect, do.ProposeIsr)] == [frozenset("abcd")] * joins


@pytest.mark.parametrize(("asked", "given"), [(0, 1000), (999, 999), (1000, 1000), (1001, 1000)])
def test_fetch_response_size_is_the_smaller_of_the_requested_and_the_own_limit(asked: int, given: int) -> None:
    leader = Stepped("a", ReplicationConfig(replication_max_bytes=1_000_000)).leads(state(leader_epoch=2))
    leader.publish(3)
    leader.fetch("b", -1, max_bytes=asked * 1000)
    assert leader.only(do.SendFetchResponse).max_bytes == given * 1000


@pytest.mark.parametrize(("incarnation", "heard"), [(1, True), (0, False)])
def test_damage_report_of_a_live_follower_makes_the_leader_recheck_its_log(incarnation: int, heard: bool) -> None:
    leader = Stepped("a").leads(state(leader_epoch=2))
    leader.publish(3)
    leader.fetch("b", -1, bad_offset=1, incarnation=incarnation)
    assert leader.has(do.RecheckLog) is heard
    if heard:
        assert (leader.only(do.RecheckLog).offset, leader.only(do.RecheckLog).replica) == (1, "b")


# ---- vectors and reconciliation --------------------------------------------------------------------------------------------
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "high_watermark.json").read_text())["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=[v["name"] for v in VECTORS])
def test_isr_high_watermark_equals_the_published_test_vectors(vector: dict) -> None:
    isr = vector["isr"]
    assert isr_high_watermark(vector["newest"], isr, len(isr), vector["min_isr"], vector["hw_before"]) == vector["hw"]


def log(epochs: tuple[tuple[int, int], ...], end: int, start: int = 0) -> LogOffsets:
    opened = LogOffsets()
    opened.set_recovered(start, end, -1, epochs)
    return opened


def answer(epoch: int, last: int, start: int = 0) -> EpochAnswer:
    return EpochAnswer(request_id=1, leader_epoch=epoch, last_offset=last, current_epoch=9, log_start_offset=start)


def test_reconciliation_with_another_epoch_truncates_the_log_and_needs_a_second_epoch_query() -> None:
    own = log(((1, 0), (3, 10)), 14)
    assert reconcile(own, answer(2, 11)) == Truncation(10, agreed=False)
    own.truncate(10)
    assert reconcile(own, answer(1, 7)) == Truncation(8, agreed=True)


def test_reconciliation_with_the_same_epoch_completes_after_one_epoch_query() -> None:
    assert reconcile(log(((1, 0),), 14), answer(1, 19)) == Truncation(14, agreed=True)
    assert reconcile(log(((1, 0),), 14), answer(1, 9)) == Truncation(10, agreed=True)


def test_reconciliation_with_an_epoch_unknown_to_the_leader_resets_the_log() -> None:
    assert reconcile(log(((1, 0),), 14), answer(0, -1)) == LogReset(0)
    assert reconcile(log(((1, 0),), 14), answer(0, -1, start=40)) == LogReset(40)
    assert reconcile(log(((3, 5),), 14, start=5), answer(2, 4)) == LogReset(0)


MS = 1_000_000


@pytest.mark.parametrize(("behind", "lags"), [(9, False), (10, False), (11, True)])
def test_follower_above_the_record_or_time_lag_limit_is_lagging(behind: int, lags: bool) -> None:
    progress = FollowerProgress(caught_up_ns=0, position=99 - behind)
    assert isr.is_lagging(progress, 100, 5, 5, 10) is lags
    assert not isr.is_lagging(progress, 100, 5, 5, 0), "0: no bound"
    assert isr.is_lagging(FollowerProgress(caught_up_ns=0), 100, 6, 5, 0), "by time"
    assert not isr.is_lagging(FollowerProgress(caught_up_ns=0), 100, 5, 5, 10)


def wanted(followers: dict[str, FollowerProgress], min_isr: int) -> frozenset[str]:
    metadata = state(isr="abcd", replicas="abcd", min_isr=min_isr)
    shared = leader_context(metadata, dict.fromkeys("abcd", 1), end=6, hw=5, max_lag_s=100e-9)
    return isr.wanted_isr(shared, followers, 0, frozenset(), 10)


@each(("min_isr", "silent", "leave"), [(2, 1, True), (3, 1, True), (4, 1, False), (3, 2, False), (1, 3, False), (2, 2, True)])
@each("absences", [1, 2])
def test_silent_followers_leave_the_isr_together_down_to_min_isr(min_isr: int, silent: int, leave: bool, absences: int) -> None:
    followers = {node: FollowerProgress(caught_up_ns=9, incarnation=1, live=True, position=5) for node in "bcd"}
    for node in "bcd"[:silent]:
        followers[node].probed, followers[node].absences = True, absences
    staying = frozenset("abcd") - frozenset("bcd"[:silent]) if leave and absences == 2 else frozenset("abcd")
    assert wanted(followers, min_isr=min_isr) == staying


def test_isr_that_counts_as_unchanged_is_the_wanted_isr_and_no_member_has_lost_records() -> None:
    chance, found = random.Random(1), Counter[bool]()
    for _ in range(20_000):
        members = frozenset("a").union(node for node in "bcd" if chance.random() < 0.8)
        live = {node: 1 for node in "bcd" if chance.random() < 0.9}
        followers = {
            node: FollowerProgress(
                caught_up_ns=chance.choice((0, 5, 10)), incarnation=1, live=node in live, position=chance.choice((None, 4, 5, 5, 5)),
                was_caught_up=chance.random() < 0.5, probed=chance.random() < 0.1, absences=chance.choice((0, 2)),
            )
            for node in "bcd" if (node in members) == (chance.random() < 0.9)
        }  # fmt: skip
        policy, hw = chance.choice(tuple(CommitPolicy)), chance.choice((4, 5))
        metadata = state(isr="".join(sorted(members)), replicas="abcd", min_isr=chance.randint(1, 4), policy=policy)
        lag_s, lag_records = chance.choice((4e-9, 7e-9, 100e-9)), chance.choice((0, 1))
        shared = leader_context(metadata, live, end=6, hw=hw, max_lag_s=lag_s, max_lag_records=lag_records)
        unchanged = isr.is_unchanged(shared, followers, 10)
        found[unchanged] += 1
        if unchanged:
            assert isr.wanted_isr(shared, followers, chance.choice((0, 6)), frozenset(), 10) == members
            assert not isr.lossy_replicas(followers, members, hw)
    assert min(found[True], found[False]) > 1000


def test_isr_change_with_an_unknown_outcome_counts_the_members_of_all_attempts() -> None:
    change = IsrChange()
    change.record_attempt(frozenset("abc"))
    assert change.maximal(frozenset("ab")) == frozenset("abc")
    change.record_unknown_result(5)
    change.record_attempt(frozenset("ab"))
    change.record_rejection(6)
    assert change.maximal(frozenset("ab")) == frozenset("abc"), "the first one may still be made"
    change.record_new_epoch()
    assert change.maximal(frozenset("ab")) == frozenset("ab")
    change.record_attempt(frozenset("abc"))
    change.record_rejection(7)
    assert change.maximal(frozenset("ab")) == frozenset("ab")


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_isr_change_response_of_another_epoch_is_ignored(epoch: int) -> None:
    leader = Stepped("a").leads(state(leader_epoch=2, epoch=2, isr="ab"))
    role: Any = leader.role
    role.isr_change.record_attempt(frozenset("abc"))
    leader.step(ev.IsrChangeAnswered(epoch=epoch, accepted=False))
    assert role.isr_change.in_flight is (epoch != 2)


def fetched(*ids: int, now_ns: int = 0) -> FollowerProgress:
    progress = FollowerProgress(caught_up_ns=0)
    for number, request_id in enumerate(ids):
        progress.fetched(number, request_id, 100, now_ns)
    return progress


@pytest.mark.parametrize(
    ("request_id", "believed"), [(99, False), (100, False), (101, True), (100 + REACH_NS, True), (101 + REACH_NS, False)]
)
def test_follower_fetch_with_an_implausible_request_id_is_not_trusted(request_id: int, believed: bool) -> None:
    assert fetched(100).accepts_request_id(request_id, 0) is believed


def test_follower_fetch_or_wait_resets_its_absence_count() -> None:
    for sign in (lambda p: p.fetched(1, 5, 100, 7), lambda p: p.still_waits(7)):
        progress = FollowerProgress(caught_up_ns=0, absences=1, probed=True)
        sign(progress)
        assert (progress.absences, progress.probed) == (0, False)


def test_lease_end_counts_from_the_heartbeat_request_and_never_falls() -> None:
    lease = Lease(100)
    assert not lease.is_current(0)
    assert lease.extend(50, 0, 60)
    assert not lease.extend(20, 0, 70), "it had not ended"
    assert [lease.is_current(now) for now in (149, 150)] == [True, False]
    assert (lease.until_ns(10), lease.until_ns(150), lease.until_ns(200)) == (150, 150, 200)
    lease.extend(60, 30, 80)
    assert lease.until_ns(10) == 150, "an answer before has granted more"
    assert lease.extend(60, 300, 150), "it had ended"
    assert lease.until_ns(10) == 360, "as long as the answer says, whatever the own length is"


def test_backoff_delays_double_up_to_a_bound_with_jitter() -> None:
    flush_running = {seed: Backoff(100 * MS, 800 * MS, seed).next_ns() for seed in range(50)}
    assert len(set(flush_running.values())) > 40
    assert all(50 * MS <= wait <= 100 * MS for wait in flush_running.values())
    backoff = Backoff(100 * MS, 800 * MS, 1)
    for base in (100, 200, 400, 800, 800, 800):
        assert base * MS // 2 <= backoff.next_ns() <= base * MS
    backoff.reset()
    assert backoff.next_ns() <= 100 * MS
