"""What was sent, what was answered, and what must hold of logs and readers because of that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from liftpy.config import StreamConfig
from liftpy.core.wire.batch import Record
from liftpy.core.wire.filters import Filter
from liftpy.errors import LiftError, NotFoundError, OutcomeUnknownError, PublishRejectedError, UnavailableError

_NS = 1_000_000_000
_AGE_SLACK_NS = 5 * _NS
"""Between the moment in which a record is sent and the time that its leader stamps it with."""
ID_HEADER = "id"
MARKER = "marker"
"""Writer of the last record of each partition, by which readers know that they have all."""


class Outcome(Enum):
    """What its writer knows about a record."""

    OPEN = "open"
    ACKED = "acked"
    UNKNOWN = "unknown"
    REJECTED = "rejected"


@dataclass(slots=True)
class Sent:
    """One record. ``uids``: of the streams that it may be in. ``offset``: as acknowledged, -1: not known."""

    id: str
    writer: str
    number: int
    key: bytes | None
    value: bytes | None
    sent_ns: int
    uids: set[str]
    partition: int = -1
    offset: int = -1
    outcome: Outcome = Outcome.OPEN
    why: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """A tombstone has no value that could carry its id."""
        return {ID_HEADER: self.id} if self.value is None else {}


def id_of(record: Record) -> str:
    """Which record it is."""
    head = record.header(ID_HEADER)
    return (head if head is not None else (record.value or b"").split(b"|", 1)[0]).decode()


@dataclass(slots=True)
class Reading:
    """What one reader was given of one partition. ``start`` inclusive, ``passed`` exclusive: what it has read."""

    reader: str
    uid: str
    partition: int
    start: int = 0
    passed: int = 0
    given: dict[int, str] = field(default_factory=dict)
    """Offset -> id."""


@dataclass(slots=True)
class FoundLog:
    """One partition as a client reads it when all is quiet, from ``start`` on, before ``end``."""

    partition: int
    start: int
    end: int
    records: list[Record]


class Model:
    """``now_ns``: the wall clock of the nodes."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.uid = ""
        self.recreating: set[str] | None = None
        """Ids of the records that were on their way while the stream was deleted and made again."""
        self.config = StreamConfig()
        self.violations: list[str] = []
        self.ordered_writers: set[str] = set()
        self.truncated: dict[tuple[str, int], int] = {}
        """(uid, partition) -> records before that offset may be gone."""
        self.purges: list[tuple[str, int, Filter, int]] = []
        self.subject = ""
        self.retentions: list[StreamConfig] = []
        """Every configuration that the stream has had: what one of them may take stays taken."""

    # ---- what happens ----------------------------------------------------------------------------------------------------
    def violate(self, text: str) -> None:
        """Something that must hold does not."""
        if text not in self.violations:
            self.violations.append(text)

    def begin(self, writer: str, number: int, now_ns: int, *, key: bytes | None, filler: bytes, tombstone: bool) -> Sent:
        """A record is about to be sent."""
        id = f"{writer}.{number}"
        value = None if tombstone else id.encode() + b"|" + filler
        if self.recreating is not None:
            self.recreating.add(id)
        made = self.sent[id] = Sent(id, writer, number, key, value, now_ns, {self.uid})
        return made

    def acked(self, sent: Sent, partition: int, offset: int) -> None:
        """Its writer was told where it is."""
        if sent.outcome is Outcome.ACKED and self.uid in sent.uids and (sent.partition, sent.offset) != (partition, offset):
            self.violate(f"{sent.id} was acknowledged at {sent.partition}:{sent.offset} and again at {partition}:{offset}")
        sent.partition, sent.offset, sent.outcome = partition, offset, Outcome.ACKED

    @contextmanager
    def noting(self, sents: Sent | Sequence[Sent]) -> Iterator[None]:
        """What an error says about records; it is not raised further."""
        try:
            yield
        except (PublishRejectedError, OutcomeUnknownError, UnavailableError, NotFoundError) as error:
            refused = not isinstance(error, OutcomeUnknownError)
            for sent in [sents] if isinstance(sents, Sent) else sents:
                if sent.outcome is Outcome.OPEN:
                    sent.outcome = Outcome.REJECTED if refused else Outcome.UNKNOWN
                    sent.why = f"{type(error).__name__} {getattr(error, 'reason', '')} {error}"

    @staticmethod
    def unanswered(sents: Iterable[Sent]) -> None:
        """Nobody says any more what became of those without an outcome."""
        for sent in sents:
            if sent.outcome is Outcome.OPEN:
                sent.outcome = Outcome.UNKNOWN

    def recreated(self, uid: str) -> None:
        """The stream was deleted and made again: what was not answered then may be in either."""
        unsure, self.recreating = self.recreating or set(), None
        for sent in self.sent.values():
            if sent.id in unsure or sent.outcome in (Outcome.OPEN, Outcome.UNKNOWN):
                sent.uids.add(uid)
        self.uid = uid

    @property
    def may_shorten(self) -> bool:
        """Whether any feature may remove records."""
        by_settings = any(config.is_cleaned or config.has_retention for config in self.retentions)
        return by_settings or bool(self.purges or self.truncated)

    # ---- what may be gone ------------------------------------------------------------------------------------------------
    def may_be_gone(self, sent: Sent, logs: FoundLog, newer: Newer) -> bool:
        """Whether a feature may have removed an acknowledged record."""
        if sent.offset < logs.start:
            return True  # whether the log may start there is checked apart
        for config in self.retentions:
            if config.compaction and sent.key is not None and (sent.value is None or newer.of_key(sent)):
                return True
            if config.max_per_subject and newer.in_subject(sent) >= config.max_per_subject:
                return True
        return any(
            uid == self.uid and partition == sent.partition and sent.offset < end and self._purges(wanted, sent)
            for uid, partition, wanted, end in self.purges
        )

    def may_be_cleaned(self, id: str, offset: int, log: FoundLog, newer: Newer) -> bool:
        """Whether a reader may have met a replica that has removed a record which another replica still holds."""
        sent = self.sent.get(id)
        return sent is not None and self.may_be_gone(replace(sent, partition=log.partition, offset=offset), log, newer)

    def _purges(self, wanted: Filter, sent: Sent) -> bool:
        return (not wanted.keys or sent.key in wanted.keys) and (not wanted.subjects or self.subject in wanted.subjects)

    def _may_start_at(self, log: FoundLog, now_ns: int) -> int:
        """The highest offset at which the log may start."""
        highest = self.truncated.get((self.uid, log.partition), 0)
        for config in self.retentions:
            if config.retention_records:
                highest = max(highest, log.end - config.retention_records)
            if config.retention_age_s:
                age_ns = round(config.retention_age_s * _NS)
                young = [s.offset for s in self._acked(log) if now_ns - s.sent_ns < age_ns - _AGE_SLACK_NS]
                highest = max(highest, min(young, default=log.end))
        return highest

    def _acked(self, log: FoundLog) -> Iterator[Sent]:
        for sent in self.sent.values():
            acked = sent.outcome is Outcome.ACKED and sent.uids == {self.uid}
            if acked and sent.partition == log.partition and sent.offset < log.end:
                yield sent

    # ---- what must hold --------------------------------------------------------------------------------------------------
    def check_log(self, log: FoundLog, now_ns: int, where: str = "the log") -> None:
        """Every acknowledged record is there once, nothing else is there."""
        at: dict[str, int] = {}
        last = -1
        order: dict[str, int] = {}
        place = f"{where} of partition {log.partition}"
        for record in log.records:
            id = id_of(record)
            sent = self.sent.get(id)
            if record.offset <= last:
                self.violate(f"{place}: offset {record.offset} comes after {last}")
            last = record.offset
            if id in at:
                self.violate(f"{place}: {id} is there twice, at {at[id]} and {record.offset}")
            at.setdefault(id, record.offset)
            if sent is None or self.uid not in sent.uids:
                self.violate(f"{place}: {id or record.value!r} at {record.offset} was never sent to this stream")
                continue
            if (sent.key, sent.value) != (record.key, record.value):
                self.violate(f"{place}: {id} at {record.offset} has another key or value than was sent")
            if sent.outcome is Outcome.REJECTED:
                self.violate(f"{place}: {id} at {record.offset} was rejected: {sent.why}")
            if sent.writer in self.ordered_writers:
                if sent.number < order.get(sent.writer, -1):
                    self.violate(f"{place}: {id} comes after {sent.writer}.{order[sent.writer]}")
                order[sent.writer] = sent.number
        if log.start > (most := self._may_start_at(log, now_ns)):
            self.violate(f"{place}: it starts at {log.start}, and may start at {most} at most")
        newer = Newer(self, log)
        for sent in self._acked(log):
            found = at.get(sent.id)
            if found is None and not self.may_be_gone(sent, log, newer):
                self.violate(f"{place}: {sent.id} was acknowledged at {sent.offset} and is not there")
            elif found is not None and found != sent.offset:
                self.violate(f"{place}: {sent.id} was acknowledged at {sent.offset} and is at {found}")
        self._check_newest(log, newer, at, place)

    def _check_newest(self, log: FoundLog, newer: Newer, at: dict[str, int], place: str) -> None:
        """No older value of a key outlives a record that deleted it, unless both are there [compaction]."""
        if not any(config.compaction for config in self.retentions):
            return
        for key, newest in newer.newest_by_key.items():
            if newest.id in at or newest.offset < log.start:
                continue
            for record in log.records:
                if record.key == key and record.offset < newest.offset and newest.value is None:
                    self.violate(f"{place}: {key!r} was deleted at {newest.offset}, and its value at {record.offset} is back")

    def check_reading(self, reading: Reading, log: FoundLog) -> None:
        """Whether a reader was given what is in its range."""
        who = f"{reading.reader} of partition {reading.partition}"
        if reading.uid != self.uid:
            return  # of a stream that is gone
        there = {record.offset: id_of(record) for record in log.records}
        newer = Newer(self, log)
        for offset, id in there.items():
            is_down_or_drained = reading.start <= offset < reading.passed and offset not in reading.given
            if is_down_or_drained and not self.may_be_cleaned(id, offset, log, newer):
                self.violate(f"{who}: it has passed {id} at {offset} and was not given it (up to {reading.passed})")
        for offset, id in reading.given.items():
            if there.get(offset, id) != id:
                self.violate(f"{who}: it was given {id} at {offset}, where {there[offset]} is")
            self.check_given(who, offset, id, reading.uid, reading.partition)
        end = max(there, default=-1)
        if reading.given and max(reading.given) > end:
            self.violate(f"{who}: it was given {max(reading.given)}, behind the last record {end}")

    def check_given(self, who: str, offset: int, id: str, uid: str, partition: int) -> None:
        """Whether something that is given is right by what its writer knows."""
        sent = self.sent.get(id)
        if sent is None or uid not in sent.uids:
            self.violate(f"{who}: it was given {id} at {offset}, which was never sent to this stream")
        elif sent.outcome is Outcome.REJECTED:
            self.violate(f"{who}: it was given {id} at {offset}, which was rejected: {sent.why}")
        elif sent.outcome is Outcome.ACKED and sent.uids == {uid} and (sent.partition, sent.offset) != (partition, offset):
            self.violate(f"{who}: it was given {id} at {partition}:{offset}, acknowledged at {sent.partition}:{sent.offset}")

    def check_once(self, what: str, found: Iterable[str], logs: Iterable[FoundLog]) -> None:
        """Each record that is in the logs has exactly one output in ``found``; others at most one."""
        seen: set[str] = set()
        for id in found:
            if id in seen:
                self.violate(f"{what}: {id} twice")
            seen.add(id)
            sent = self.sent.get(id)
            if sent is None:
                self.violate(f"{what}: {id} was never sent")
            elif sent.outcome is Outcome.REJECTED:
                self.violate(f"{what}: {id} was rejected: {sent.why}")
        for log in logs:
            newer = Newer(self, log)
            for record in log.records:
                if id_of(record) not in seen and not self.may_be_cleaned(id_of(record), record.offset, log, newer):
                    self.violate(f"{what}: {id_of(record)} at {log.partition}:{record.offset} is missing")


