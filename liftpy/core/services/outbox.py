"""The outbox of a service: each output is written to the output stream exactly once. Routes copy outputs. Pure.

The outputs of a deterministic service are a numbered sequence that follows from the log. Output n is written at offset n of the
output partition, which belongs to this service alone. Each append names the offset that it expects, so the partition's leader
appends it there or rejects it. It does not matter which instance sends output n, how often or how late. A new LEADER reads the
end of the output stream and continues there. Followers read it too and compare the outputs with their own (DivergedError).

The outbox keeps outputs that are not written yet, up to a limit. A LEADER with a full outbox stops applying records. A follower
drops the oldest outputs. If it becomes LEADER, it replays the log from a snapshot below them.

Each output carries the digest of all outputs up to itself (``Lift-Output-Digest``), and so does a snapshot. If two instances
have the same digest, all their outputs are equal. So one output record proves that the state of a snapshot is right.

Nothing is sent before the end of the output stream is known.

Example: the LEADER has produced outputs 0..9. Its appends 0..6 are committed, 7 is in flight, and it dies. The new LEADER reads
that the output stream ends at 7, and sends 7, expecting offset 7. If the old append 7 arrived first, the new one is rejected.
The new LEADER reads again, finds its own output 7, and sends 8.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from liftpy.core.services.service import DivergedError
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import OUTPUT_DIGEST, OUTPUT_ID, OUTPUT_NUMBER, OUTPUT_SERVICE, OUTPUT_TO, Pairs
from liftpy.core.wire.partitioner import partition_of
from liftpy.errors import ConfigError, LiftError

MAX_OUTPUT_BYTES = 256 * 1024
DIGEST_SIZE_BYTES = 16
MAX_SAMPLES = 256
"""Maximum number of digests of written outputs that this node has not produced yet. Above it, every second one is dropped."""
_OVERHEAD_BYTES = 128
EXPECTED_HEADER = "Nats-Expected-Last-Sequence"
"""Header of output 0 in earlier versions. Their envelopes could not expect offset 0."""
_OURS = frozenset({OUTPUT_ID, OUTPUT_NUMBER, OUTPUT_DIGEST, OUTPUT_SERVICE, EXPECTED_HEADER})
_SIZES = struct.Struct("<IIII")
MAX_ROUTES = 16
_NOT_COPIED = frozenset({OUTPUT_DIGEST, OUTPUT_TO})


class OutputConflictError(LiftError):
    """Raised if the output partition has records of another writer. Give the service an output stream of its own."""

    code = "OUTPUT_CONFLICT"


class OutputMismatchError(DivergedError):
    """Raised if the written outputs do not match the snapshot from which this instance started. An earlier snapshot may match."""


@dataclass(slots=True)
class Output:
    """One output of a service.

    Attributes:
        number: Number of the output, and its offset in the output stream.
        offset: Offset of the record that it came from.
        index: Index among the outputs of that record. Timers before the record count first.
        value: Payload.
        key: Key, or None.
        headers: Pairs of name and value.
        digest: Digest of all outputs up to this one. The outbox sets it.
    """

    number: int
    offset: int
    index: int
    value: bytes
    key: bytes | None
    headers: Pairs
    digest: bytes = field(default=b"", compare=False)

    @property
    def size_bytes(self) -> int:
        """Approximate size of the output in memory and on the wire, in bytes."""
        return len(self.value) + len(self.key or b"") + sum(len(n) + len(v) for n, v in self.headers) + _OVERHEAD_BYTES


class Outbox:
    """Outputs of one service that are not written to the output stream yet.

    It has the outputs from ``oldest_number`` (inclusive) to ``output_count`` (exclusive).

    Args:
        source: Prefix of every output id (stream uid and partition).
        service: Name of the service. Default '': none.
        max_records: Maximum number of outputs to keep. Default 65,536.
        max_bytes: Maximum size of the outputs to keep, in bytes. Default 32 MiB.
    """

    def __init__(self, source: str, *, service: str = "", max_records: int = 65_536, max_bytes: int = 32 * 1024 * 1024) -> None:
        self.source = source
        """Stream uid and partition, as part of the id of each output."""
        self.service = service
        """Name of the service. '': unknown."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._stored_outputs: deque[Output] = deque()
        self._kept_bytes = 0
        self.output_count = 0
        """Number of outputs that the state has produced. It is the number of the next output."""
        self.digest = b""
        """Digest of all outputs below ``output_count``. b"" if there are none."""
        self.emitted_end = 0
        """Number below which all outputs are committed in the output stream. It may be above ``output_count`` on a node that lags."""
        self.known = False
        """True if ``emitted_end`` was read from the output stream, and no written output differs from the state."""
        self.compared_end = 0
        """Number below which all outputs were compared with the written ones and are equal."""
        self._began_at = 0
        """Value of ``output_count`` when the state was last started. Earlier outputs are from another run."""
        self._began_digest = b""
        self._proven = True
        """True if the first digest of the state equals that of a written output, or needs no comparison."""
        self.diverged = ""
        """Text about an output of this node that differs from the written one. '': none differs."""
        self._samples: dict[int, bytes] = {}
        """Number -> digest of written outputs that this node has not produced yet, ascending."""
        self._last_read: tuple[int, bytes] = (-1, b"")
        """Number and digest of the newest written output that this node has read. (-1, b''): none."""

    @property
    def oldest_number(self) -> int:
        """Number of the oldest output in the outbox, or ``output_count`` if it is empty."""
        return self._stored_outputs[0].number if self._stored_outputs else self.output_count

    @property
    def waiting_count(self) -> int:
        """Number of outputs in the outbox."""
        return len(self._stored_outputs)

    @property
    def full(self) -> bool:
        """True if the outbox is full, so that a LEADER must wait until outputs are written."""
        return len(self._stored_outputs) >= self._max_records or self._kept_bytes >= self._max_bytes

    @property
    def must_rewind(self) -> bool:
        """True if the outbox has dropped outputs that are not written. A LEADER must then replay the log from an earlier snapshot."""
        return self.known and self.emitted_end < self.oldest_number

    # ---- the state -------------------------------------------------------------------------------------------------------
    def restart(self, output_count: int, digest: bytes = b"") -> None:
        """Empty the outbox, because the service starts again from a snapshot.

        ``output_count``: number of outputs up to the snapshot. ``digest``: their digest, b"" for none.
        """
        self._stored_outputs.clear()
        self._kept_bytes = 0
        self.output_count = self._began_at = output_count
        self.digest = self._began_digest = digest
        self._proven = not digest
        self.compared_end = min(self.compared_end, output_count)
        number, theirs = self._last_read
        self._samples = {number: theirs} if number >= output_count and theirs else {}
        self.diverged = ""

    def compare_again(self) -> None:
        """Compare the outputs with the output stream again from the start of the state.

        The input log was truncated, so some outputs that were compared may come from lost records.
        """
        self._samples.clear()
        self._last_read = (-1, b"")
        self.emitted_end = min(self.emitted_end, self.output_count)
        self.known = False

    def add(self, output: Output) -> None:
        """Add the next output. It is not kept if it is already written."""
        number = output.number
        output.digest = self.digest = extend_digest(self.digest, self.id_of(output), output.key, output.value, output.headers)
        self.output_count = number + 1
        theirs = self._samples.pop(number, None)
        if theirs is not None:
            self._note_comparison(number, equal=output.digest == theirs)
        if number >= self.emitted_end:
            self._stored_outputs.append(output)
            self._kept_bytes += output.size_bytes

    def _note_comparison(self, number: int, *, equal: bool) -> None:
        if equal:
            self.compared_end = max(self.compared_end, number + 1)
            self._proven = True
        else:
            self.diverged = self.diverged or _difference_text(number)

    def trim(self) -> None:
        """Drop the oldest outputs until the limits are met. Only a FOLLOWER does this."""
        while len(self._stored_outputs) > 1 and (
            len(self._stored_outputs) > self._max_records or self._kept_bytes > self._max_bytes
        ):
            self._drop_first()

    def _drop_first(self) -> None:
        self._kept_bytes -= self._stored_outputs.popleft().size_bytes

    # ---- the output stream -----------------------------------------------------------------------------------------------
    def read(self, first_number: int, count: int) -> list[Output]:
        """Return up to ``count`` outputs to write, from number ``first_number`` on.

        Return none if the first one was dropped, or if the state has diverged.
        """
        if self.diverged:
            return []
        skipped = first_number - self.oldest_number
        if skipped < 0:
            return []
        end = min(len(self._stored_outputs), skipped + count)
        return [self._stored_outputs[index] for index in range(skipped, end)]

    def outputs_committed(self, end: int) -> None:
        """Remove outputs below ``end`` (exclusive), because they are committed in the output stream."""
        self.emitted_end = max(self.emitted_end, end)
        while self._stored_outputs and self._stored_outputs[0].number < self.emitted_end:
            self._drop_first()

    def wrote(self, output: Output) -> None:
        """Remove ``output`` and earlier ones, because the output partition has acknowledged it at its offset."""
        self._last_read = (output.number, output.digest)
        if self.known:
            self.compared_end = max(self.compared_end, output.number + 1)
        self.outputs_committed(output.number + 1)

    def outputs_lost(self, end: int) -> None:
        """Lower the end of the written outputs to ``end`` (exclusive), because an unclean election truncated the output stream.

        Later outputs are written again. If they are not kept, ``must_rewind`` becomes True.
        """
        self.emitted_end = end
        self.compared_end = min(self.compared_end, end)
        self._samples = {number: digest for number, digest in self._samples.items() if number < end}
        if self._last_read[0] >= end:
            self._last_read = (-1, b"")

    def starts_at(self, log_start_offset: int, end_offset: int) -> None:
        """Remove outputs that were written earlier, by the bounds of the output stream when the service starts.

        All outputs below ``log_start_offset`` are written, and those of earlier runs up to ``end_offset`` (exclusive).
        """
        self.outputs_committed(max(log_start_offset, min(end_offset, self._began_at)))

    def proof_at(self, log_start_offset: int, end_offset: int) -> int | None:
        """Return the offset of the output whose digest verifies the restored state: the last output before the snapshot position.

        None: the state needs no verification, or the output stream lacks this output. In the second case, the next output
        verifies the state. The stream has offsets from ``log_start_offset`` to ``end_offset`` (exclusive).
        """
        proof = self._began_at - 1
        return proof if not self._proven and log_start_offset <= proof < end_offset else None

    def prove(self, record: Record) -> None:
        """Compare ``record``, which was read at ``proof_at``, with the state. Raises OutputMismatchError if they differ."""
        theirs = self._digest_in(record, self._began_at - 1)
        if theirs and theirs != self._began_digest:
            raise OutputMismatchError(
                f"The outputs up to {self._began_at} differ from the stored outputs. The service uses an earlier snapshot."
            )
        self._proven = True
        if theirs:
            self.compared_end = max(self.compared_end, self._began_at)

    def check_output(self, record: Record) -> None:
        """Compare the next committed record of the output stream with this node's output, and note it as written.

        Outputs between the previous record and this one were written and then purged. They cannot be written again, because
        an append at their offsets is rejected.

        Raises OutputConflictError if the record is no output of this service, DivergedError if it differs from this node's
        output.
        """
        number = max(self.emitted_end, record.offset)
        theirs = self._digest_in(record, number)
        self.outputs_committed(number)
        output_id, key, value = _id_in(record), record.key, record.value or b""
        headers = tuple((name, content) for name, content in record.headers if name not in _OURS)
        before, digest_before = self._last_read
        chained = theirs and (number == 0 or (before == number - 1 and digest_before))
        if chained and extend_digest(digest_before if number else b"", output_id, key, value, headers) != theirs:
            raise DivergedError(
                f"Output {number} differs from the stored output of another node. The callbacks of a service must be "
                "deterministic. Check that they use no clock, random numbers or I/O"
            )
        if self._stored_outputs and self._stored_outputs[0].number == number:
            own = self._stored_outputs[0]
            same = (self.id_of(own), own.key, own.value, sorted(own.headers)) == (output_id, key, value, sorted(headers))
            if not same or (theirs and own.digest != theirs):
                raise DivergedError(_difference_text(number))
            if theirs or self.compared_end == number:
                self._note_comparison(number, equal=True)
        elif theirs and number >= self.output_count:
            self._sample(number, theirs)
        elif theirs and number == self._began_at - 1:
            self.prove(record)
        self._last_read = (number, theirs)
        self.outputs_committed(number + 1)

    def _sample(self, number: int, digest: bytes) -> None:
        """Store the digest up to the written output ``number``, to compare it later with this node's own output.

        If there are too many digests, drop every second older one.
        """
        self._samples[number] = digest
        if len(self._samples) > MAX_SAMPLES:
            for other in list(self._samples)[:-1:2]:
                del self._samples[other]

    def _digest_in(self, record: Record, number: int) -> bytes:
        """Return the output digest in the header of ``record``. b"": an older version of liftpy wrote the record.

        Raises OutputConflictError if the record is not output ``number`` of this service.
        """
        headers = dict(record.headers)
        output_id = _id_in(record)
        whose = headers.get(OUTPUT_SERVICE, b"").decode(errors="replace")
        if whose and self.service and whose != self.service:
            raise OutputConflictError(
                f"Offset {record.offset} of the output stream was written by service {whose}, but this service is "
                f"{self.service}. Each service needs its own output stream (--output-stream)."
            )
        if (
            record.offset != number
            or headers.get(OUTPUT_NUMBER) != b"%d" % number
            or not output_id.startswith(f"{self.source}/")
        ):
            raise OutputConflictError(
                f"Offset {record.offset} of the output stream contains {output_id or 'a foreign record'}, not output "
                f"{number} of {self.source}. The output stream must be empty at the start and used by this service "
                "only. Choose a new stream (--output-stream)."
            )
        try:
            digest = bytes.fromhex(headers.get(OUTPUT_DIGEST, b"").decode("ascii"))
        except ValueError:
            digest = b"?"
        if digest and len(digest) != DIGEST_SIZE_BYTES:
            raise OutputConflictError(
                f"Offset {record.offset} of the output stream has an invalid digest header. Another program wrote to "
                "this stream. Choose a new stream (--output-stream)."
            )
        return digest

    def id_of(self, output: Output) -> str:
        """Return the id of the output, which is equal on all nodes: stream uid/partition/offset/index."""
        return f"{self.source}/{output.offset}/{output.index}"

    def headers_of(self, output: Output) -> list[tuple[str, bytes]]:
        """Return all headers of the record that stores the output: its own headers and those of liftpy."""
        ours = [
            (OUTPUT_ID, self.id_of(output).encode()),
            (OUTPUT_NUMBER, b"%d" % output.number),
            (OUTPUT_DIGEST, output.digest.hex().encode()),
        ]
        if self.service:
            ours.append((OUTPUT_SERVICE, self.service.encode()))
        return sorted((*output.headers, *ours))


