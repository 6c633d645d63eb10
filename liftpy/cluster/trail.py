"""The trail: which streams the latest changes of an image touched, so that a difference looks at those alone.

Derived and never encoded: two images that do not come from one another (one was restored) are compared in full.
"""

from __future__ import annotations

from dataclasses import field

from immutables import Map

from liftpy.dataclass import dataclass

MAX_STEPS = 8192


@dataclass(frozen=True, slots=True)
class Trail:
    """A persistent ring of stream names in the order of their changes."""

    origin: object = field(default_factory=object)
    """The same object in all images that come from one another."""
    steps: Map[int, str] = field(default_factory=Map)
    """Step number -> stream name, for the last MAX_STEPS steps."""
    step_count: int = 0
    """Steps ever taken since ``origin``."""

    def step(self, stream: str) -> Trail:
        """With one more change of ``stream``."""
        steps = self.steps.set(self.step_count, stream)
        if self.step_count >= MAX_STEPS:
            steps = steps.delete(self.step_count - MAX_STEPS)
        return Trail(self.origin, steps, self.step_count + 1)

    def since(self, earlier: Trail) -> set[str] | None:
        """The streams that were touched after ``earlier``, or None when this trail can't tell."""
        count = self.step_count - earlier.step_count
        if self.origin is not earlier.origin or not 0 <= count <= MAX_STEPS:
            return None
        return {self.steps[n] for n in range(earlier.step_count, self.step_count)}