class Newer:
    """Which records a later one of one partition supersedes, by all that was acknowledged or is there."""

    def __init__(self, model: Model, log: FoundLog) -> None:
        at = {id_of(record): record.offset for record in log.records}
        known: list[tuple[int, Sent]] = []
        self._unsure: set[bytes | None] = set()
        self._unsure_count = 0
        for sent in model.sent.values():
            if model.uid not in sent.uids:
                continue
            if sent.outcome is Outcome.ACKED and sent.uids == {model.uid}:
                if sent.partition == log.partition and sent.offset < log.end:
                    known.append((sent.offset, sent))
            elif sent.id in at:
                known.append((at[sent.id], sent))
            elif sent.outcome is not Outcome.REJECTED:
                self._unsure.add(sent.key)
                self._unsure_count += 1
        known.sort(key=lambda one: one[0])
        self._offsets = [offset for offset, _ in known]
        self._last: dict[bytes, int] = {}
        self.newest_by_key: dict[bytes, Sent] = {}
        """Of keys of which all records are known."""
        for offset, sent in known:
            if sent.key is not None:
                self._last[sent.key] = offset
                if sent.key not in self._unsure:
                    self.newest_by_key[sent.key] = sent

    def of_key(self, sent: Sent) -> bool:
        """Whether there is, or may be, a later record of its key."""
        assert sent.key is not None
        return sent.key in self._unsure or self._last.get(sent.key, -1) > sent.offset

    def in_subject(self, sent: Sent) -> int:
        """How many later records there are, or may be, in its partition; all have one subject."""
        return len(self._offsets) - bisect_right(self._offsets, sent.offset) + self._unsure_count


