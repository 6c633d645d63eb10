"""Decides which node's services are well, and where the leadership moves if those of the leader are not. Pure.

Goal: where a service is dead or fails beside the partition's leader while it is well beside another replica, its outputs go on.
Constraint: a leadership that is moved costs its publishers a moment, and what is wrong here may be wrong there: the same record, the
same code, the same operator who stops them all.

Algorithm: replicas tell each other once a second which services are registered beside them, where they stand, and which fail. A
service that was registered here, or is elsewhere, is ill here while it is not registered, or fails. One that is ill for
``service_grace_s`` (a process is started again in less) makes the leader hand over to a member of the ISR beside which it is well, and
past the record at which it fails here, so that poison never moves a leadership twice; and beside which no service is ill that is well
here. Never sooner than ``REST_S`` after the last time.

Worked example: all three nodes stop at record 17, where the leader's service fails. The others stand at 17, not past it: nothing is
moved. The code of the leader's node was old, and the others are at 40: the leadership goes to one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from liftpy.config import NS_PER_S

REPORT_EVERY_S = 1.0
QUIET_ROUNDS = 2
"""While everybody is well and nothing is new, so many times as long: one that is lost is made up for before it is believed no more."""
REST_S = 60.0
_BELIEVED_S = 4.0
"""How long a report counts."""
MAX_REPORTED = 16
"""Services in one report, and nodes that are remembered."""


@dataclass(frozen=True, slots=True)
class Wellbeing:
    """State of one service on one node. ``position``: next offset. ``well``: it is registered and does not fail."""

    position: int
    well: bool


@dataclass(slots=True)
class _NodeReport:
    services: Mapping[str, Wellbeing]
    heard_ns: int


@dataclass(slots=True)
class Wellness:
    """What one replica knows about the services on all nodes.

    Times are monotonic ns. ``grace_ns``: allowed time of a failure.
    """

    grace_ns: int
    _reports: dict[str, _NodeReport] = field(default_factory=dict)
    _ill_since_ns: dict[str, int] = field(default_factory=dict)
    _stays_until_ns: int = 0

    def heard(self, node: str, services: Mapping[str, Wellbeing], now_ns: int) -> None:
        """Note the state of the services on ``node``."""
        self._forget_old(now_ns)
        if node in self._reports or len(self._reports) < MAX_REPORTED:
            self._reports[node] = _NodeReport(dict(list(services.items())[:MAX_REPORTED]), now_ns)

    def knows(self, now_ns: int) -> bool:
        """Return whether other nodes have services."""
        self._forget_old(now_ns)
        return any(report.services for report in self._reports.values())

    @property
    def anybody_is_ill(self) -> bool:
        """Whether a service was failing at the last ``look``."""
        return bool(self._ill_since_ns)

    def _forget_old(self, now_ns: int) -> None:
        for node in [n for n, report in self._reports.items() if now_ns - report.heard_ns > _BELIEVED_S * NS_PER_S]:
            del self._reports[node]

    def look(self, own: Mapping[str, Wellbeing], now_ns: int) -> list[str]:
        """Return the services that have failed here for too long.

        ``own``: all services that were ever registered here, with their last positions.

        Call it regularly, also beside a follower: when it is promoted, what is ill is known.
        """
        self._forget_old(now_ns)
        elsewhere = {name for report in self._reports.values() for name in report.services}
        ill = [name for name in sorted(elsewhere | own.keys()) if name not in own or not own[name].well]
        self._ill_since_ns = {name: self._ill_since_ns.get(name, now_ns) for name in ill}
        return [name for name in ill if now_ns - self._ill_since_ns[name] >= self.grace_ns]

    def toward(self, own: Mapping[str, Wellbeing], members: Iterable[str], now_ns: int) -> tuple[str, str]:
        """Return the node that should get the leadership and why, ('', '') for none. ``members``: ISR without this node."""
        ill = self.look(own, now_ns)
        if not ill or now_ns < self._stays_until_ns:
            return "", ""
        best: tuple[int, int, str] = (0, 0, "")
        why = ""
        for node in sorted(members):
            there = self._reports[node].services if node in self._reports else {}
            helped = [name for name in ill if name in there and there[name].well and _is_past(there[name], own.get(name))]
            hurt = [name for name, service in own.items() if service.well and not (name in there and there[name].well)]
            rank = (len(helped), sum(there[name].position for name in helped), node)
            if helped and not hurt and rank[:2] > best[:2]:
                best, why = rank, f"the service {', '.join(helped)} is well beside {node}, and not here"
        if best[2]:
            self._stays_until_ns = now_ns + round(REST_S * NS_PER_S)
        return best[2], why


def _is_past(there: Wellbeing, here: Wellbeing | None) -> bool:
    """Return whether the service there has passed the record that stopped it here.

    ``position``: record of a failing service, -1 for a missing one.
    """
    return here is None or there.position > here.position
