"""The short form of ``python -m tests.system.drill``: page, commands and events name the same cause of a fault on real processes."""

from __future__ import annotations

import pytest

from tests.system.drill.__main__ import run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    "faults",
    [
        ["killed-leader"],
        pytest.param(["damaged-segment", "lost-directory", "stopped-nats", "lost-majority"], marks=pytest.mark.long),
        pytest.param(["differing-service", "diverged-service"], marks=pytest.mark.long),
    ],
)
def test_cause_of_a_fault_is_the_same_in_dashboard_commands_and_events(faults: list[str]) -> None:
    seen = run(faults)
    assert [problem for one in seen for problem in one.wrong] == []
    assert len(seen) == len(faults)
