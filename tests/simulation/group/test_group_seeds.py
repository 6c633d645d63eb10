"""A few histories of groups under faults; ``python -m tests.simulation.group`` runs as many as one likes."""

from __future__ import annotations

from collections import Counter

from tests.simulation.group.world import run


def test_members_under_faults() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 7):
        seen += run(seed)
    for what in (
        "fail-overs", "commands lost with a leader", "sessions that ended", "static members that came back", "fault: again",
        "fault: more", "answers GROUP_STALE", "answers GROUP_UNKNOWN_MEMBER", "records delivered again", "commits",
    ):  # fmt: skip
        assert seen[what], f"no history had: {what}"