def extend_digest(digest: bytes, output_id: str, key: bytes | None, value: bytes, headers: Pairs) -> bytes:
    """Return the digest after one more output: BLAKE2b of the earlier digest and the output, 16 bytes."""
    named = output_id.encode()
    names = [(name.encode("utf-8", "surrogateescape"), content) for name, content in sorted(headers)]
    header_bytes = b"".join(b"%b\0%d\0%b" % (name, len(content), content) for name, content in names)
    sizes = _SIZES.pack(len(named), 0 if key is None else len(key) + 1, len(header_bytes), len(value))
    parts = b"".join((digest.ljust(DIGEST_SIZE_BYTES, b"\0"), sizes, named, key or b"", header_bytes, value))
    return hashlib.blake2b(parts, digest_size=DIGEST_SIZE_BYTES).digest()


def _id_in(record: Record) -> str:
    return dict(record.headers).get(OUTPUT_ID, b"").decode(errors="replace")


def _difference_text(number: int) -> str:
    return (
        f"output {number}, or one before it, differs from what was written: the service is not deterministic, or the log was cut "
        "below a record whose outputs were written (unclean election)"
    )


# ---- routes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """A route of a service copies outputs that are emitted ``to`` ``name`` to ``stream``, once and in order.

    The output stream is the one sequence of all outputs. The LEADER reads it and appends the outputs of a route to the route's
    partitions. Each batch names the partition end that the LEADER expects. A copy has the number of its output, so the last
    record of a partition shows what was copied. A new LEADER reads that record and continues with the next output. If two
    processes copy at once, both expect the same end: one of them is rejected, reads again, and finds the copies of the other.
    So no further state has to be stored.

    If partitions are added to the target stream, the keys of later outputs select other partitions. So a new LEADER reads the
    numbers of all copies above the lowest last number of a partition, and leaves out these outputs wherever their copy is.

    Worked example: outputs 0 (to "alerts"), 1, 2 (to "alerts"). The LEADER appends the copy of 0, then dies. The next LEADER
    finds number 0 at the end of the alerts stream, and continues with output 1.
    """

    name: str
    stream: str


@dataclass(slots=True)
class RouteTarget:
    """One target partition of a route, with the outputs that wait to be copied to it.

    ``end_offset``: its log end, exclusive. ``last_number``: number of the newest output that it has, -1: none.
    """

    end_offset: int = 0
    last_number: int = -1
    copied_below: int = 0
    """Number below which the partition needs no copies, because retention has deleted them."""
    waiting: list[Record] = field(default_factory=list)
    """Outputs that must be appended next, as stored in the output stream."""


class CopiedOutputs:
    """Numbers of outputs that the target partitions of a route have, as one bit for each number from ``first`` on.

    An output may be in another partition than its key selects now, because partitions were added after it was copied.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._bits = bytearray()

    def add(self, number: int) -> None:
        """Note that a target partition has the output ``number``. A number below ``first`` is ignored."""
        place, bit = divmod(number - self._first, 8)
        if place >= 0:
            self._bits.extend(bytes(max(place + 1 - len(self._bits), 0)))
            self._bits[place] |= 1 << bit

    def __contains__(self, number: int) -> bool:
        place, bit = divmod(number - self._first, 8)
        return 0 <= place < len(self._bits) and bool(self._bits[place] >> bit & 1)


