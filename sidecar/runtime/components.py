"""Components: the parts of a process, which start in order and close in reverse order."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

logger = logging.getLogger("liftpy.node")

T = TypeVar("T")
Step = Callable[[], Awaitable[None] | None]


class Closable(Protocol):
    """Object with a ``close`` step, such as a connection."""

    @property
    def close(self) -> Step: ...


def no_step() -> None:
    """Do nothing. A component that needs no start or no close uses this step."""


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a process, with the steps that start and close it.

    ``close`` also runs if ``start`` failed, was canceled or never ran, so it closes only what exists.
    """

    name: str
    start: Step = no_step
    close: Step = no_step


async def start_all(components: list[Component]) -> None:
    """Start the components in order. The first failure ends the start. Call ``close_all`` afterwards in any case."""
    for component in components:
        await _run(component.start)


async def close_all(components: list[Component], failed: Callable[[Exception], None]) -> None:
    """Close the components in reverse order. Each of them closes even if another one fails.

    Args:
        components: All components, in the order of their start.
        failed: Called at once with the error of a component that failed to close.
    """
    for component in reversed(components):
        try:
            await _run(component.close)
        except Exception as error:
            logger.error("component failed to close component=%s, closing the others", component.name, exc_info=error)
            failed(error)


async def _run(step: Step) -> None:
    waits = step()
    if waits is not None:
        await waits


def close_of(part: Closable | None) -> Step:
    """Return the step that closes ``part``. None: the part was never created, so the step does nothing."""
    return no_step if part is None else part.close


def require_started(part: T | None) -> T:
    """Return ``part``. It is never None here, because an earlier component has created it."""
    assert part is not None
    return part
