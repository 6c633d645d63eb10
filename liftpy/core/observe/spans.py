"""A finished span with its children, ready for export. Pure.

How many spans a node, or a client, may make: a token bucket. What does not fit is not made, and counted. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from liftpy.config import NS_PER_S
from liftpy.core.observe.trace_context import TraceContext

Attributes = dict[str, str | int]


@dataclass(slots=True)
class Span:
    """A span. Times in ns of the wall clock. ``error``: why it failed. '': it did not."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    error: str = ""


class SpanTree(NamedTuple):
    """``parent``: of the root, in another process; None: the root begins a trace. ``links``: of the root."""

    root: Span
    children: tuple[Span, ...] = ()
    parent: TraceContext | None = None
    links: tuple[TraceContext, ...] = ()

    @property
    def size(self) -> int:
        """Number of spans."""
        return 1 + len(self.children)


SPANS_PER_S = 100.0
"""Maximum number of spans per second of a node, or of a client in each direction."""


class SpanBudget:
    """``per_s``: tokens a second, and as many at most; a span costs one."""

    def __init__(self, per_s: float = SPANS_PER_S) -> None:
        self._per_s = per_s
        self._tokens = per_s
        self._at_ns: int | None = None
        self.dropped = 0
        """Number of spans that were not created, or created and not exported, since the process began."""

    def takes(self, spans: int, now_ns: int) -> bool:
        """Return whether ``spans`` spans may be created at ``now_ns`` (monotonic). If not, they count as dropped."""
        if not self.has(spans, now_ns):
            self.dropped += spans
            return False
        self._tokens -= spans
        return True

    def has(self, spans: int, now_ns: int) -> bool:
        """Return whether ``spans`` spans could be taken."""
        if self._at_ns is not None:
            self._tokens = min(self._per_s, self._tokens + max(0, now_ns - self._at_ns) * self._per_s / NS_PER_S)
        self._at_ns = now_ns
        return self._tokens >= spans

    def gives_back(self, spans: int) -> None:
        """Return unused spans to the budget."""
        self._tokens += spans