def check_replicas(model: Model, partition: int, held: dict[str, list[Record]], starts: dict[str, int]) -> None:
    """All replicas hold the same records; where records are cleaned, the same newest one of each key."""
    cleaned = any(config.is_cleaned for config in model.retentions) or bool(model.purges)
    start = max(starts.values(), default=0)
    first, *others = sorted(held)
    for other in others:
        one, two = ({r.offset: r for r in held[node] if r.offset >= start} for node in (first, other))
        for offset in sorted(one.keys() | two.keys()):
            a, b = one.get(offset), two.get(offset)
            if a is not None and b is not None and a != b:
                model.violate(f"replicas of partition {partition}: {first} and {other} differ at {offset}: {a} and {b}")
            if not cleaned and (a is None) != (b is None):
                model.violate(f"replicas of partition {partition}: {first if a is None else other} lacks {offset}")
        if cleaned:
            _check_views(model, partition, (first, _newest(one.values())), (other, _newest(two.values())))


def _newest(records: Iterable[Record]) -> dict[bytes, str]:
    """Key -> its newest record; a deleted key has none."""
    found: dict[bytes, str] = {}
    for record in records:
        if record.key is not None:
            found[record.key] = id_of(record)
            if record.value is None:
                del found[record.key]
    return found


def _check_views(model: Model, partition: int, one: tuple[str, dict[bytes, str]], two: tuple[str, dict[bytes, str]]) -> None:
    (first, a), (other, b) = one, two
    purged = {key for _, at, wanted, _ in model.purges if at == partition for key in wanted.keys}
    if any(config.max_per_subject for config in model.retentions) or any(wanted.subjects for _, _, wanted, _ in model.purges):
        return  # when housekeeping comes by differs between replicas
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key) and key not in purged:
            newest = f"{a.get(key)} on {first}, {b.get(key)} on {other}"
            model.violate(f"replicas of partition {partition}: the newest of {key!r} is {newest}")


WRITING_ERRORS: tuple[type[LiftError], ...] = (PublishRejectedError, OutcomeUnknownError, UnavailableError, NotFoundError)
