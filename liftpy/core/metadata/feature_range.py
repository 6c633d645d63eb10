"""``LevelRange``: the feature levels that a process supports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

FIRST = 1
"""The level of an image that names none, and the only one of a node that says no range."""


class SaysLevels(Protocol):
    """A message that carries a range."""

    minLevel: int
    maxLevel: int


@dataclass(frozen=True, slots=True)
class LevelRange:
    """Levels that a process speaks, inclusive."""

    least: int
    most: int

    def __contains__(self, level: int) -> bool:
        return self.least <= level <= self.most

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"

    def tell(self, message: SaysLevels) -> None:
        """Put it into a registration or a heartbeat."""
        message.minLevel, message.maxLevel = self.least, self.most


def said(message: SaysLevels) -> LevelRange:
    """The range in a message; of one that has none, the first level alone."""
    return LevelRange(message.minLevel or FIRST, message.maxLevel or message.minLevel or FIRST)


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """What a client is told."""

    level: int
    """That holds."""
    spoken: Mapping[str, LevelRange | None]
    """By node; None: the metadata leader has not heard it."""
    versions: Mapping[str, str]
    """By node, as it registered."""
    reasons: tuple[str, ...] = ()
    """Why the level that was asked for can't be set; (): it can."""
