"""``LevelRange``: the feature levels that a process supports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

NO_LEVEL = 0
"""Of the image of a new group: nothing is decided before its level is."""


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


UNSAID = LevelRange(1, 1)
"""Range of a message that names none. No version that was released speaks it, so such a node is rejected. The controllers keep the
text of the rejection, and it names the range: it stays what it is."""


def said(message: SaysLevels) -> LevelRange:
    """Return the range that a message names, ``UNSAID`` if it names none."""
    return LevelRange(message.minLevel, message.maxLevel or message.minLevel) if message.minLevel else UNSAID


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
