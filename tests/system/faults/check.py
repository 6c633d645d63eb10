"""The verdict over the logs of all replicas, read from their files: every ack kept, every replica equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from liftpy.core.wire.batch import split_batches
from liftpy.errors import CorruptionError
from tests.system.faults.load import Acked, payload

_SHOWN = 5


@dataclass(slots=True)
class Verdict:
    """What was found. All must be zero or empty but the first three."""

    acknowledged: int = 0
    log_end_offset: int = 0
    """Exclusive, of the replicas."""
    replicas: int = 0
    lost: int = 0
    """Acked records that are missing on a replica, each replica for itself."""
    changed: int = 0
    """Acked offsets that hold other bytes on a replica."""
    acked_twice: int = 0
    """Offsets that two messages were told."""
    stored_twice: int = 0
    """Messages that are in a log more than once: nobody sent them again."""
    unequal: list[str] = field(default_factory=list)
    """Replicas whose bytes differ from the first one's."""
    damaged: list[str] = field(default_factory=list)
    """Replicas whose bytes are no log."""
    examples: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether nothing was lost or changed, and all replicas are equal."""
        return not (self.lost or self.changed or self.acked_twice or self.stored_twice or self.unequal or self.damaged)

    def found(self, what: str) -> None:
        """Keep the first few examples."""
        if len(self.examples) < _SHOWN:
            self.examples.append(what)


def partition_folder(data: Path, node: str, stream: str, uid: str) -> Path:
    """Where ``node`` keeps partition 0."""
    return data / node / "streams" / f"{stream}-{uid}" / "0"


def read_log(folder: Path) -> bytes:
    """The bytes of all segments, in order."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def values_of(log: bytes) -> list[bytes | None]:
    """The value of each record by offset; AssertionError where the log has a hole."""
    values: list[bytes | None] = []
    for batch in split_batches(memoryview(log)):
        assert batch.base_offset == len(values), f"a batch begins at {batch.base_offset}, the one before ends at {len(values)}"
        values.extend(None if value is None else bytes(value) for value in batch.values())
    return values


def check(acked: Iterable[Acked], folders: dict[str, Path]) -> Verdict:
    """Compare every ack with every replica's log, and the logs with each other."""
    verdict = Verdict(replicas=len(folders))
    promised: dict[int, int] = {}
    for ack in acked:
        verdict.acknowledged += 1
        if promised.setdefault(ack.offset, ack.number) != ack.number:
            verdict.acked_twice += 1
            verdict.found(f"offset {ack.offset} was acked to messages {promised[ack.offset]} and {ack.number}")
    first_name, first_digest = "", b""
    for name, folder in folders.items():
        log = read_log(folder)
        digest = hashlib.sha256(log).digest()
        if not first_name:
            first_name, first_digest = name, digest
        elif digest != first_digest:
            verdict.unequal.append(name)
            verdict.found(f"the log of {name} ({len(log)} bytes) differs from the one of {first_name}")
        if name == first_name or digest != first_digest:
            try:
                _check_one(name, values_of(log), promised, verdict)
            except CorruptionError as error:
                verdict.damaged.append(name)
                verdict.found(f"{name}: {error}")
    return verdict


def _check_one(name: str, values: list[bytes | None], promised: dict[int, int], verdict: Verdict) -> None:
    verdict.log_end_offset = max(verdict.log_end_offset, len(values))
    again = len(values) - len(set(values))
    if again:
        verdict.stored_twice += again
        verdict.found(f"{name} holds {again} messages more than once")
    for offset, number in promised.items():
        if offset >= len(values):
            verdict.lost += 1
            verdict.found(f"{name}: message {number}, acked at {offset}, is behind the log's end {len(values)}")
        elif values[offset] != payload(number):
            verdict.changed += 1
            verdict.found(f"{name}: message {number}, acked at {offset}, is {values[offset]!r} there")
