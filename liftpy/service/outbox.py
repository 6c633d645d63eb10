"""The outbox of a service: every output once in the output stream, over any change of leader. Pure.

Goal: what a LEADER emitted before it died is not emitted again by its successor, and nothing in between is left out.

Constraint: any number of processes may believe to be LEADER for a moment, and a message of a dead one may arrive late.

Algorithm: the outputs of a deterministic service are a numbered sequence, a function of the log alone. OUTPUT n IS WRITTEN AT OFFSET n
of the output partition, which belongs to this service alone, by an append that says the offset it expects. The partition's leader
appends it there or refuses it. So it does not matter who sends output n, how often, or how late: it can only land at its own place,
once. No fencing of old LEADERs and no window of message ids is needed. A new LEADER reads where the output stream ends (``learned``),
and goes on from there; followers read along, drop what is written, and compare it with their own (DivergedError).

Outputs that are not written yet are kept here, bounded. A LEADER whose outbox is full stops applying records (``full``); a follower
drops the oldest, and as LEADER gets them again by a replay from a snapshot below them (``must_rewind``).

Worked example: the LEADER has produced outputs 0..9, its appends 0..6 are committed, 7 is in flight; it dies. Its successor reads
that the output stream ends at 7 and sends 7, expecting offset 7. If the dead one's 7 has arrived meanwhile, it is refused, reads
again, sees its own 7 there, and sends 8.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import crc32c

from liftpy.errors import LiftError
from liftpy.service.base import DivergedError
from liftpy.wire.batch import Record
from liftpy.wire.headers import OUTPUT_ID, OUTPUT_NUMBER

ID_HEADER = OUTPUT_ID
NUMBER_HEADER = OUTPUT_NUMBER
MAX_OUTPUT_BYTES = 256 * 1024
_OVERHEAD_BYTES = 128


class OutputConflictError(LiftError):
    """The output partition holds what this service did not write: it must belong to the service alone. Blame: the operator."""

    code = "OUTPUT_CONFLICT"


@dataclass(frozen=True, slots=True)
class Output:
    """One output. ``number``: its place in the sequence, and its offset in the output stream.

    ``offset`` and ``index``: the record that it came from, and which of that record's outputs it is (timers that fired before
    the record count first).
    """

    number: int
    offset: int
    index: int
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory and on the wire."""
        return len(self.value) + len(self.key or b"") + sum(len(n) + len(v) for n, v in self.headers) + _OVERHEAD_BYTES


class Outbox:
    """The outputs of one service from ``first_kept`` (inclusive) to ``output_count`` (exclusive)."""

    def __init__(self, source: str, *, max_records: int = 65_536, max_bytes: int = 32 * 1024 * 1024) -> None:
        self.source = source
        """Stream uid and partition, as they stand in the id of every output."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._kept: deque[Output] = deque()
        self._kept_bytes = 0
        self.output_count = 0
        """Outputs that the state has produced so far; the number of the next one."""
        self.emitted_end = 0
        """Outputs below it are committed in the output stream; may be above ``output_count`` where this node lags."""
        self.restarted_at = 0
        """``output_count`` when the state last began: outputs below it were produced before, perhaps by another process."""
        self.diverged = ""
        """What was produced here and is not what was written; '' as long as there is no such thing."""
        self._ahead: dict[int, int] = {}
        """Number -> digest of outputs that were read before they were produced here; at most ``max_records``."""

    @property
    def first_kept(self) -> int:
        """Number of the oldest output that is kept; ``output_count`` when none is."""
        return self._kept[0].number if self._kept else self.output_count

    @property
    def waiting_count(self) -> int:
        """How many outputs are kept."""
        return len(self._kept)

    @property
    def full(self) -> bool:
        """Whether a LEADER must not produce more before some are written."""
        return len(self._kept) >= self._max_records or self._kept_bytes >= self._max_bytes

    @property
    def must_rewind(self) -> bool:
        """Whether outputs that are not written yet were dropped: they have to be produced again from an earlier snapshot."""
        return self.emitted_end < self.first_kept

    def restart(self, output_count: int) -> None:
        """The state begins anew after ``output_count`` outputs."""
        self._kept.clear()
        self._kept_bytes = 0
        self.output_count = self.restarted_at = output_count

    def add(self, output: Output) -> None:
        """Keep the next output, unless it is written already."""
        self.output_count = output.number + 1
        theirs = self._ahead.pop(output.number, None)
        if theirs is not None and theirs != _digest(self.id_of(output), output.key, output.value):
            self.diverged = self.diverged or _differs(output.number)
        if output.number >= self.emitted_end:
            self._kept.append(output)
            self._kept_bytes += output.size_bytes

    def compare_again(self) -> None:
        """The log was cut: what was written since the state's beginning may be of records that are gone. Read it again."""
        self._ahead.clear()
        self.emitted_end = min(self.emitted_end, self.output_count)

    def trim(self) -> None:
        """FOLLOWER: drop the oldest down to the bounds."""
        while len(self._kept) > 1 and (len(self._kept) > self._max_records or self._kept_bytes > self._max_bytes):
            self._drop_first()

    def _drop_first(self) -> None:
        self._kept_bytes -= self._kept.popleft().size_bytes

    def take(self, first_number: int, count: int) -> list[Output]:
        """Up to ``count`` kept outputs from ``first_number`` on."""
        skipped = first_number - self.first_kept
        if skipped < 0:
            return []
        end = min(len(self._kept), skipped + count)
        return [self._kept[index] for index in range(skipped, end)]

    def written(self, end: int) -> None:
        """Outputs below ``end`` (exclusive) are committed in the output stream."""
        self.emitted_end = max(self.emitted_end, end)
        while self._kept and self._kept[0].number < self.emitted_end:
            self._drop_first()

    def starts_at(self, log_start_offset: int) -> None:
        """The output stream's retention has dropped what is below: it was written."""
        self.written(log_start_offset)

    def learned(self, record: Record) -> None:
        """A committed record of the output stream, the next after ``emitted_end``: check it, and count it as written.

        Raises OutputConflictError when it is no output of this service, DivergedError when it is not the one of this node.
        """
        number = self.emitted_end
        headers = dict(record.headers)
        theirs = headers.get(ID_HEADER, b"").decode(errors="replace")
        if record.offset != number or headers.get(NUMBER_HEADER) != b"%d" % number or not theirs.startswith(f"{self.source}/"):
            raise OutputConflictError(
                f"offset {record.offset} of the output stream holds {theirs or 'a foreign record'}, not output {number} of "
                f"{self.source}: the output stream must belong to this service alone, and be empty when it begins"
            )
        digest = _digest(theirs, record.key, record.value or b"")
        if self._kept and self._kept[0].number == number:
            own = self._kept[0]
            if _digest(self.id_of(own), own.key, own.value) != digest:
                raise DivergedError(_differs(number))
        elif number >= self.output_count and len(self._ahead) < self._max_records:
            self._ahead[number] = digest
        self.written(number + 1)

    def id_of(self, output: Output) -> str:
        """The output's deterministic id: stream uid/partition/offset/index."""
        return f"{self.source}/{output.offset}/{output.index}"


def _digest(output_id: str, key: bytes | None, value: bytes) -> int:
    return crc32c.crc32c(value, crc32c.crc32c(b"%b %d " % (key or b"", len(key or b"")), crc32c.crc32c(output_id.encode())))


def _differs(number: int) -> str:
    return (
        f"output {number} differs from the one that was written: the service is not deterministic, or the log was cut below a "
        "record whose outputs were written (unclean election)"
    )
