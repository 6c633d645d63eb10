"""``python -m tests.system.alerts``: how it judges, and what becomes of the rules' times. The faults themselves need a Prometheus."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.system.alerts import __main__ as command
from tests.system.alerts.__main__ import Rounds, faster


class Firing:
    """Alerts that fire, look by look; the last ones stay until somebody puts it right."""

    def __init__(self, *looks: set[str]) -> None:
        self._looks = list(looks)
        self.well = True
        self.stays: set[str] = set()

    def firing(self) -> set[str]:
        if self.well:
            return self.stays
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    def follow(self, _: object) -> None:
        pass


def judged(fault: str, prometheus: Firing) -> list[str]:
    rounds = Rounds(SimpleNamespace(nodes={}), prometheus)  # type: ignore[arg-type]

    def turn(well: bool) -> None:
        prometheus.well = well

    rounds.strike(fault, lambda: turn(False), lambda: turn(True))
    return rounds.wrong


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(command, "_PATIENCE_S", 0.05)


def test_alert_verdict_reports_a_missing_and_an_unexpected_alert() -> None:
    assert judged("kill", Firing(set(), {"NodeDown"}, {"NodeDown", "UnderReplicated", "FailoverSlow"})) == []
    assert judged("kill", Firing({"NodeDown"})) == ["kill: UnderReplicated did not fire"]
    assert judged("cut", Firing({"NatsLost", "UnderReplicated", "NodeDown"})) == ["cut: NodeDown fired"]
    assert judged("cut", Firing({"UnderReplicated"})) == ["cut: NatsLost did not fire"]
    assert judged("disk full", Firing(set())) == ["disk full: DiskFull did not fire"]


def test_alert_verdict_reports_an_alert_that_still_fires_after_the_fault() -> None:
    prometheus = Firing({"NatsLost", "UnderReplicated"})
    prometheus.stays = {"UnderReplicated"}
    assert judged("cut", prometheus) == ["cut: not quiet again, ['UnderReplicated'] fire"]


def test_alert_rules_for_tests_change_only_their_times() -> None:
    assert faster("for: 5m\nfor: 0s\nfor: 24h\ninterval: 15s\nexpr: rate(x_5m[10m]) > 0.25 or y[30s] * 60 > 5", 20) == (
        "for: 15s\nfor: 0s\nfor: 4320s\ninterval: 1s\nexpr: rate(x_5m[30s]) > 0.25 or y[2s] * 60 > 5"
    )
