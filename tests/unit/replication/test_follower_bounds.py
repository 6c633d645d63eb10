"""Test which messages a follower and a candidate accept or ignore, at each limit and one beyond [D15, D19]."""

from __future__ import annotations

import pytest

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import RefusalReason
from liftpy.core.replication.follower import FetchAssembly
from liftpy.core.wire.chunking import Piece
from tests.each import each
from tests.unit.replication.stepping import S, Stepped, state


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


@each("reason", list(RefusalReason))
def test_follower_ignores_a_fetch_rejection_of_another_epoch(reason: RefusalReason) -> None:
    follower = following()
    request = follower.only(do.SendFetch).request_id
    follower.step(ev.FetchRefused(request_id=request, reason=reason, leader_epoch=7, log_start_offset=100))
    assert not any(isinstance(effect, do.TruncateLog | do.ResetLog) for effect in follower.out)
    assert follower.replica.log.log_end_offset == 5
    waits_on = reason is RefusalReason.UNKNOWN
    assert follower.replica.phase == ("FOLLOWER_FETCH" if waits_on else "FOLLOWER_FETCH_BACKOFF")


def test_follower_accepts_the_response_to_a_fetch_after_rejections_of_its_repetitions() -> None:
    follower = following()
    request = follower.only(do.SendFetch).request_id
    for _ in range(3):
        follower.step(ev.FetchRefused(request_id=request, reason=RefusalReason.UNKNOWN, leader_epoch=1, log_start_offset=0))
    follower.answered([(5, 5, 1)], 4, request)
    assert follower.only(do.AppendFetched).last_offset == 5


@pytest.mark.parametrize(("log_start", "afresh"), [(3, False), (4, False), (5, True), (9, True)])
def test_follower_resets_its_log_only_if_the_leader_log_starts_after_its_end(log_start: int, afresh: bool) -> None:
    follower = following(5)
    follower.step(
        ev.FetchRefused(
            request_id=follower.only(do.SendFetch).request_id,
            reason=RefusalReason.BEFORE_LOG_START,
            leader_epoch=1,
            log_start_offset=log_start,
        )
    )
    assert follower.has(do.ResetLog) is afresh


@pytest.mark.parametrize(("sender", "epoch", "heard"), [("a", 1, True), ("c", 1, False), ("a", 2, False)])
def test_follower_ignores_a_notice_of_another_sender_or_leader_epoch(sender: str, epoch: int, heard: bool) -> None:
    follower = following()
    follower.now_ns += 3 * S
    notice = ev.NoticeReceived(
        leader=sender, leader_epoch=epoch, epoch=1, epoch_start_offset=0, high_watermark=4, log_start_offset=0
    )  # fmt: skip
    follower.step(notice)
    assert (follower.replica._role._leader_contact_ns == follower.now_ns) is heard  # type: ignore[attr-defined]


@pytest.mark.parametrize(("offset", "named"), [(0, 5), (4, 5), (5, 5), (7, 7)])
def test_follower_reports_damage_only_at_an_offset_that_it_lacks(offset: int, named: int) -> None:
    follower = following(5)
    follower.step(ev.RequestFailed(request_id=follower.only(do.SendFetch).request_id, reason="crc", bad_offset=offset))
    follower.fire(ev.Deadline.FETCH)
    assert follower.only(do.SendFetch).bad_offset == named


def test_fetch_assembly_restarts_at_another_leader_epoch_offset_or_after_damage() -> None:
    assembly = FetchAssembly()

    def asks(epoch: int, offset: int, bad: int | None = None) -> int:
        return assembly.asks(
            do.SendFetch(
                request_id=1, leader="a", offset=offset, offset_epoch=0, leader_epoch=epoch, max_bytes=100, bad_offset=bad
            )
        ).position

    assert asks(1, 4) == 0
    assembly.add_piece(Piece(1, 6, 0, memoryview(b"abc")))
    assert asks(1, 4) == 3, "it goes on"
    assert asks(2, 4) == 0, "another leader's batch may be another"
    for other in ((2, 5, None), (2, 5, 5)):
        assembly.add_piece(Piece(1, 6, 0, memoryview(b"abc")))
        assert asks(*other) == 0


def candidate(epoch: int = 3) -> Stepped:
    made = Stepped("b").opened(4, 3, ((1, 0),))
    made.told(state(leader="", candidate="b", status=PartitionStatus.CANDIDATE_FOUND, leader_epoch=2, epoch=epoch))
    return made


def test_candidate_repeats_its_promotion_report_for_each_new_epoch_and_periodically() -> None:
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


def test_persisted_leader_epochs_never_decrease() -> None:
    follower = Stepped("b").opened()
    follower.told(state())
    follower.step(ev.LeaderEpochPersisted(leader_epoch=7))
    follower.step(ev.LeaderEpochPersisted(leader_epoch=5))
    follower.told(state(leader="c", leader_epoch=6, epoch=9))
    assert follower.replica.state.leader_epoch == 1, "it has promised to follow nobody below 7"
    follower.told(state(leader="c", leader_epoch=7, epoch=10))
    assert follower.replica.state.leader_epoch == 7
