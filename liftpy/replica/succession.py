"""Succession: a new leader says nothing while the one before it may still speak [A2, D22, R4].

Goal: one speaker at a time. A leader that was deposed while its session lasted (by reports of its followers, or moved by command) and
that does not know it yet may acknowledge, refuse and answer "latest" until its lease ends.
Constraint: its lease can only come from answers made before the change that proposed the successor was recorded: later ones
count only with the image that shows the change. So it has ended ``lease_s`` after the successor heard of its own proposal.
Algorithm: the successor opens at once if the old leader's session has ended (fenced, or another incarnation), or if it asks for
something in the new epoch (then it has stepped down); else when ``lease_s`` is over. The usual fail-over, by a session
that ended, waits for nothing; a planned transfer waits for one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping


class Succession:
    """What the successor knows of its predecessor. ``predecessor`` '': not known, so the time has to pass."""

    __slots__ = ("_incarnation", "_over", "_predecessor", "until_ns")

    def __init__(self, predecessor: str, node_id: str, live: Mapping[str, int], until_ns: int) -> None:
        self._predecessor = predecessor
        self._incarnation = live.get(predecessor)
        self._over = predecessor == node_id or (bool(predecessor) and self._incarnation is None)
        self.until_ns = until_ns
        """Monotonic: no lease of the predecessor lasts longer."""

    def asked_by(self, replica: str) -> None:
        """``replica`` asked for something in the new epoch."""
        if replica == self._predecessor:
            self._over = True

    def live_changed(self, live: Mapping[str, int]) -> None:
        """The predecessor's session may have ended."""
        if self._predecessor and live.get(self._predecessor) != self._incarnation:
            self._over = True

    def is_over(self, now_ns: int) -> bool:
        """Whether the successor may speak."""
        return self._over or now_ns >= self.until_ns
