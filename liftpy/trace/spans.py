"""A span and those below it, finished: what is handed to who exports them. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from liftpy.dataclass import dataclass
from liftpy.trace.context import TraceContext

Attributes = dict[str, str | int]


@dataclass(slots=True)
class Span:
    """Times in ns of the wall clock. ``error``: why it failed; '': it did not."""

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
        """Spans in it."""
        return 1 + len(self.children)
