"""``LogControllers``: the controller list by one controller's log, which decides its majorities [M10].

The newest change in the journal counts, committed or not. Otherwise the snapshot, otherwise the settings. A truncation
of the journal takes changes back. A node that joins a running group starts with the committed list of the feed.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.core.metadata.controller_list import ControllerList, list_of
from sidecar.quorum.codec import Entry

CHANGE = b"\x02"
"""First byte of the commands that change the controllers: the library's own type for them."""


def change_in(command: bytes, index: int) -> ControllerList | None:
    """Return the controller list in the entry, None if it has none or an invalid one."""
    return list_of(bytes(command[1:]), index) if command[:1] == CHANGE else None


@dataclass(slots=True)
class LogControllers:
    """Controller list of one controller. ``first``: list of its settings. ``in_snapshot``: list at the last entry of the
    snapshot.
    """

    first: ControllerList
    in_snapshot: ControllerList | None = None

    def newest(self, changes: list[Entry]) -> ControllerList:
        """Return the current controllers. ``changes``: journal entries with that first byte, in order."""
        return self.at(None, changes)

    def at(self, index: int | None, changes: list[Entry]) -> ControllerList:
        """Return the controllers when the log ended with ``index``, None: at its end."""
        held = [found for command, at, _ in changes if (found := change_in(command, at)) is not None]
        known = [self.first, *([self.in_snapshot] if self.in_snapshot is not None else []), *held]
        if index is not None:
            known = [one for one in known if one.index <= index]
        return max(known, key=lambda one: one.index, default=ControllerList(self.first.voters))
