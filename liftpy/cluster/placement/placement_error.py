"""What placement says when a map can't be made."""

from __future__ import annotations

from collections.abc import Sequence

from liftpy.dataclass import dataclass
from liftpy.errors import ConfigError


class PlacementError(ConfigError):
    """The request for a placement is wrong; the text says how. Blame: the caller."""

    code = "PLACEMENT"


class NoRoomError(PlacementError):
    """The nodes hold as many partitions as they take. Do: add nodes, delete streams, or raise the nodes' limit of open files."""

    code = "NO_ROOM"
    retryable = True


class NotEnoughNodesError(PlacementError):
    """There are fewer nodes than replicas. Do: start more nodes, or ask for fewer replicas."""

    code = "NOT_ENOUGH_NODES"
    retryable = True

    def __init__(self, missing: int) -> None:
        super().__init__(f"not enough nodes: {missing} more needed")
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is wrong with a map made by hand."""

    entry: int
    """Its place in the list, from 0; -1: of the list itself."""
    rule: str
    """Which rule it breaks."""


class ManualError(PlacementError):
    """A map made by hand is wrong; ``defects`` are all of them, and the text names each with its entry."""

    def __init__(self, defects: Sequence[Defect]) -> None:
        entries: dict[str, list[int]] = {}
        for defect in defects:
            entries.setdefault(defect.rule, []).append(defect.entry)
        super().__init__("; ".join(_said(rule, numbers) for rule, numbers in entries.items()))
        self.defects = tuple(defects)


def _said(rule: str, entries: Sequence[int]) -> str:
    named = ", ".join(str(entry) for entry in entries if entry >= 0)
    return f"{rule} ({'entry' if len(entries) == 1 else 'entries'} {named})" if named else rule
