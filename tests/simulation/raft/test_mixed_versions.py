"""Test controllers of two versions in one group, and controllers whose metadata differs (``mixed.py``)."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest

from liftpy.core.metadata.state_checksum import AppliedDigests
from tests.born import NEXT
from tests.long import sampled
from tests.simulation.raft.__main__ import run_seed
from tests.simulation.raft.mixed import DivergedRun, MixedRun, decides

_SHOWS, _FINALIZES, _MEETS = 15, 4, 11
"""Seeds: in which the unguarded change shows, in which the level is finalized, and in which an old version meets it. All follow the
number of levels, as the next one does."""
_TURNS = 44
_NO_MAJORITY = (25, 78, 84, 122)
"""In which no majority agrees until a member on probation counts; until members that were sent a snapshot have told a digest; in which
a member on probation agrees with one that counts, and the group would die of putting the third one aside; and in which one was sent a
snapshot, and agrees, in the session in which it had differed."""
_WITH_DEADLINES = (10_001, 10_007)
"""In which controllers of both versions tick at deadlines, and leaders of settled groups send append messages less often."""
_A_PERSON = (234, 238)
"""In which a second image turns while a member is behind: all three differ for good."""


@pytest.mark.timeout(120)
def test_controllers_of_mixed_versions_decide_the_same_at_each_feature_level() -> None:
    seen: Counter[str] = Counter()
    wanted = ("finalize: OK", "finalize: INVALID", "processes of the old version", "processes of the new version")
    born = (f"born at level {NEXT.level - 1}", f"born at level {NEXT.level}")
    wanted = (*wanted, *born, "old versions that met the level and ended")
    with decides(guarded=True):
        assert [run_seed(seed, seen, MixedRun) for seed in (_FINALIZES, _MEETS)] == [""] * 2
    assert [what for what in wanted if not seen[what]] == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", sampled(_WITH_DEADLINES, 1))
def test_controllers_of_mixed_versions_agree_when_ticks_have_deadlines(seed: int) -> None:
    seen: Counter[str] = Counter()
    with decides(guarded=True):
        assert run_seed(seed, seen, MixedRun) == ""
    wanted = ("processes of the old version", "processes of the new version", "ticks of a settled leader", "late ticks")
    assert [what for what in wanted if not seen[what]] == []


@pytest.mark.timeout(120)
def test_mixed_version_simulation_detects_a_decision_that_ignores_the_feature_level() -> None:
    with decides(guarded=False):
        assert "M5" in run_seed(_SHOWS, Counter(), MixedRun)


@pytest.mark.timeout(120)
@pytest.mark.long
def test_corrupted_controller_metadata_is_detected_and_replaced_by_that_of_other_controllers() -> None:
    seen: Counter[str] = Counter()
    assert run_seed(_TURNS, seen, DivergedRun) == ""
    assert seen["folders put aside"] == 1
    assert seen["controllers with another image"] >= 1
    with patch.object(AppliedDigests, "differs_from", lambda *_: False):
        assert run_seed(_TURNS, Counter(), DivergedRun), "and who does not look goes on with it"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", sampled(_NO_MAJORITY, 4))
def test_controllers_without_a_majority_of_equal_metadata_agree_again(seed: int) -> None:
    assert run_seed(seed, Counter(), DivergedRun) == ""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", sampled(_A_PERSON, 2))
def test_controllers_whose_metadata_all_differ_agree_again_after_an_operator_stops_one(seed: int) -> None:
    seen: Counter[str] = Counter()
    assert run_seed(seed, seen, DivergedRun) == ""
    assert sum(seen[who] for who in ("persons who stop the leader", "persons who stop another one")) in (1, 2)
