"""Checked beside ``checkers.py``: by whose clock a node of the simulated cluster calls records too old [D28]."""

from __future__ import annotations

from collections.abc import Sequence

from liftpy.clock_trust import BOUND_NS
from liftpy.invariants import check
from liftpy.testing.world import Machine, World


class ClockChecks:
    """Of a cluster. A clock is right that is off by half of the bound at most: right ones agree."""

    def __init__(self, cluster: World) -> None:
        self._cluster = cluster
        self._were_wrong: set[str] = set()
        """Nodes whose clock was not right at some time."""

    def _error_ns(self, machine: Machine) -> int:
        return abs(machine.clock.now_ns() + machine.wall_offset_ns - self._cluster.clock.now_ns)

    def told_ages(self, machine: Machine, told_ns: int, peers: Sequence[str]) -> None:
        """``machine`` tells ages by ``told_ns``, 0: it does not, while ``peers`` are those that it may ask [D28]."""
        for one in self._cluster.nodes.values():
            if self._error_ns(one) > BOUND_NS // 2:
                self._were_wrong.add(one.node_id)
        clocks = {machine.node_id, *peers}
        if told_ns and peers and 2 * len(clocks & self._were_wrong) < len(clocks):
            error_ns = self._error_ns(machine)
            check(
                error_ns <= BOUND_NS + BOUND_NS // 2, "D28", machine.node_id, "tells ages by a clock that is off by", error_ns
            )
