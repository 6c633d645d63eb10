"""Pre-vote: before a controller raises its term, it asks whether a majority would vote for it (Raft dissertation, 9.6).
Pure.

A controller that was suspended, or that alone has lost the leader, gets no majority. Then the term and the leader do
not change. A grant is not binding and not stored. A controller grants a pre-vote under three conditions. It does not
lead. No leader has sent it a message for the election timeout. Its log is not newer than that of the asking controller.
"""

from __future__ import annotations

from collections.abc import Collection

LogEnd = tuple[int, int]
"""End of a log: (term, index) of its last entry."""


def may_grant(*, leads: bool, quiet_s: float, quiet_needed_s: float, turn_is_late: bool, own: LogEnd, asker: LogEnd) -> bool:
    """Return whether a member grants a pre-vote to the member that asks.

    ``quiet_s``: time since the last message of a leader. ``quiet_needed_s``: minimum of this time. ``turn_is_late``: True if
    messages of the leader may be unread. ``own``, ``asker``: ends of the two logs.
    """
    return not leads and not turn_is_late and quiet_s >= quiet_needed_s and asker >= own


class PreVote:
    """Answers of the other controllers to this member in one round of pre-votes."""

    def __init__(self, member_count: int) -> None:
        self._needed = member_count // 2
        """Number of grants of other members that form a majority together with this member."""
        self._granted: set[str] = set()
        self.asks = False
        """True while a round of pre-votes is running."""

    def follow(self, voters: Collection[str]) -> None:
        """Set the voters of the group. Only their grants count."""
        self._needed = len(voters) // 2
        self._granted &= set(voters)

    def begin(self) -> None:
        """Start a new round of pre-votes. Grants of earlier rounds do not count."""
        self._granted.clear()
        self.asks = True

    def record_grant(self, node_id: str) -> None:
        if self.asks:
            self._granted.add(node_id)

    def end(self) -> None:
        self._granted.clear()
        self.asks = False

    @property
    def won(self) -> bool:
        return self.asks and len(self._granted) >= self._needed
