"""A command of steps as one span, with one below it for each step: a backup, a restore. Pure."""

from __future__ import annotations

from collections.abc import Callable

from liftpy.trace.spans import Attributes, Span, SpanTree

MOST_STEPS = 64
"""Of one command; what begins beyond them belongs to the last one."""


class StepSpans:
    """``name``: of the span. ``wall_ns``: the wall clock, ns since 1970."""

    def __init__(self, name: str, wall_ns: Callable[[], int]) -> None:
        self.name = name
        """May be changed until the end."""
        self.attributes: Attributes = {}
        self._wall_ns = wall_ns
        self._began_ns = wall_ns()
        self._steps: list[tuple[str, int]] = []
        """Name, and when it began."""

    def step(self, name: str) -> None:
        """It begins; the one before ends."""
        if len(self._steps) < MOST_STEPS:
            self._steps.append((name, self._wall_ns()))

    def ended(self, error: str = "") -> SpanTree:
        """All of it, now. ``error``: why it failed; '': it did not. The attribute ``liftpy.step`` says where."""
        end_ns = max(self._wall_ns(), self._began_ns)
        ends = [*(at for _, at in self._steps[1:]), end_ns]
        steps = tuple(Span(name, at, max(at, end)) for (name, at), end in zip(self._steps, ends, strict=False))
        failed: Attributes = {"liftpy.step": self._steps[-1][0]} if error and self._steps else {}
        return SpanTree(Span(self.name, self._began_ns, end_ns, self.attributes | failed, error), steps)
