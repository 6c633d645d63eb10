"""Decides whether a starting process may replace another process with the same node id. Pure.

The lock of a data directory [S10] does not detect a copy of the directory. So the starting process asks NATS for the
node (``<ns>.status.<node>``). "No responders" proves that nobody is there. An answer proves that another process runs:
ask again, and give up after ``wait_s``. No answer proves nothing. After some tries, the other process is treated as
hanging, and will find itself fenced.
"""

from __future__ import annotations

from enum import Enum

from liftpy.config import NS_PER_S

DEFAULT_WAIT_S = 15.0
"""Longer than a node takes to stop in good order."""
DEFAULT_SILENCES = 3
"""Number of unanswered requests in a row after which the other process counts as hanging."""


class Sign(Enum):
    """Result of one question to NATS."""

    ABSENT = "nobody listens"
    PRESENT = "it answered"
    SILENT = "no answer in time"
    UNASKED = "the bus could not be asked"


class Verdict(Enum):
    """Next step of the check."""

    ASK = "ask again"
    GO_ON = "take its place"
    GIVE_UP = "it stays: end"


class Predecessor:
    """One check for another process. ``now_ns`` is monotonic."""

    def __init__(self, now_ns: int, wait_s: float = DEFAULT_WAIT_S, silences: int = DEFAULT_SILENCES) -> None:
        self._deadline_ns = now_ns + round(wait_s * NS_PER_S)
        self._silences = silences
        self._silent = 0
        self.is_present = False
        """True if it has answered and was not proved gone since."""

    def heard(self, sign: Sign, now_ns: int) -> Verdict:
        """Note the result of one question. Return the verdict."""
        if sign is Sign.ABSENT:
            return Verdict.GO_ON
        if sign is Sign.UNASKED:
            return Verdict.ASK
        if sign is Sign.SILENT:
            self._silent += 1
            return Verdict.GO_ON if self._silent >= self._silences else Verdict.ASK
        self._silent, self.is_present = 0, True
        return Verdict.GIVE_UP if now_ns >= self._deadline_ns else Verdict.ASK