def partitions_of(partition: int, instances: int, partitions: int, route: Route) -> tuple[int, ...]:
    """Return the partitions of a route's target stream to which one instance of a service writes.

    A target partition belongs to one instance. There is an instance for each of the N input partitions. Instance p writes to
    the partitions p, p + N, p + 2N, ...

    Args:
        partition: Number of the instance.
        instances: Number of instances.
        partitions: Number of partitions of the target stream.

    Raises:
        ConfigError: The partitions cannot be divided evenly.
    """
    if partitions % instances:
        raise ConfigError(
            f"--route {route.name}={route.stream}: {partitions} partitions cannot be shared by {instances} "
            f"instances (one per input partition). Use a stream with {instances} partitions, or a multiple of it."
        )
    return tuple(range(partition, partitions, instances))


def place_of(key: bytes | None, places: Sequence[int]) -> int:
    """Return the target partition for an output with ``key``, one of ``places``. An output without a key goes to the first."""
    return places[partition_of(key, len(places))] if key is not None else places[0]


def sort_in(records: Iterable[Record], route: Route, places: dict[int, RouteTarget], copied: CopiedOutputs) -> None:
    """Add each of the output ``records`` that belongs to ``route`` to the ``waiting`` list of its target partition.

    Outputs that a target partition has already are left out. ``places``: target partitions by number. ``copied``: outputs that
    they have.
    """
    order = sorted(places)
    wanted = route.name.encode()
    for record in records:
        if record.header(OUTPUT_TO) != wanted:
            continue
        place = places[place_of(record.key, order)]
        if record.offset >= place.copied_below and record.offset not in copied:
            place.waiting.append(record)


def headers_of(record: Record) -> Pairs:
    """Return the headers of a routed output: all headers except the route and the digest."""
    return tuple((name, value) for name, value in record.headers if name not in _NOT_COPIED)


def number_of(record: Record, source: str, service: str, route: Route) -> int:
    """Return the number of the output whose copy is ``record``, a record of the target stream of ``route``.

    Raises OutputConflictError if this service did not write the record. ``source``: uid and partition of its input.
    """
    output_id, number = record.header(OUTPUT_ID, b"") or b"", record.header(OUTPUT_NUMBER, b"") or b""
    whose = record.header(OUTPUT_SERVICE)
    if not output_id.startswith(f"{source}/".encode()) or whose not in (None, service.encode()) or not number.isdigit():
        raise OutputConflictError(
            f"Offset {record.offset} of {route.stream} was not written by {service or 'this service'}. A stream "
            "of a route may be used by one service only. Choose a new stream (--route)."
        )
    return int(number)
