"""Test the high watermark under both commit policies, and which fetches and damage reports count [D7, D8, D22]."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication.events import EpochQueryAnswered, RefusalReason
from liftpy.core.replication.follower import LogReset, Truncation, reconcile
from liftpy.core.replication.isr import (
    isr_high_watermark,
    quorum_high_watermark,
)
from liftpy.core.replication.log_offsets import LogOffsets
from tests.unit.replication.stepping import Stepped, state


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
    assert leader.only(do.SendFetchRefusal).reason is RefusalReason.STALE_INCARNATION
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
    handler = leader.replica._role.handler  # type: ignore[attr-defined]
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


def answer(epoch: int, last: int, start: int = 0) -> EpochQueryAnswered:
    return EpochQueryAnswered(request_id=1, leader_epoch=epoch, last_offset=last, current_epoch=9, log_start_offset=start)


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
