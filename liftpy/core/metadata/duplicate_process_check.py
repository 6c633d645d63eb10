"""Whether a process that starts may take the place of the one that runs, or ran, under its node id. Pure.

Goal: a copy of a data folder that is started beside the original harms neither it nor its data; a restart after a kill waits for
nobody. Constraint: the lock of a data folder [S10] knows nothing of a copy, and a copy of a running folder is like the original.
Algorithm: the bus is asked for the node (``<ns>.status.<node>``) before this process says anything under its id. "No responders" is a
proof that nobody is there: go on. An answer proves that somebody is, who may be stopping: ask again, and give up after ``wait_s``.
Silence proves nothing: a process that stands still, or a machine that is gone and whose connection NATS still holds. After a few
times it is taken for a process that is to be deposed, which finds itself fenced when it wakes.
"""

from __future__ import annotations

from enum import Enum

from liftpy.config import NS_PER_S

DEFAULT_WAIT_S = 15.0
"""Longer than a node takes to stop in good order."""
DEFAULT_SILENCES = 3
"""So many questions without an answer in a row, each waited for."""


class Sign(Enum):
    """What came of one question."""

    ABSENT = "nobody listens"
    PRESENT = "it answered"
    SILENT = "no answer in time"
    UNASKED = "the bus could not be asked"


class Verdict(Enum):
    """What to do next."""

    ASK = "ask again"
    GO_ON = "take its place"
    GIVE_UP = "it stays: end"


class Predecessor:
    """One inquiry. ``now_ns`` is monotonic."""

    def __init__(self, now_ns: int, wait_s: float = DEFAULT_WAIT_S, silences: int = DEFAULT_SILENCES) -> None:
        self._deadline_ns = now_ns + round(wait_s * NS_PER_S)
        self._silences = silences
        self._silent = 0
        self.is_present = False
        """It has answered, and not been proved gone since."""

    def heard(self, sign: Sign, now_ns: int) -> Verdict:
        """One question has ended."""
        if sign is Sign.ABSENT:
            return Verdict.GO_ON
        if sign is Sign.UNASKED:
            return Verdict.ASK
        if sign is Sign.SILENT:
            self._silent += 1
            return Verdict.GO_ON if self._silent >= self._silences else Verdict.ASK
        self._silent, self.is_present = 0, True
        return Verdict.GIVE_UP if now_ns >= self._deadline_ns else Verdict.ASK
