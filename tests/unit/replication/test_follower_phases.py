"""Test the table of phases of a follower: a change that is not in the table raises an error with the recent phases."""

from __future__ import annotations

import pytest

from liftpy.core.replication import events as ev
from liftpy.core.replication import phases
from liftpy.core.replication.phases import FOLLOWS_ON, FollowerPhase, RoleName
from liftpy.errors import InvariantError
from tests.unit.replication.stepping import Stepped


def test_follower_phase_table_allows_no_fetch_before_reconciliation() -> None:
    agreed = {FollowerPhase.FLUSHING, FollowerPhase.IDLE, FollowerPhase.QUIET, FollowerPhase.FETCH_BACKOFF}
    for phase in (FollowerPhase.RECONCILE_BACKOFF, FollowerPhase.RECONCILING, FollowerPhase.CUTTING):
        assert not FOLLOWS_ON[phase] & (agreed - {FollowerPhase.FLUSHING})
    for phase in agreed:
        assert FollowerPhase.CUTTING not in FOLLOWS_ON[phase], "a cut is never begun without the leader's word"


def idle_follower() -> Stepped:
    follower = Stepped("b").follows()
    follower.answered([], hw=-1)
    assert follower.replica.phase == FollowerPhase.IDLE
    assert follower.replica.role is RoleName.FOLLOWER
    return follower


def test_follower_invalid_phase_change_raises_with_the_recent_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(phases.FOLLOWS_ON, FollowerPhase.IDLE, frozenset({FollowerPhase.FLUSHING}))
    follower = idle_follower()
    with pytest.raises(InvariantError, match="from IDLE to FETCHING; its way: RECONCILING -> FETCHING -> IDLE"):
        follower.step(ev.NotificationReceived())
