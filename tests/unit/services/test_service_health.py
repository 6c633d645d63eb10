"""Test the choice of the node to which a leader with a failing service transfers its leadership."""

from __future__ import annotations

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.services.sessions import REST_S, ServiceHealth, ServicesHealth

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
