"""GroupCoordinator: the replicated service that keeps the groups of one partition of the stream of groups. Pure.

Every record is a command; its answer is the reply. While there are members or records out and nobody says anything, it offers an empty
record to its own input each second, for time is what its records say.
"""

from __future__ import annotations

from collections.abc import Callable

from liftpy.config import NS_PER_S
from liftpy.errors import CorruptionError
from liftpy.group import shown
from liftpy.group.machine import GroupMachine, GroupRecord
from liftpy.service.base import Service
from liftpy.wire.batch import Record

SILENCE = "silence"
"""The timer's name."""
NO_FIGURES = {"groups": 0, "members": 0, "queues": 0, "records_out": 0, "state_bytes": 0}


class GroupCoordinator(Service):
    """Run it beside every replica of a partition of the stream of groups, with ``tick_s`` = 1 and no output stream."""

    on_error = "skip"
    emits = False
    starts_in_thread = True

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with no groups, or with those of ``snapshot``."""
        self._machine = GroupMachine()
        if snapshot is not None:
            self._machine.restore(snapshot)

    def on_record(self, record: Record) -> None:
        """A command, or an empty record for the time in it."""
        if record.value:
            self.reply(record, self._machine.apply(record.value, record.timestamp_ns, record.leader_epoch))
        else:
            self._machine.pass_time(record.timestamp_ns, record.leader_epoch)
        if self._machine.waits:
            self.set_timer(SILENCE, self.now_ns + NS_PER_S)
        else:
            self.cancel_timer(SILENCE)

    def on_timer(self, name: str) -> None:
        """Nobody has said anything for a second. ``on_record`` of what is offered sets the timer again."""
        self.offer(b"")

    def on_query(self, query: bytes) -> bytes:
        """What a ``GroupQuery`` asks, as a ``GroupQueryAnswer``."""
        return shown.answered(self._machine, query)

    @property
    def groups(self) -> dict[str, GroupRecord]:
        """By name; for looking at."""
        return self._machine.groups

    def figures(self) -> dict[str, int]:
        """For status: how many there are, and what they take in memory, about."""
        found = self._machine.groups.values()
        queues = [queue for group in found for queue in group.queues.values()]
        numbers = (
            len(found),
            sum(len(group.readers.members) for group in found),
            len(queues),
            sum(queue.out_count for queue in queues),
            self._machine.size_bytes,
        )
        return dict(zip(NO_FIGURES, numbers, strict=True))

    @classmethod
    def check_snapshot(cls, state: bytes) -> None:
        """Raise CorruptionError unless the groups can be restored from ``state``, all of them as they were."""
        again = GroupMachine()
        again.restore(state)
        if again.snapshot() != state:
            raise CorruptionError("the groups that are read back are not those that were written")

    def take_snapshot(self) -> bytes | Callable[[], bytes]:
        """All groups; their bytes are made in another thread."""
        return self._machine.frozen()
