"""Deadlines of one replica: which are set, so that one that fires late, early or after it was cancelled is told apart."""

from __future__ import annotations

from liftpy.replica.effects import Effect, SetDeadline
from liftpy.replica.events import Deadline


class Deadlines:
    """At most one deadline per kind; ``at_ns`` is monotonic."""

    __slots__ = ("_at_ns",)

    def __init__(self) -> None:
        self._at_ns: dict[Deadline, int] = {}

    def set(self, kind: Deadline, at_ns: int, out: list[Effect]) -> None:
        """Ask for ``kind`` at ``at_ns``, replacing an earlier one."""
        if self._at_ns.get(kind) != at_ns:
            self._at_ns[kind] = at_ns
            out.append(SetDeadline(kind=kind, at_ns=at_ns))

    def set_earlier(self, kind: Deadline, at_ns: int, out: list[Effect]) -> None:
        """Ask for ``kind`` at ``at_ns``, unless it is set for an earlier time already."""
        if at_ns < self._at_ns.get(kind, at_ns + 1):
            self.set(kind, at_ns, out)

    def cancel(self, kind: Deadline, out: list[Effect]) -> None:
        """No longer wanted."""
        if self._at_ns.pop(kind, None) is not None:
            out.append(SetDeadline(kind=kind, at_ns=None))

    def cancel_all(self, out: list[Effect]) -> None:
        """The role ends."""
        for kind in list(self._at_ns):
            self.cancel(kind, out)

    def is_set(self, kind: Deadline) -> bool:
        """Whether ``kind`` is waited for."""
        return kind in self._at_ns

    def reached(self, kind: Deadline, now_ns: int, out: list[Effect]) -> int | None:
        """How late ``kind`` is, in ns, and it is no longer set; None when it is not due (it is asked for again if set)."""
        at_ns = self._at_ns.get(kind)
        if at_ns is None:
            return None
        if now_ns < at_ns:
            out.append(SetDeadline(kind=kind, at_ns=at_ns))
            return None
        del self._at_ns[kind]
        return now_ns - at_ns
