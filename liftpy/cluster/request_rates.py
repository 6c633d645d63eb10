"""How many requests of operators the metadata leader takes a second: of each principal, and in all. Pure.

Goal: who asks for too much is told so, and when to come again, and nobody else waits for it. Constraint: what is kept of principals is
bounded: without rights in NATS anybody may call himself anything.

Algorithm: an allowance for each principal and one for all of them, each with what was not used before, up to a bound. A request that
its principal has no room for takes nothing of the others'. Of more than ``MAX_PRINCIPALS`` those go that asked last longest ago; they
come back with a full allowance, and meet the one for all.

Worked example: alice sends 400 at once: 250 are taken, the 251st is told to come again in 20 ms. Bob's next one is taken.
"""

from __future__ import annotations

from liftpy.config import NS_PER_S

PER_PRINCIPAL, PRINCIPAL_AT_ONCE = 50, 250
"""A second, and at once."""
IN_ALL, ALL_AT_ONCE = 200, 1000
MAX_PRINCIPALS = 1000


class Allowance:
    """So many a second, and what was not used before, up to ``at_once``."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_ns = per_s / NS_PER_S
        self._at_once = self._left = float(at_once)
        self._seen_ns = 0

    def take(self, now_ns: int) -> bool:
        """Whether one more may be."""
        self._look(now_ns)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def wait_ms(self, now_ns: int) -> int:
        """Until one more may be; 0: it may."""
        self._look(now_ns)
        return 0 if self._left >= 1 else int((1 - self._left) / self._per_ns / 1_000_000) + 1

    def _look(self, now_ns: int) -> None:
        self._left = min(self._at_once, self._left + max(0, now_ns - self._seen_ns) * self._per_ns)
        self._seen_ns = now_ns


class RequestRates:
    """Of one metadata leader. ``now_ns``: monotonic."""

    def __init__(self) -> None:
        self._in_all = Allowance(IN_ALL, ALL_AT_ONCE)
        self._of: dict[str, Allowance] = {}
        """By principal, '' where none is named; the one that asked last stands last."""

    def __len__(self) -> int:
        return len(self._of)

    def wait_ms(self, principal: str, now_ns: int) -> int:
        """Take one more request of ``principal``: 0; or in how many milliseconds it may come again."""
        own = self._of.pop(principal, None)
        if own is None:
            own = Allowance(PER_PRINCIPAL, PRINCIPAL_AT_ONCE)
            if len(self._of) >= MAX_PRINCIPALS:
                del self._of[next(iter(self._of))]
        self._of[principal] = own
        wait_ms = max(own.wait_ms(now_ns), self._in_all.wait_ms(now_ns))
        if not wait_ms:
            own.take(now_ns)
            self._in_all.take(now_ns)
        return wait_ms
