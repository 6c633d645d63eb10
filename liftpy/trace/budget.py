"""How many spans a node, or a client, may make: a token bucket. What does not fit is not made, and counted. Pure."""

from __future__ import annotations

from liftpy.config import NS_PER_S

SPANS_PER_S = 100.0
"""Of one node; of one client, in each direction."""


class SpanBudget:
    """``per_s``: tokens a second, and as many at most; a span costs one."""

    def __init__(self, per_s: float = SPANS_PER_S) -> None:
        self._per_s = per_s
        self._tokens = per_s
        self._at_ns: int | None = None
        self.dropped = 0
        """Spans that were not made, or made and not handed over, since the process began."""

    def takes(self, spans: int, now_ns: int) -> bool:
        """Whether so many may be made at ``now_ns``, monotonic; if not, they count as dropped."""
        if not self.has(spans, now_ns):
            self.dropped += spans
            return False
        self._tokens -= spans
        return True

    def has(self, spans: int, now_ns: int) -> bool:
        """Whether so many could be taken."""
        if self._at_ns is not None:
            self._tokens = min(self._per_s, self._tokens + max(0, now_ns - self._at_ns) * self._per_s / NS_PER_S)
        self._at_ns = now_ns
        return self._tokens >= spans

    def gives_back(self, spans: int) -> None:
        """So many that were taken were not needed."""
        self._tokens += spans
