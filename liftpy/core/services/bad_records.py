"""Records that a service cannot apply, and the decision to skip one. Pure.

Goal: a record on which the service's code raises an error stops neither the outputs nor the nodes forever, and all nodes
treat it in the same way. Constraint: a failure on one node is no reason to skip the record. Memory may be short or the code
may differ, and other nodes may have applied it.

Algorithm: A RECORD OF THE LOG DECIDES WHAT IS SKIPPED. This decision names the unit that failed: ``on_record`` at an
offset, or one timer that fired there. It counts if it is after the unit, and was appended in the LeaderEpoch in which it
was made (0: by an operator, in any epoch). A service that cannot apply a unit undoes it: ``ServiceMachine`` emits nothing,
and ``Feeder`` rebuilds the state up to the unit. Then the service reads on, without applying records, and looks for a
decision. If it finds one, it skips the unit. If it finds none:

    on_error   on the leader's node                      on another replica's node
    stop       the service ends                          the service ends
    skip       tries once more, then decides             tries again with growing waits, until there is a decision

A service that has applied the unit and finds a decision about it restores a snapshot from before the unit. A service does
not decide if outputs from after the unit are written, because another LEADER has applied it then.

Worked example: no node can apply record 17. The service on the leader's node in epoch 5 tries it twice, writes it to the
dead-letter stream, and appends ``bank/17/5/`` at offset 40. All nodes wait at 17, read up to 40, and continue with 18.
Replays do the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from liftpy.core.base.ids import check_name, is_utf8
from liftpy.core.base.rate_limits import doubled_wait_s
from liftpy.core.publish.jetstream_headers import asked_for
from liftpy.core.services.service import ServiceFailedError
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import (
    DEAD_LETTER_ERROR,
    DEAD_LETTER_SERVICE,
    DEAD_LETTER_SOURCE,
    SERVICE_SKIP,
    SERVICE_VERSION,
    Pairs,
)
from liftpy.errors import LiftError

MAX_ERROR_BYTES = 500
MAX_SKIPS = 256
FIRST_WAIT_S = 1.0
"""Wait before a follower's service retries a unit that failed twice, in seconds. It doubles with each failure."""
LONGEST_WAIT_S = 60.0
DECIDED_WAIT_S = 10.0
"""Wait for an appended decision before it is appended again, in seconds."""


class OnError(Enum):
    """Reaction of a service to a record on which its code raises an error: ``Service.on_error``."""

    STOP = "stop"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """Part of a service's work that can fail and be skipped: ``on_record`` at ``offset``, or a timer that fires before it.

    ``timer``: name of the timer, '' for ``on_record``.
    """

    offset: int
    timer: str = ""

    def __str__(self) -> str:
        return f"offset {self.offset}" + (f", timer {self.timer!r}" if self.timer else "")


class BadRecordError(ServiceFailedError):
    """Raised if the service's code raised an error for ``unit`` while it processed ``record``.

    The caller must not use the machine any more. ``text``: text about the error, of which the first ``MAX_ERROR_BYTES``
    characters are used.
    """

    def __init__(self, unit: Unit, record: Record, text: str) -> None:
        super().__init__(f"{text[:MAX_ERROR_BYTES]}: the record at offset {unit.offset} can't be applied")
        self.unit = unit
        self.record = record


class DecisionMissedError(LiftError):
    """Raised if the service has applied a unit that a later record of the log decides to skip.

    The caller restores a snapshot from before ``unit``. ``decision_offset``: offset of the later record.
    """

    code = "DECISION_MISSED"

    def __init__(self, unit: Unit, decision_offset: int) -> None:
        super().__init__(f"{unit} was applied, and is passed over by a later record")
        self.unit = unit
        self.decision_offset = decision_offset


@dataclass(frozen=True, slots=True)
class SkipDecision:
    """Decision of a service to skip ``unit``. ``leader_epoch``: LeaderEpoch in which it was made. 0: by an operator."""

    service: str
    unit: Unit
    leader_epoch: int = 0

    def headers(self) -> Pairs:
        return ((SERVICE_SKIP, f"{self.service}/{self.unit.offset}/{self.leader_epoch}/{self.unit.timer}".encode()),)


def is_decision(record: Record) -> bool:
    """Return whether the record is a decision of the framework to skip a unit. ``on_record`` does not get such a record."""
    return any(name in (SERVICE_SKIP, SERVICE_VERSION) for name, _ in record.headers)


def decided_unit(record: Record, service: str) -> Unit | None:
    """Return the unit that ``service`` must skip because of ``record``. None: the record is no valid decision."""
    for name, value in record.headers:
        if name != SERVICE_SKIP:
            continue
        try:
            whose, offset, epoch, timer = value.decode().split("/", 3)
            check_name(whose, "service")
            unit, leader_epoch = Unit(int(offset), timer), int(epoch)
        except (ValueError, LiftError):
            return None
        counts = 0 <= unit.offset < record.offset and leader_epoch in (0, record.leader_epoch)
        return unit if whose == service and counts else None
    return None


