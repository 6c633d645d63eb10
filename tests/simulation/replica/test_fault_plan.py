"""Test the fault plan of a seed: each kind of fault draws from its own generator, so a new kind does not change old seeds."""

from __future__ import annotations

import pytest

from tests.simulation.replica import plan
from tests.simulation.replica.plan import PROFILES, Fault, draw_plan

SEEDS = range(1, 15)
NEW = "meteor"


@pytest.mark.parametrize("profile", [name for name in PROFILES if not name.startswith("lasting")])
def test_fault_plan_with_an_added_fault_kind_does_not_change_the_other_faults(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {seed: draw_plan(seed, profile) for seed in SEEDS}
    monkeypatch.setitem(plan.PROFILES, profile, (NEW, *PROFILES[profile]))
    struck = 0
    for seed in SEEDS:
        after = draw_plan(seed, profile)
        others = tuple(fault for fault in after.faults if fault.kind != NEW)
        struck += len(others) < len(after.faults)
        assert others == before[seed].faults
        assert str(after.config) == str(before[seed].config)
    assert struck > len(SEEDS) / 5


@pytest.mark.parametrize("profile", ["lasting", "lasting-many", "lasting-leaders"])
def test_fault_plan_with_an_added_lasting_kind_does_not_change_fault_times(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes turns of others, and changes nothing else."""
    before = {seed: draw_plan(seed, profile).faults for seed in SEEDS}
    monkeypatch.setitem(plan.PROFILES, profile, (NEW, *PROFILES[profile]))
    struck = 0
    for seed in SEEDS:
        after = draw_plan(seed, profile).faults
        assert len(after) == len(before[seed])
        struck += NEW in {fault.kind for fault in after}
        for old, new in zip(before[seed], after, strict=True):
            assert (new.at_ns, new.node, new.other, new.for_ns) == (old.at_ns, old.node, old.other, old.for_ns)
            assert new.kind in (NEW, old.kind)
    assert struck > len(SEEDS) / 2


def test_fault_plan_without_one_kind_does_not_change_the_other_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {seed: draw_plan(seed, "").faults for seed in SEEDS}
    monkeypatch.setitem(plan.PROFILES, "", tuple(kind for kind in PROFILES[""] if kind != "pause"))
    for seed in SEEDS:
        assert draw_plan(seed, "").faults == tuple(fault for fault in before[seed] if fault.kind != "pause")


def test_fault_plans_of_many_seeds_contain_every_fault_kind() -> None:
    drawn: dict[str, set[int]] = {}
    for seed in range(1, 101):
        for fault in draw_plan(seed, "").faults:
            drawn.setdefault(fault.kind, set()).add(seed)
    assert {kind: len(seeds) for kind, seeds in drawn.items() if len(seeds) < 10} == {}
    assert set(PROFILES[""]) <= set(drawn)


def test_fault_plan_is_in_time_order() -> None:
    def times(faults: tuple[Fault, ...]) -> list[int]:
        return [fault.at_ns for fault in faults]

    for seed in SEEDS:
        faults = draw_plan(seed).faults
        assert times(faults) == sorted(times(faults))
