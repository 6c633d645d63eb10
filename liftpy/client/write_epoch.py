"""Rounds: records that a producer sends as a unit, and sends again as a unit if the outcome is unknown [A4]. Pure.

Goal: a task that may run twice, at once or after a failure, stores its records once. Constraint: the task has no
memory. The log has one state per producer and partition.

Algorithm:

- Rounds have increasing numbers. The records of a round are numbered from 0 in each partition. Each batch contains a
  source position, and the round number is its generation. The leader rejects an earlier round.
- A process that begins a round asks every partition. If the state is of an earlier round, the process starts at
  sequence 0 with an empty digest. If the state is of this round, the first ``next_sequence`` records are stored.
- The process passes ALL records of the round to the producer. The producer does not send the stored ones. Their digest
  must match the state. Otherwise the records differ (DIVERGED_PRODUCER).
- The offset of the source position also contains the number of partitions when the round began. A process that repeats
  the round distributes its records in the same way, also if partitions were added.
- Several producers may share the records of a round. A process that repeats the round must distribute the records over
  the producers in the same way. Therefore each batch also contains the number of the plan. A leader that has records of
  the round under another plan gives no producer an epoch [A19].

Worked example: round 7 has 250 records for a partition. 100 are stored, then the process fails. The next process asks
and gets (generation 7, sequence 100, digest d). It skips its first 100 records if their digest is d, and sends 150. A
process of round 6 that resumes is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from liftpy.core.publish.digest import RollingDigest
from liftpy.core.wire.batch import RecordColumns
from liftpy.core.wire.producer_note import MAX_PLAN, MAX_UID_BYTES, PLAN_SHIFT, SourcePosition
from liftpy.errors import ConfigError, PublishRejectedError

_ROWS_BITS = 40
"""Number of low bits that hold the sequence of the last record. The higher bits hold the partitions and the plan."""
_PARTITIONS_MASK = (1 << PLAN_SHIFT - _ROWS_BITS) - 1
_MAX_NUMBER = (1 << 63) - 1


class Round(NamedTuple):
    """One round of one task.

    Attributes:
        run: Id of the job, 1 to 128 bytes.
        part: Number of the task, 0 to 2**32 - 1. Each task has its own producer.
        number: Number of the round, from 0. It increases.
        plan: Number of the plan that distributes the records over the tasks. Default 0.
    """

    run: str
    part: int
    number: int
    plan: int = 0

    @property
    def position(self) -> SourcePosition:
        """Source position of the producer's batches. It contains the plan, but no offset.

        Raises ConfigError if a value is out of range.
        """
        if not 0 < len(self.run.encode()) <= MAX_UID_BYTES:
            raise ConfigError(f"Invalid run {self.run!r} of a Round. Use an id of 1 to {MAX_UID_BYTES} bytes.")
        for name, value, highest in (
            ("part", self.part, (1 << 32) - 1),
            ("number", self.number, _MAX_NUMBER - 1),
            ("plan", self.plan, MAX_PLAN),
        ):
            if not 0 <= value <= highest:
                raise ConfigError(f"Invalid {name} = {value} of a Round. Use 0 to {highest}.")
        return SourcePosition(self.run, self.part, offset_in(0, 0, self.plan), self.number + 1)


class PlanChangedError(PublishRejectedError):
    """Records of the round are stored that were distributed by another plan. Nothing of this producer was stored."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "DIVERGED_PRODUCER")


def offset_in(partitions: int, last_sequence: int, plan: int = 0) -> int:
    """Return the number that batches of a round carry as source offset.

    It contains the number of ``partitions`` when the round began, the sequence number ``last_sequence`` of the last record of the
    batch, and ``plan``.
    """
    return plan << PLAN_SHIFT | partitions << _ROWS_BITS | last_sequence


def partitions_in(offset: int) -> int:
    """Return the number of partitions in ``offset``, which ``offset_in`` made."""
    return offset >> _ROWS_BITS & _PARTITIONS_MASK


@dataclass(slots=True)
class Repeat:
    """State of a round that one partition had when the round was opened again.

    ``stored``: number of records that are stored. ``expected``: digest of these records, None if unknown. ``partitions``: number of
    partitions when the round began.
    """

    stored: int = 0
    expected: RollingDigest | None = None
    partitions: int = 0
    passed: int = 0
    digest: RollingDigest = field(default_factory=RollingDigest)

    @property
    def remaining_skips(self) -> int:
        """Number of the following records that must be skipped, because they are stored already."""
        return self.stored - self.passed

    def leave_out(self, columns: RecordColumns, start: int, end: int) -> None:
        """Skip the records from ``start`` (inclusive) to ``end`` (exclusive), because they are stored already.

        At most ``remaining_skips`` records may be skipped. Raises PublishRejectedError if the stored records differ from the
        skipped ones.
        """
        self.digest = self.digest.over(columns.cut(start, end), 0, end - start)
        self.passed += end - start
        if not self.remaining_skips and self.expected is not None and self.digest != self.expected:
            raise self._diverged_error("other records are already stored")

    def check_whole(self) -> None:
        """Check at the end of the round that all stored records were passed again.

        Raise PublishRejectedError if more are stored.
        """
        if self.remaining_skips:
            raise self._diverged_error(f"{self.stored} records are already stored, but this attempt has {self.passed}")

    @staticmethod
    def _diverged_error(what: str) -> PublishRejectedError:
        return PublishRejectedError(
            f"This attempt of the round differs from the earlier one: {what}. Send the same records in the same order.",
            "DIVERGED_PRODUCER",
        )
