"""``LevelRange``: the feature levels that a process supports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

NO_LEVEL = 0
"""Level of the image of a new group. Nothing is decided before the level is set."""


class LevelRangeMessage(Protocol):
    """Protobuf message that names the range of feature levels that its sender supports."""

    minLevel: int
    maxLevel: int


@dataclass(frozen=True, slots=True)
class LevelRange:
    """Range of feature levels that a process supports, inclusive."""

    least: int
    most: int

    def __contains__(self, level: int) -> bool:
        return self.least <= level <= self.most

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"

    def write_to(self, message: LevelRangeMessage) -> None:
        message.minLevel, message.maxLevel = self.least, self.most


DEFAULT_LEVELS = LevelRange(1, 1)
"""Range that is used for a message without one. No released version supports it, so the node is rejected.

Controllers store the text of the rejection, which contains this range. The range must not change.
"""


def level_range_in(message: LevelRangeMessage) -> LevelRange:
    """Return the range of levels in ``message``, or ``DEFAULT_LEVELS`` if it names none."""
    return LevelRange(message.minLevel, message.maxLevel or message.minLevel) if message.minLevel else DEFAULT_LEVELS


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """Feature level of the cluster, and the levels of its nodes.

    Attributes:
        level: Feature level of the cluster.
        spoken: Node id -> range of levels that it supports. None: not known.
        versions: Node id -> version.
        reasons: Reasons why the requested level cannot be finalized. (): it can.
    """

    level: int
    """Feature level of the cluster."""
    spoken: Mapping[str, LevelRange | None]
    """Node id -> range of levels that it supports. None: not known."""
    versions: Mapping[str, str]
    """Node id -> version."""
    reasons: tuple[str, ...] = ()
    """Reasons why the requested level cannot be finalized. (): it can."""
