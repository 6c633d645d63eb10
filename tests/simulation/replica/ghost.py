"""Ghost state: the true state of the cluster, which no node can see. The checkers compare the nodes with it.

Every batch has a chain: a digest of itself and of the whole log before it. Equal chains mean equal prefixes, so "the logs agree" is
one comparison [D4, D5]. A chain is found by (LeaderEpoch, last offset), of which there may only ever be one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from liftpy.core.base.invariants import check
from liftpy.core.wire.batch import BatchHeader
from tests.simulation.replica.messages import key_of

Key = tuple[int, int]


@dataclass(slots=True)
class Shadow:
    """The expected log of one replica on disk. It survives the process."""

    lasts: list[int] = field(default_factory=list)
    """Inclusive last offset of each batch, ascending."""
    chains: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    log_start_offset: int = 0
    durable_end_offset: int = 0
    """Exclusive: everything below has been flushed."""
    base_chain: int | None = 0
    """Chain of everything before the first batch. None: not known, because the log began again."""

    @property
    def log_end_offset(self) -> int:
        """Exclusive end of the log."""
        return self.lasts[-1] + 1 if self.lasts else self.log_start_offset

    def chain_at(self, offset: int) -> int | None:
        """Return the digest of the log through ``offset``, None unless a batch that is here ends there."""
        index = bisect_right(self.lasts, offset) - 1
        return self.chains[index] if index >= 0 and self.lasts[index] == offset else None

    def cut(self, end_offset: int) -> list[Key]:
        """Truncate, and return (LeaderEpoch, last offset) of the removed batches."""
        keep = bisect_right(self.lasts, end_offset - 1)
        gone = list(zip(self.epochs[keep:], self.lasts[keep:], strict=True))
        del self.lasts[keep:], self.chains[keep:], self.epochs[keep:]
        self.durable_end_offset = min(self.durable_end_offset, end_offset)
        return gone

    def drop_prefix(self, log_start_offset: int) -> None:
        """Delete the records that retention releases."""
        drop = bisect_right(self.lasts, log_start_offset - 1)
        if drop:
            self.base_chain = self.chains[drop - 1]
        del self.lasts[:drop], self.chains[:drop], self.epochs[:drop]
        self.log_start_offset = log_start_offset

    def scan(self) -> tuple[tuple[int, int], ...]:
        """(LeaderEpoch, first offset) as a scan of the log gives them [D13]."""
        entries: list[tuple[int, int]] = []
        start = self.log_start_offset
        for last, epoch in zip(self.lasts, self.epochs, strict=True):
            if not entries or entries[-1][0] != epoch:
                entries.append((epoch, start))
            start = last + 1
        return tuple(entries)


@dataclass(frozen=True, slots=True)
class GhostPurge:
    """A purge of the messages whose key is ``key`` (-1: of all), below ``end_offset`` (exclusive). ``deletes``: see ``key_of``."""

    number: int
    key: int
    end_offset: int
    deletes: bool = False

    def gives_up(self, offset: int, message_id: int) -> bool:
        """Return whether that message is purged."""
        return offset < self.end_offset and self.key in (-1, key_of(message_id, deletes=self.deletes))


@dataclass(slots=True, kw_only=True)
class PartitionGhost:
    """Ghost state of one partition."""

    chains: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """(LeaderEpoch, last offset) -> (chain, CRC) of every batch that was ever appended anywhere."""
    spans: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """(LeaderEpoch, last offset) -> (base offset, message ids)."""
    committed: dict[int, Key] = field(default_factory=dict)
    """Last offset of every batch at or below the true HW -> its key: the one true log."""
    lasts: list[int] = field(default_factory=list)
    """Keys of ``committed``, ascending."""
    disk_lost_in_epoch: int = -1
    """LeaderEpoch in which a fault last took away what a disk had flushed."""
    high_watermark: int = -1
    """The true HW: the highest that any node ever had."""
    leaders: dict[int, tuple[str, int]] = field(default_factory=dict)
    """LeaderEpoch -> (node, incarnation) that acted as leader in it."""
    opened_epoch: int = 0
    """The highest LeaderEpoch whose leader has opened the subject: no earlier one may speak."""
    acked_all: dict[int, Key] = field(default_factory=dict)
    """Last offset of each publish that was acknowledged ALL -> its batch."""
    acks_all: int = 0
    """Number of batches that were acked with ALL."""
    latest: int = -1
    """The highest offset that was answered as latest."""
    log_start_offset: int = 0
    """The highest log start of any replica: below it records may be gone."""
    may_be_gone: bool = False
    """True if a fault has hit the last disk with everything. Missing records are then lost by the fault, not by a bug."""
    led_by_older: bool = False
    """A log that went back in time, unseen, has led, and those that had more were not there."""
    shadows: dict[str, Shadow] = field(default_factory=dict)
    """Shadow logs by host."""
    purges: list[GhostPurge] = field(default_factory=list)
    """Purges of operators."""
    deletes: bool = False
    """True if the stream has delete markers."""
    of_key: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Key -> (offset, message id) of its committed records, ascending: see ``records_of_keys``."""
    _of_key_through: list[Key] = field(default_factory=list)
    """The committed batches that ``of_key`` has."""
    newest_ids: dict[str, int] = field(default_factory=dict)
    """Publisher -> id of its newest committed message [A4]."""

    def push(self, shadow: Shadow, header: BatchHeader, ids: tuple[int, ...] | None, where: str) -> None:
        """Append ``header`` to a replica's log. Its identity determines all earlier batches [D5]."""
        key = (header.leader_epoch, header.last_offset)
        base = header.base_offset
        check(base == shadow.log_end_offset or not shadow.lasts, "D15", where, "appends", base, "at", shadow.log_end_offset)
        if shadow.epochs:
            check(header.leader_epoch >= shadow.epochs[-1], "D14", where, "epoch", key, "after", shadow.epochs[-1])
        if header.is_compacted:
            self._push_what_it_was(shadow, header)
            return
        before = shadow.chains[-1] if shadow.chains else shadow.base_chain
        known = self.chains.get(key)
        if known is None:
            check(ids is not None and before is not None, "D5", where, "a batch from nowhere", key)
            known = self.chains[key] = (hash((before, header.crc, base, *key)), header.crc)
            self.spans[key] = (base, ids or ())
        chain, crc = known
        check(crc == header.crc, "D5", where, "other bytes at", key)
        if before is not None:
            check(chain == hash((before, header.crc, base, *key)), "D5", where, "another prefix before", key)
        shadow.lasts.append(header.last_offset)
        shadow.chains.append(chain)
        shadow.epochs.append(header.leader_epoch)

    def _push_what_it_was(self, shadow: Shadow, header: BatchHeader) -> None:
        """Compaction left ``header`` of one batch or several: to the spectator they are still there."""
        first, epoch = max(header.base_offset, shadow.log_end_offset), header.leader_epoch
        for last in sorted(last for e, last in self.spans if e == epoch and first <= last <= header.last_offset):
            shadow.lasts.append(last)
            shadow.chains.append(self.chains[epoch, last][0])
            shadow.epochs.append(epoch)

    def chain_below(self, offset: int) -> int | None:
        """Return the digest of everything before ``offset`` in the one true log; None where no committed batch ends there."""
        key = self.committed.get(offset - 1)
        return 0 if not offset else None if key is None else self.chains[key][0]

    def commit(self, shadow: Shadow, low: int, high: int, where: str) -> list[Key]:
        """A replica takes (low, high] for committed: it must be the one true log [D1, D4, R3]. Returns what is new."""
        first, last = bisect_right(shadow.lasts, low), bisect_right(shadow.lasts, high)
        check(
            high < shadow.log_start_offset or (last > 0 and shadow.lasts[last - 1] == high),
            "D23", where, "HW inside a batch or beyond the log:", high,
        )  # fmt: skip
        fresh = []
        for index in range(first, last):
            key = (shadow.epochs[index], shadow.lasts[index])
            held = self.committed.get(key[1])
            if held is None:
                check(key[1] > self.high_watermark, "D4", where, "commits", key, "inside what is committed")
                self.committed[key[1]] = key
                self.lasts.append(key[1])
                self.high_watermark = key[1]
                fresh.append(key)
            else:
                check(held == key, "D4", where, "has", key, "where the committed log has", held)
        return fresh

    def records_of_keys(self) -> dict[int, list[tuple[int, int]]]:
        """Key -> (offset, message id) of its committed records, ascending."""
        known = len(self._of_key_through)
        if known > len(self.lasts) or (known and self.committed[self.lasts[known - 1]] != self._of_key_through[-1]):
            self.of_key, self._of_key_through, known = {}, [], 0  # an unclean election has taken some of them
        for last in self.lasts[known:]:
            key = self.committed[last]
            base, ids = self.spans[key]
            for place, message_id in enumerate(ids):
                of = self.of_key.setdefault(key_of(message_id, deletes=self.deletes), [])
                of.append((base + place, message_id))
            self._of_key_through.append(key)
        return self.of_key

    def message_at(self, offset: int) -> int:
        """Return the committed message at ``offset``; -1: none is."""
        index = bisect_left(self.lasts, offset)
        key = self.committed.get(self.lasts[index]) if index < len(self.lasts) else None
        base, ids = self.spans[key] if key is not None else (0, ())
        return ids[offset - base] if 0 <= offset - base < len(ids) else -1

    def is_purged(self, offset: int, message_id: int) -> bool:
        """Return whether operators gave that message up."""
        return any(purge.gives_up(offset, message_id) for purge in self.purges)

    def known_through(self, shadow: Shadow, high: int) -> int:
        """Return up to where a new process's log is the true one, at most ``high``."""
        if not self.led_by_older:
            return high
        through = shadow.log_start_offset - 1
        for epoch, last in zip(shadow.epochs, shadow.lasts, strict=True):
            if last > high or self.committed.get(last) != (epoch, last):
                break
            through = last
        return through

    def lost(self, end_offset: int) -> None:
        """An operator has had an unclean election: what was committed from ``end_offset`` on is gone, and was allowed to go."""
        self.purges = []
        self.committed = {last: key for last, key in self.committed.items() if last < end_offset}
        self.acked_all = {last: key for last, key in self.acked_all.items() if last < end_offset}
        self.lasts = [last for last in self.lasts if last < end_offset]
        self.high_watermark = min(self.high_watermark, end_offset - 1)
        self.latest = min(self.latest, end_offset - 1)

    def replaced_by(self, shadow: Shadow, low: int, high: int) -> None:
        """Note that the log of an older copy led, and (low, high] of it is committed: other committed records there are lost."""
        for epoch, last in zip(shadow.epochs, shadow.lasts, strict=True):
            held = self.committed.get(last)
            if low < last <= high and held != (epoch, last) and (held is not None or last < self.high_watermark):
                self.lost(self.spans[epoch, last][0])
                return

    def holds_committed(self, shadow: Shadow, end_offset: int) -> bool:
        """Return whether ``shadow`` below ``end_offset`` (exclusive) has all committed records [D2, D3]."""
        if self.high_watermark < max(shadow.log_start_offset, self.log_start_offset):
            return end_offset > self.high_watermark or self.high_watermark < shadow.log_start_offset
        if end_offset <= self.high_watermark:
            return False
        return shadow.chain_at(self.high_watermark) == self.chains[self.committed[self.high_watermark]][0]