class SkippedUnits:
    """Units that a service must skip or has skipped. The newest ``MAX_SKIPS`` that it has skipped are part of a snapshot.

    Units that were skipped already stay in the list, because the log may have a decision twice. A replay may know any number of
    units that it must skip later.
    """

    def __init__(self, units: Iterable[Unit] = ()) -> None:
        self._units = set(units)
        self._offsets = {unit.offset for unit in self._units}

    def __contains__(self, unit: Unit) -> bool:
        return unit.offset in self._offsets and unit in self._units

    def __iter__(self) -> Iterator[Unit]:
        return iter(sorted(self._units))

    def __len__(self) -> int:
        return len(self._units)

    def add(self, unit: Unit, position: int) -> None:
        """Add a unit that the service must skip.

        ``position``: offset of the next record. If the service has skipped too many units below it, forget those with the lowest
        offsets.
        """
        self._units.add(unit)
        if len(self._units) > MAX_SKIPS:
            self._units.difference_update(self._below(position)[:-MAX_SKIPS])
        self._offsets = {unit.offset for unit in self._units}

    def newest(self, position: int) -> tuple[Unit, ...]:
        """Return the newest ``MAX_SKIPS`` units that a service has skipped below the offset ``position``, ascending."""
        return tuple(self._below(position)[-MAX_SKIPS:])

    def _below(self, position: int) -> list[Unit]:
        return sorted(unit for unit in self._units if unit.offset < position)

    def forget_from(self, offset: int) -> None:
        """Forget the units at or above ``offset``."""
        self._units = {unit for unit in self._units if unit.offset < offset}
        self._offsets = {unit.offset for unit in self._units}


class NextStep(Enum):
    """Next step for a failed unit: try it again, decide to skip it, wait, or stop the service.

    The step is chosen after the service has searched all committed records for a decision, and has found none.
    """

    TRY = "try"
    DECIDE = "decide"
    WAIT = "wait"
    STOP = "stop"


@dataclass(slots=True)
class FailedUnit:
    """State of a unit that keeps failing.

    ``error``: its last error. ``tries``: number of attempts. ``scanned``: next offset to search for a decision. ``again_s``:
    monotonic time of the next attempt, in seconds.
    """

    error: BadRecordError
    tries: int = 1
    scanned: int = 0
    again_s: float = 0.0
    decided_s: float | None = None
    """Monotonic time when this node appended a decision, in seconds. None: it appended none."""
    scan_end: int | None = None
    """End of the running search for a decision, exclusive: the HW at its start. None: no search is running."""
    undone: bool = False
    """True if the state must be rebuilt, because it contains a part of the failed unit."""
    stored: bool = False
    """True if there is a snapshot directly before the unit, so that a retry replays only one record."""

    @property
    def unit(self) -> Unit:
        return self.error.unit

    def record_failure(self, error: BadRecordError, now_s: float) -> None:
        self.error = error
        self.tries += 1
        self.again_s = now_s + doubled_wait_s(self.tries - 1, FIRST_WAIT_S, LONGEST_WAIT_S)

    def next(self, on_error: OnError, *, leads: bool, now_s: float) -> NextStep:
        """Return the next step for the failed unit.

        ``on_error``: setting of the service. ``leads``: True if the service runs on the node of the partition's leader.
        ``now_s``: monotonic time in seconds.
        """
        if on_error is OnError.STOP:
            return NextStep.STOP
        if self.tries < 2:
            return NextStep.TRY
        if self.decided_s is not None and now_s < self.decided_s + DECIDED_WAIT_S:
            return NextStep.WAIT
        if leads:
            return NextStep.DECIDE
        return NextStep.TRY if now_s >= self.again_s else NextStep.WAIT


def dead_letter_headers(service: str, source: str, error: str, record: Record) -> Pairs:
    """Return the headers of a dead letter: those of the record, and headers that name its source and its error.

    ``service``: name of the service. ``source``: stream/uid/partition of the record. ``error``: text of the error. The message
    id of the record is left out, so that two dead letters never count as one message.
    """
    own = tuple(
        (name, value) for name, value in record.headers if name[:5].lower() != "lift-" and not asked_for(name) and is_utf8(name)
    )
    error_bytes = error.encode(errors="replace")[:MAX_ERROR_BYTES]
    ours = ((DEAD_LETTER_SERVICE, service.encode()), (DEAD_LETTER_SOURCE, f"{source}/{record.offset}".encode()))
    return (*own, *ours, (DEAD_LETTER_ERROR, error_bytes))
