"""Test bounds, health and ends of the services at a node. Their roles and the promotions that wait: ``test_session_scripts.py``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

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


def sessions(**options: int) -> ServiceSessions:
    return ServiceSessions(KEY, "n1", ack_ids=itertools.count(), session_ns=3000, lease_ms=1500, patience_ns=2000, **options)


def hello(name: str = "bank", instance: int = 1, position: int = 0, **fields: Any) -> pb.ServiceHello:
    return pb.ServiceHello(service=name, stream="s", partition=0, instance=instance, position=position, **fields)


def test_service_sessions_above_max_services_are_refused() -> None:
    s = sessions()
    for number in range(MAX_SERVICES):
        s.hello(hello(f"s{number}"), "_INBOX.a", FOLLOWS, 0)
    assert len(s) == MAX_SERVICES
    (refused,) = s.hello(hello("more"), "_INBOX.a", FOLLOWS, 0)
    assert isinstance(refused, SendToService)
    assert refused.message.reason == pb.ServiceRefusal.TOO_MANY  # type: ignore[union-attr]


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


def test_service_sessions_keep_a_bounded_number_of_ended_services() -> None:
    s = sessions()
    for number in range(MAX_SERVICES + 2):
        s.hello(hello(f"s{number}"), "_INBOX.a", FOLLOWS, number)
        assert [one.service for one in s.expire(number + 3000)] == [f"s{number}"]
    assert [g["service"] for g in s.missing_services(9, 0)] == [f"s{number}" for number in range(2, MAX_SERVICES + 2)]
    assert s.missing_services(9, 0)[-1]["problem"] == "nothing is heard from it"


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
        if any(isinstance(effect, ServicesReplayed) and effect.finished for effect in effects):
            s.role_changed(replace(LEADS, leader_epoch=turn))
        else:
            failed += 1
        s.role_changed(replace(FOLLOWS, leader_epoch=turn))
    assert failed == 1


def test_service_sessions_report_an_ended_service_until_its_restart_or_expiry() -> None:
    s = sessions(shown_ns=10_000)
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
