"""Test the choice of the node to which a leader with a failing service transfers its leadership."""

from __future__ import annotations

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.services.sessions import MAX_REPORTED, REST_S, ServiceHealth, ServicesHealth

GRACE_S = 5.0
OTHERS = ("n2", "n3")
WELL, DEAD = ServiceHealth(40, True), ServiceHealth(-1, False)


def seconds(at_s: float) -> int:
    return round(at_s * NS_PER_S)


def after_a_while(
    own: dict[str, ServiceHealth], told: dict[str, dict[str, ServiceHealth]], until_s: float = GRACE_S
) -> tuple[str, str]:
    """Return the decision of a leader at ``until_s``, after one check and one report per second."""
    wellness = ServicesHealth(seconds(GRACE_S))
    found = ("", "")
    for at_s in range(round(until_s) + 1):
        for node, services in told.items():
            wellness.record_states(node, services, seconds(at_s))
        found = wellness.toward(own, OTHERS, seconds(at_s))
    return found


def test_service_health_with_an_ended_service_transfers_leadership_to_a_node_that_runs_the_service() -> None:
    toward, why = after_a_while({"bank": DEAD}, {"n2": {"bank": ServiceHealth(39, True)}, "n3": {"bank": WELL}})
    assert toward == "n3"
    assert "bank is healthy on n3" in why


def test_service_health_treats_a_service_that_never_registered_on_the_leader_as_ended() -> None:
    assert after_a_while({}, {"n2": {"bank": WELL}})[0] == "n2"


def test_service_health_of_a_healthy_or_restarting_service_transfers_no_leadership() -> None:
    told = {"n2": {"bank": WELL}}
    assert after_a_while({"bank": WELL}, told) == ("", "")
    assert after_a_while({"bank": DEAD}, told, GRACE_S - 1) == ("", "")
    wellness = ServicesHealth(seconds(GRACE_S))
    for at_s in range(20):  # it comes back every few seconds
        wellness.record_states("n2", {"bank": WELL}, seconds(at_s))
        assert wellness.toward({"bank": WELL if at_s % 4 == 0 else DEAD}, OTHERS, seconds(at_s)) == ("", "")


@pytest.mark.parametrize(("there", "toward"), [(16, ""), (17, ""), (18, "n2")])
def test_service_health_with_a_failing_record_transfers_leadership_only_to_a_node_past_the_record(
    there: int, toward: str
) -> None:
    assert after_a_while({"bank": ServiceHealth(17, False)}, {"n2": {"bank": ServiceHealth(there, True)}})[0] == toward


def test_service_health_transfers_no_leadership_to_a_node_where_another_service_fails() -> None:
    own = {"bank": DEAD, "echo": WELL}
    assert after_a_while(own, {"n2": {"bank": WELL}})[0] == ""
    assert after_a_while(own, {"n2": {"bank": WELL, "echo": ServiceHealth(9, False)}})[0] == ""
    assert after_a_while(own, {"n2": {"bank": WELL, "echo": WELL}})[0] == "n2"


def test_service_health_transfers_leadership_only_to_isr_members_with_recent_reports() -> None:
    assert after_a_while({"bank": DEAD}, {"n4": {"bank": WELL}})[0] == ""
    wellness = ServicesHealth(seconds(GRACE_S))
    wellness.record_states("n2", {"bank": WELL}, 0)
    wellness.unhealthy_services({"bank": DEAD}, 0)
    assert wellness.toward({"bank": DEAD}, OTHERS, seconds(GRACE_S)) == ("", "")
    assert not wellness.knows(seconds(GRACE_S))


def test_service_health_waits_after_a_leadership_transfer_before_the_next_transfer() -> None:
    wellness = ServicesHealth(seconds(GRACE_S))
    moved = []
    for at_s in range(round(GRACE_S + REST_S * 2) + 5):
        wellness.record_states("n2", {"bank": WELL}, seconds(at_s))
        if wellness.toward({"bank": DEAD}, OTHERS, seconds(at_s))[0]:
            moved.append(at_s)
    assert moved == [GRACE_S, GRACE_S + REST_S, GRACE_S + 2 * REST_S]


def test_service_health_keeps_a_bounded_number_of_reports() -> None:
    wellness = ServicesHealth(seconds(GRACE_S))
    for number in range(100):
        wellness.record_states(f"x{number}", {f"s{n}": WELL for n in range(100)}, 0)
    assert len(wellness.unhealthy_services({}, 0)) == 0
    assert len(wellness._failing_since_ns) == MAX_REPORTED == len(wellness._reports)


def test_service_health_report_expires_after_4_seconds() -> None:
    wellness = ServicesHealth(seconds(GRACE_S))
    assert not wellness.knows(0)
    wellness.record_states("n2", {}, 0)
    assert not wellness.knows(0), "it has no services"
    wellness.record_states("n2", {"bank": WELL}, 0)
    wellness.record_states("n3", {"bank": WELL}, seconds(1))
    assert wellness.knows(seconds(4))
    assert list(wellness._reports) == ["n2", "n3"]
    assert wellness.knows(seconds(4) + 1)
    assert list(wellness._reports) == ["n3"]
    assert not wellness.knows(seconds(5) + 1)
    wellness.record_states("n2", {"bank": WELL}, 0)
    assert wellness.unhealthy_services({}, seconds(9)) == [], "what nobody says any more is no service"
    assert wellness._failing_since_ns == {}


def test_service_health_reports_a_service_as_unhealthy_only_after_the_whole_grace_period() -> None:
    wellness = ServicesHealth(seconds(GRACE_S))
    assert wellness.unhealthy_services({"bank": DEAD}, seconds(1)) == []
    assert wellness.unhealthy_services({"bank": DEAD, "till": DEAD}, seconds(5.999)) == []
    assert wellness.unhealthy_services({"bank": DEAD, "till": DEAD}, seconds(6)) == ["bank"]
    assert wellness.unhealthy_services({"bank": WELL, "till": DEAD}, seconds(8)) == []
    assert wellness.unhealthy_services({"bank": DEAD, "till": DEAD}, seconds(11)) == ["till"], "the bank was well meanwhile"


def test_service_health_keeps_reports_of_at_most_16_nodes_with_16_services() -> None:
    wellness = ServicesHealth(seconds(GRACE_S))
    for number in range(20):
        wellness.record_states(f"n{number}", {f"s{name}": WELL for name in range(20)}, 0)
    assert len(wellness._reports) == 16 == MAX_REPORTED
    assert {len(report.services) for report in wellness._reports.values()} == {16}
    wellness.record_states("n3", {"s": WELL}, 1)
    assert list(wellness._reports["n3"].services) == ["s"], "one that is known says more"
