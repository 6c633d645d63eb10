"""Test the node's sessions with services: roles, and which service a promotion waits for."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.services.sessions import (
    MAX_SERVICES,
    ReplicaView,
    SendToService,
    ServiceHealth,
    ServiceSessions,
    ServicesReplayed,
)
from liftpy.core.services.snapshot import Difference
from liftpy.core.wire._pb import service_pb2 as pb

KEY = PartitionKey("s", "u1", 0)
FOLLOWS = ReplicaView(False, False, 1, 0, 9, 10)
CANDIDATE = replace(FOLLOWS, candidate=True, leader_epoch=2, high_watermark=9, log_end_offset=13)
LEADS = replace(CANDIDATE, candidate=False, leads=True)


def sessions(*caught_up: str) -> ServiceSessions:
    """Return the sessions of a replica. The named services have caught up before."""
    made = ServiceSessions(KEY, "n1", ack_ids=itertools.count(100), session_ns=3000, lease_ms=1500, patience_ns=2000)
    for name in caught_up:
        made.hello(hello(name, position=10), "_INBOX.a", FOLLOWS, 0)
    return made


def hello(name: str = "bank", instance: int = 1, position: int = 0, **fields: Any) -> pb.ServiceHello:
    return pb.ServiceHello(service=name, stream="s", partition=0, instance=instance, position=position, **fields)


def joined(effects: list[Any]) -> list[pb.JoinLog]:
    return [e.message for e in effects if isinstance(e, SendToService) and isinstance(e.message, pb.JoinLog)]


def refused(effects: list[Any]) -> str:
    (tell,) = effects
    return pb.ServiceRefusal.Reason.Name(tell.message.reason)


def acked(order: pb.JoinLog, position: int) -> pb.ServiceAck:
    return pb.ServiceAck(service=order.service, instance=order.instance, ackId=order.ackId, position=position)


def replays(effects: list[Any]) -> list[ServicesReplayed]:
    return [e for e in effects if isinstance(e, ServicesReplayed)]


def test_service_sessions_without_services_finish_a_promotion_immediately() -> None:
    assert sessions().replay(CANDIDATE, 0) == [ServicesReplayed(10, True)]


def test_service_sessions_promotion_waits_for_each_service() -> None:
    s = sessions("a", "b")
    for name in ("a", "b"):
        s.hello(hello(name), "_INBOX.a", FOLLOWS, 0)
    one, two = joined(s.replay(CANDIDATE, 0))
    assert not any(r.finished for r in replays(s.ack(acked(one, 10), CANDIDATE)))
    assert replays(s.ack(acked(two, 11), CANDIDATE)) == [ServicesReplayed(10, True)]


def test_service_sessions_ignore_an_ack_of_an_earlier_instruction_or_instance() -> None:
    s = sessions("bank")
    (old,) = joined(s.hello(hello(), "_INBOX.a", FOLLOWS, 0))
    (order,) = joined(s.replay(CANDIDATE, 0))
    assert s.ack(acked(old, 99), CANDIDATE) == []
    forged = acked(order, 99)
    forged.instance = 2
    assert s.ack(forged, CANDIDATE) == []


def test_service_sessions_do_not_wait_again_for_a_service_that_timed_out_a_promotion() -> None:
    s = sessions("bank")
    s.hello(hello(), "_INBOX.a", FOLLOWS, 0)
    assert not any(r.finished for r in replays(s.replay(CANDIDATE, 0)))
    s.role_changed(replace(FOLLOWS, leader_epoch=3))  # passed over
    assert s.report(9)[0]["excused"] is True
    s.hello(hello(position=5), "_INBOX.a", FOLLOWS, 1)
    assert replays(s.replay(replace(CANDIDATE, leader_epoch=4), 0)) == [ServicesReplayed(10, True)]
    s.role_changed(replace(FOLLOWS, leader_epoch=5))
    s.hello(hello(position=10), "_INBOX.a", FOLLOWS, 2)  # caught up
    assert not any(r.finished for r in replays(s.replay(replace(CANDIDATE, leader_epoch=6), 0)))


def test_service_sessions_service_that_ends_during_replay_fails_at_most_one_promotion() -> None:
    s = sessions("bank")
    s.hello(hello(), "_INBOX.a", FOLLOWS, 0)
    s.replay(CANDIDATE, 0)
    assert s.expire(2999) == []
    assert [one.service for one in s.expire(3000)] == ["bank"]
    assert s.stop_waiting_for_services(10_000) == []
    assert replays(s.hello(hello("other"), "_INBOX.b", CANDIDATE, 3001)) == []
    s.role_changed(replace(FOLLOWS, leader_epoch=3))
    s.hello(hello("other", leaving=True), "", FOLLOWS, 3002)
    assert replays(s.replay(replace(CANDIDATE, leader_epoch=4), 0)) == [ServicesReplayed(10, True)]


def test_service_sessions_slow_service_delays_a_promotion_by_one_timeout() -> None:
    s = sessions("bank")
    s.hello(hello(), "_INBOX.a", FOLLOWS, 0)
    assert s.waits_until_ns is None
    s.replay(CANDIDATE, 5000)
    assert s.waits_until_ns == 7000
    assert replays(s.hello(hello(position=4), "_INBOX.a", CANDIDATE, 6000)) == [ServicesReplayed(4, False)]
    assert s.stop_waiting_for_services(6999) == []
    assert s.stop_waiting_for_services(7000) == [ServicesReplayed(10, True)]
    assert (s.report(9)[0]["excused"], s.waits_until_ns, s.stop_waiting_for_services(9000)) == (True, None, [])
    s.role_changed(LEADS)
    assert s.replay(replace(CANDIDATE, leader_epoch=4), 0)[-1] == ServicesReplayed(10, True)


@pytest.mark.parametrize("other", ["well", "slow"])
def test_service_sessions_service_without_progress_fails_the_promotion(other: str) -> None:
    s = sessions("hangs", "other")
    for name in ("hangs", "other"):
        s.hello(hello(name, position=3), "_INBOX.a", FOLLOWS, 0)
    orders = joined(s.replay(CANDIDATE, 0))
    if other == "well":
        s.ack(acked(orders[1], 10), CANDIDATE)
    else:
        s.hello(hello("other", position=5), "_INBOX.a", CANDIDATE, 0)
    assert s.stop_waiting_for_services(2000) == []


def test_service_sessions_of_a_compacted_stream_refuse_services() -> None:
    s = ServiceSessions(KEY, "n1", ack_ids=itertools.count(1), session_ns=3000, lease_ms=1500, patience_ns=2000, compacted=True)
    assert refused(s.hello(hello(), "_INBOX.a", FOLLOWS, 0)) == "COMPACTED"
    assert s.report(9) == []


def test_service_sessions_promotion_does_not_wait_for_a_service_that_left() -> None:
    s = sessions("bank")
    s.hello(hello(), "_INBOX.a", FOLLOWS, 0)
    s.replay(CANDIDATE, 0)
    assert s.hello(hello(leaving=True), "", CANDIDATE, 1) == [ServicesReplayed(10, True)]
    assert len(s) == 0


def test_service_sessions_new_service_on_the_leader_replays_before_leading() -> None:
    s = sessions()
    (order,) = joined(s.hello(hello(), "_INBOX.a", LEADS, 0))
    assert (order.role, order.stopPosition) == (pb.SERVICE_FOLLOWER, 10)
    later = replace(LEADS, high_watermark=50)
    assert joined(s.hello(hello(position=5), "_INBOX.a", later, 0))[0].stopPosition == 10  # the stop does not run away
    (lead,) = joined(s.ack(acked(order, 10), later))
    assert lead.role == pb.SERVICE_LEADER


def test_service_sessions_of_a_leader_without_lease_send_follower_orders() -> None:
    s = sessions()
    (order,) = joined(s.hello(hello(), "_INBOX.a", LEADS, 0))
    s.ack(acked(order, 10), LEADS)
    (suspended,) = joined(s.role_changed(replace(LEADS, leads=False)))
    assert suspended.role == pb.SERVICE_FOLLOWER
    (lead,) = joined(s.role_changed(LEADS))
    assert lead.role == pb.SERVICE_LEADER


def test_service_sessions_new_instance_replaces_only_an_instance_without_heartbeats() -> None:
    """A forged hello must not end a service."""
    s = sessions()
    s.hello(hello(instance=1, first=True), "_INBOX.a", FOLLOWS, 0)
    assert refused(s.hello(hello(instance=2), "_INBOX.b", FOLLOWS, 5000)) == "REPLACED"
    for at_ns in range(0, 10_000, 500):
        (order,) = joined(s.hello(hello(instance=1), "_INBOX.a", FOLLOWS, at_ns))
        assert order.instance == 1
        assert refused(s.hello(hello(instance=2, first=True), "_INBOX.b", FOLLOWS, at_ns + 400)) == "TAKEN"
    assert refused(s.hello(hello(instance=2, first=True), "_INBOX.b", FOLLOWS, 9500 + 1499)) == "TAKEN"
    (order,) = joined(s.hello(hello(instance=2, first=True), "_INBOX.b", FOLLOWS, 9500 + 1500))
    assert order.instance == 2
    assert refused(s.hello(hello(instance=1), "_INBOX.a", FOLLOWS, 11_000)) == "REPLACED"
    assert refused(s.hello(hello(instance=1, first=True), "_INBOX.a", FOLLOWS, 11_000)) == "TAKEN"
    s.hello(hello(instance=1, leaving=True), "", FOLLOWS, 11_000)  # the old one's goodbye is not the new one's
    assert len(s) == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [(hello(streamUid="u2"), "WRONG_STREAM"), (hello("../x"), "MALFORMED"), (hello(""), "MALFORMED")],
)
def test_service_sessions_refused_hello_is_answered_with_a_reason(said: pb.ServiceHello, reason: str) -> None:
    assert refused(sessions().hello(said, "_INBOX.a", FOLLOWS, 0)) == reason


def test_service_sessions_above_max_services_are_refused() -> None:
    s = sessions()
    for number in range(MAX_SERVICES):
        assert joined(s.hello(hello(f"s{number}"), "_INBOX.a", FOLLOWS, 0))
    assert refused(s.hello(hello("more"), "_INBOX.a", FOLLOWS, 0)) == "TOO_MANY"


def test_service_sessions_promotion_does_not_wait_for_a_service_with_a_failing_record() -> None:
    s = sessions()
    s.hello(hello(position=3, failing=True), "_INBOX.a", FOLLOWS, 0)
    assert replays(s.replay(CANDIDATE, 0))[-1].finished
    again = sessions("bank")
    again.hello(hello(position=3), "_INBOX.a", FOLLOWS, 0)
    assert not any(r.finished for r in replays(again.replay(CANDIDATE, 0)))
    assert replays(again.hello(hello(position=4, failing=True), "_INBOX.a", CANDIDATE, 0))[-1].finished
    assert again.report(9)[0]["failing"]


def test_service_sessions_report_the_failing_record_of_an_ended_service() -> None:
    s = sessions()
    for name, failing in (("bank", True), ("echo", False), ("late", True)):
        s.hello(hello(name, position=7, failing=failing), "_INBOX.a", FOLLOWS, 0)
    s.hello(hello("bank", position=8, failing=True, leaving=True), "_INBOX.a", FOLLOWS, 1)
    s.hello(hello("echo", position=8, leaving=True), "_INBOX.a", FOLLOWS, 1)
    assert [one.service for one in s.expire(5000)] == ["late"]
    gone = {"bank": ServiceHealth(8, False), "echo": ServiceHealth(-1, False), "late": ServiceHealth(7, False)}
    assert s.states() == gone
    s.hello(hello("bank", 2, 8), "_INBOX.b", FOLLOWS, 6000)
    assert s.states() == gone | {"bank": ServiceHealth(8, True)}
    for number in range(MAX_SERVICES * 3):
        s.hello(hello(f"s{number}"), "_INBOX.a", FOLLOWS, 7000)
        s.hello(hello(f"s{number}", leaving=True), "_INBOX.a", FOLLOWS, 7000)
    assert len(s.states()) == MAX_SERVICES + 1


def test_service_sessions_retain_the_log_from_the_oldest_snapshot_position_of_all_services() -> None:
    s = sessions()
    assert s.retain_from() is None
    s.hello(hello("bank", position=50, snapshotPosition=40), "_INBOX.a", FOLLOWS, 0)
    s.hello(hello("echo", position=50, snapshotPosition=30), "_INBOX.a", FOLLOWS, 0)
    assert s.retain_from() == 30
    s.hello(hello("echo", position=50, snapshotPosition=30, leaving=True), "_INBOX.a", FOLLOWS, 0)
    assert s.retain_from() == 30
    s.hello(hello("echo", 2, 50, snapshotPosition=50), "_INBOX.a", FOLLOWS, 0)
    assert s.retain_from() == 40
    s.hello(hello("new", snapshotPosition=-7), "_INBOX.a", FOLLOWS, 0)
    assert s.retain_from() == 0


def test_service_sessions_snapshot_request_increments_the_request_number_in_the_order() -> None:
    s = sessions()
    assert s.snapshot_wanted("bank", FOLLOWS) == []
    (first,) = joined(s.hello(hello(), "_INBOX.a", FOLLOWS, 0))
    (order,) = joined(s.snapshot_wanted("bank", FOLLOWS))
    assert (first.snapshotRequest, order.snapshotRequest, order.ackId) == (0, 1, first.ackId)
    (again,) = joined(s.hello(hello(), "_INBOX.a", FOLLOWS, 0))
    assert again.snapshotRequest == 1  # a lost frame costs one heartbeat


def test_service_sessions_diverged_service_is_refused_with_the_diverged_position() -> None:
    s = sessions()
    s.hello(hello(instance=7), "_INBOX.a", FOLLOWS, 0)
    assert s.differs("bank", Difference(40, ("n2",), False)) == []
    [row] = s.report(9)
    assert (row["differs"], row["problem"]) == (
        True, "the state at position 40 differs from the state on n2: the code is not deterministic",
    )  # fmt: skip
    (tell,) = s.differs("bank", Difference(40, ("n2", "n3"), True))
    wanted = pb.ServiceRefusal(
        reason=pb.ServiceRefusal.DIVERGED, position=40, node="n1", service="bank", stream="s", partition=0, instance=7,
        detail="the state at position 40 differs from the state on n2, n3, and this instance is in the minority",
    )  # fmt: skip
    assert tell == SendToService("_INBOX.a", wanted)
    assert (s.differs("bank", None), s.report(9)[0]["problem"], s.differs("nobody", None)) == ([], "", [])


# ---- at its bounds -------------------------------------------------------------------------------------------------------
def test_service_sessions_report_replay_progress_once_per_new_position() -> None:
    s = sessions("a", "b")
    for name in ("a", "b"):
        s.hello(hello(name), "_INBOX.a", FOLLOWS, 0)
    assert replays(s.replay(CANDIDATE, 0)) == [ServicesReplayed(0, False)]
    steps = [("a", 4), ("b", 4), ("b", 4), ("b", 3), ("a", 12), ("b", 12), ("b", 12)]
    heard = [replays(s.hello(hello(name, position=at), "_INBOX.a", CANDIDATE, 1)) for name, at in steps]
    assert heard == [[], [ServicesReplayed(4, False)], [], [], [], [ServicesReplayed(10, False)], []]


def test_service_sessions_keep_a_bounded_number_of_ended_services() -> None:
    s = sessions()
    for number in range(MAX_SERVICES + 2):
        s.hello(hello(f"s{number}"), "_INBOX.a", FOLLOWS, number)
        assert [one.service for one in s.expire(number + 3000)] == [f"s{number}"]
    assert [g["service"] for g in s.missing_services(9, 0)] == [f"s{number}" for number in range(2, MAX_SERVICES + 2)]
    assert s.missing_services(9, 0)[-1]["problem"] == "nothing is heard from it"


def test_service_sessions_promotion_does_not_wait_for_a_service_that_never_caught_up() -> None:
    s = sessions()
    s.hello(hello("new", position=3), "_INBOX.a", FOLLOWS, 0)
    assert replays(s.replay(CANDIDATE, 0)) == [ServicesReplayed(10, True)]


def test_service_sessions_services_with_changing_names_fail_at_most_one_promotion() -> None:
    """Each new name failed one more promotion, so the role `service` could keep every partition without a leader [L12]."""
    s = sessions()
    failed = 0
    for turn in range(2, 12):
        now_ns = turn * 10_000
        s.expire(now_ns)
        s.hello(hello(f"name{turn}", position=10), "_INBOX.a", FOLLOWS, now_ns)
        candidate = replace(CANDIDATE, leader_epoch=turn)
        effects = s.replay(candidate, now_ns)
        due_ns = s.waits_until_ns
        if due_ns is not None:
            effects += s.stop_waiting_for_services(due_ns)
        if any(r.finished for r in replays(effects)):
            s.role_changed(replace(LEADS, leader_epoch=turn))
        else:
            failed += 1
        s.role_changed(replace(FOLLOWS, leader_epoch=turn))
    assert failed == 1


def test_service_sessions_finish_a_repeated_promotion_despite_a_slow_service() -> None:
    s = sessions("hangs")
    s.hello(hello("hangs", position=3), "_INBOX.a", FOLLOWS, 0)
    assert not any(r.finished for r in replays(s.replay(replace(CANDIDATE, is_retry=True), 0)))
    due_ns = s.waits_until_ns
    assert due_ns is not None
    assert due_ns < 2000, "before the candidate's own time-out"
    assert replays(s.stop_waiting_for_services(due_ns)) == [ServicesReplayed(10, True)]


def test_service_sessions_report_an_ended_service_until_its_restart_or_expiry() -> None:
    s = ServiceSessions(
        KEY, "n1", ack_ids=itertools.count(0), session_ns=3000, lease_ms=1000, patience_ns=2000, shown_ns=10_000
    )
    for name in ("stopped", "failed", "diverged", "killed"):
        s.hello(hello(name), f"_INBOX.{name}", FOLLOWS, 0)
    goodbyes = {"stopped": pb.ServiceHello.STOPPED, "failed": pb.ServiceHello.FAILED, "diverged": pb.ServiceHello.DIVERGED}
    for name, ending in goodbyes.items():
        s.hello(hello(name, leaving=True, ending=ending, problem=f"why {name}"), f"_INBOX.{name}", FOLLOWS, 0)
    s.expire(3000)
    assert list(map(str, s.recently_ended(3000))) == [
        "killed silent: nothing is heard from it",
        "diverged diverged: why diverged",
        "failed failed: why failed",
    ]
    s.hello(hello("failed", instance=9), "_INBOX.failed", FOLLOWS, 3000)
    assert [one.service for one in s.recently_ended(9_999)] == ["killed", "diverged"], "the one that is back has not ended"
    assert [one.service for one in s.recently_ended(10_000)] == ["killed"], "the older one has been shown for long enough"


def test_service_sessions_ignore_a_replay_ack_of_an_earlier_promotion() -> None:
    s = sessions()
    s.hello(hello(), "_INBOX.a", FOLLOWS, 0)
    (order,) = joined(s.replay(CANDIDATE, 0))
    later = replace(CANDIDATE, leader_epoch=5, high_watermark=11)
    s.role_changed(replace(FOLLOWS, leader_epoch=4))
    s.hello(hello(position=12), "_INBOX.a", replace(FOLLOWS, leader_epoch=4, high_watermark=11), 1)  # excused no more
    effects = s.replay(later, 2)
    (again,) = joined(effects)
    assert (again.stopPosition, again.leaderEpoch, again.role) == (12, 5, pb.SERVICE_FOLLOWER)
    assert not any(r.finished for r in replays(effects))
    assert s.ack(acked(order, 12), later) == [], "the answer to the order of the promotion before"
    (early,) = [effect for effect in s.ack(acked(again, 11), later) if isinstance(effect, ServicesReplayed)] or [None]
    assert early is None or not early.finished, "one record before the stop"
    assert replays(s.ack(acked(again, 12), later)) == [ServicesReplayed(12, True)]
    (lead,) = joined(s.role_changed(replace(LEADS, leader_epoch=5)))
    assert lead.role == pb.SERVICE_LEADER
