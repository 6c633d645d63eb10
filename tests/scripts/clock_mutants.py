"""Mutants for scripts: bugs of who is believed about the time."""

from __future__ import annotations

from collections.abc import Sequence

from liftpy.core.base.clock_trust import ClockTrust
from tests.simulation.mutants.bug import Mutant, Patches, method


def ages_by_any_clock() -> Patches:
    return [method(ClockTrust, "time_of_age_ns", lambda self, wall_ns, now_ns, nodes: wall_ns)]


def nobody_asked_is_right() -> Patches:
    real = ClockTrust._compare

    def compared(self: ClockTrust, offset_ns: int, offsets: list[int], others: int) -> tuple[str, bool]:
        return real(self, offset_ns, offsets, others) if offsets else ("", False)

    return [method(ClockTrust, "_compare", compared)]


def jumped_is_right() -> Patches:
    return [method(ClockTrust, "_clock_jump_text", lambda self, offset_ns: "")]


def doubted_stamps() -> Patches:
    return [method(ClockTrust, "stamp_ns", lambda self, wall_ns, now_ns: wall_ns)]


MUTANTS: Sequence[Mutant] = (
    Mutant("a doubted clock stamps records", "D28", doubted_stamps),
    Mutant("ages are told by any clock", "D28", ages_by_any_clock),
    Mutant("a clock that nobody was asked about is right", "D28", nobody_asked_is_right),
    Mutant("a clock that jumped is right", "D28", jumped_is_right),
)
