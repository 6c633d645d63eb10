"""LogControllers: who forms the group by one member's log, which is what it counts majorities by [M10].

The newest change that the log holds counts, committed or not: in the journal, else in the snapshot below it, else the list of the
settings. A cut of the journal takes its changes back; a restart reads them again. Not what was applied: a member that has just started
has applied nothing, and with a list that is two changes old it could be elected beside a leader that it does not know.

A node that joins a group which runs has another list to begin with, of the feed: it is committed, so that nothing takes it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.core.metadata.controller_list import ControllerList, list_of
from sidecar.quorum.codec import Entry

CHANGE = b"\x02"
"""First byte of the commands that change the controllers: the library's own type for them."""


def change_in(command: bytes, index: int) -> ControllerList | None:
    """The list that the entry makes, None for any other, and for one that holds none: it means the same to everybody, nothing."""
    return list_of(bytes(command[1:]), index) if command[:1] == CHANGE else None


@dataclass(slots=True)
class LogControllers:
    """Of one member. ``first``: the list of its settings, or the one by which it joins; ``in_snapshot``: as of its last entry."""

    first: ControllerList
    in_snapshot: ControllerList | None = None

    def newest(self, changes: list[Entry]) -> ControllerList:
        """Who counts now. ``changes``: the entries of the journal with that first byte, in order."""
        return self.at(None, changes)

    def at(self, index: int | None, changes: list[Entry]) -> ControllerList:
        """Who counted when the log ended with ``index``; None: where it ends."""
        held = [found for command, at, _ in changes if (found := change_in(command, at)) is not None]
        known = [self.first, *([self.in_snapshot] if self.in_snapshot is not None else []), *held]
        if index is not None:
            known = [one for one in known if one.index <= index]
        return max(known, key=lambda one: one.index, default=ControllerList(self.first.voters))
