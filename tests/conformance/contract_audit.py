"""The claims of the ordering contract (``liftpy/core/replication/effects.py``), by their numbers, read against a shell while it runs.

What is on the disk is asked of the disk: what a power cut at this very moment would leave of the folder. So no bookkeeping of the
log or of the shell is believed. One Audit watches one replica; ``test_ordering_contract.py`` sets it upon both shells.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from liftpy.core.log.epoch_promises import PROMISES_NAME, decode_promises
from liftpy.core.log.log import Log
from liftpy.core.log.small_files import CHECKPOINT_NAME, decode_checkpoint
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.messages import FetchRequest
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, BatchHeader, parse_header


class ContractBroken(AssertionError):
    """Names the claim. ``seen``: where a shell would turn an error into something else, it is noted here too."""

    seen: list[ContractBroken] = []  # noqa: RUF012

    def __init__(self, text: str) -> None:
        super().__init__(text)
        ContractBroken.seen.append(self)


def headers_in(data: bytes | memoryview) -> list[BatchHeader]:
    """Of all whole batches."""
    view, position, found = memoryview(data), 0, []
    while len(view) - position >= HEADER_SIZE_BYTES:
        header = parse_header(view, position)
        if position + header.size_bytes > len(view):
            break
        found.append(header)
        position += header.size_bytes
    return found


def batches_in(storage: MemoryStorage) -> dict[int, BatchHeader]:
    """Base offset -> batch, of all segments in the folder."""
    logs = [storage.load(name) or b"" for name in storage.names() if name.endswith(".log")]
    return {header.base_offset: header for data in logs for header in headers_in(data)}


class Audit:
    """Of one replica, its log and its folder. ``checks``: how often each claim was looked at."""

    def __init__(
        self,
        where: str,
        log: Log,
        storage: Callable[[], MemoryStorage],
        promises: Callable[[], MemoryStorage],
        *,
        threads: bool,
    ) -> None:
        self.where = where
        self.log = log
        self._storage = storage
        self._promises = promises
        """Folder of the journal of promises: of this partition's alone."""
        self._threads = threads
        """Flushes run beside it: what was true a moment ago may not be what a power cut leaves now."""
        self.checks: Counter[str] = Counter()
        self._to_do: deque[do.Effect] = deque()
        """What the last step asked for and nobody has begun to carry out."""
        self._doing: do.Effect | None = None
        self._looked: tuple[MemoryStorage, int, dict[int, BatchHeader]] | None = None
        """The folder, how many changing calls it had seen, and what a power cut would leave of its segments."""

    def _check(self, claim: str, holds: bool, *details: object) -> None:
        self.checks[claim] += 1
        if not holds:
            raise ContractBroken(f"claim {claim}: {self.where}: {' '.join(map(str, details))}")

    def _after_a_power_cut(self) -> dict[int, BatchHeader]:
        storage = self._storage()
        known = self._looked
        if self._threads or known is None or known[0] is not storage or known[1] != storage.calls:
            known = self._looked = storage, storage.calls, batches_in(storage.crash())
        return known[2]

    def _on_disk_through(self, offset: int) -> bool:
        """Whether a power cut now would leave every record from the log start through ``offset``."""
        after = self._after_a_power_cut()
        at = self.log.log_start_offset
        bases = sorted(base for base in after if after[base].last_offset >= at)
        for base in bases:
            if at > offset or base > at:
                break
            at = after[base].last_offset + 1
        return at > offset

    # ---- steps ---------------------------------------------------------------------------------------------------------
    def watch(self, replica: Any) -> None:
        """Look at each event before ``replica`` takes it, and at what it answers."""
        step = replica.step

        def watched(event: ev.Event, now_ns: int) -> list[do.Effect]:
            self._fed(event)
            effects: list[do.Effect] = step(event, now_ns)
            self._to_do = deque(effects)
            return effects

        replica.step = watched

    def carries_out(self, effect: do.Effect, act: Callable[[], None]) -> None:
        """The shell carries out ``effect`` by ``act``."""
        expected = self._to_do.popleft() if self._to_do else None
        self._check("1", expected is effect, "carries out", effect, "where", expected, "is next")
        self._before(effect)
        self._doing = effect
        try:
            act()
        except ContractBroken:
            raise
        except Exception as error:
            self._check("8", False, effect, "raises", repr(error))
        finally:
            self._doing = None
        self._after(effect)

    def _fed(self, event: ev.Event) -> None:
        self._check("1", not (self._to_do or self._doing), "takes", event, "before the effects of the last step are done")
        match event:
            case ev.LogFlushed():
                end_offset = min(event.end_offset, self.log.log_end_offset)  # a cut may come between: the replica knows of it
                self._check("3", self._on_disk_through(end_offset - 1), event, "is not on the disk")
            case ev.LogTruncated():
                self._check("5", self._is_cut_to(event.end_offset), event, "is not on the disk")
            case ev.LeaderEpochPersisted():
                left = decode_promises(self._promises().crash().load(PROMISES_NAME))
                is_stored = max(left.values(), default=0) >= event.leader_epoch
                self._check("6", is_stored, event, "is not on the disk:", left)

    def _is_cut_to(self, end_offset: int) -> bool:
        return all(header.last_offset < end_offset for header in self._after_a_power_cut().values())

    def _before(self, effect: do.Effect) -> None:
        match effect:
            case FetchRequest(offset=offset) | do.SendAcks(through_offset=offset):
                self._check("3", self._on_disk_through(offset), effect, "names what is not on the disk")
            case do.ReportPromotion(newest_offset=offset) | do.ReportLeader(newest_offset=offset):
                self._check("3", self._on_disk_through(offset), effect, "names what is not on the disk")
            case do.RaiseHighWatermark(high_watermark=offset):
                self._check("3", self._on_disk_through(offset), effect, "names what is not on the disk")

    def _after(self, effect: do.Effect) -> None:
        failed = bool(self.log.closed)
        match effect:
            case do.AppendBatch():
                written = batches_in(self._storage())
                self._check("2", failed or effect.base_offset in written, effect, "is not written")
            case do.AppendFetched():
                written = batches_in(self._storage())
                last = max((header.last_offset for header in written.values()), default=-1)
                self._check("2", failed or last >= effect.last_offset, effect, "is not written")
            case do.RaiseHighWatermark():
                told = self.log.high_watermark
                self._check("7", told == effect.high_watermark, effect, "but the log says", told)
        stored = decode_checkpoint(self._storage().load(CHECKPOINT_NAME))
        if stored is not None and stored.high_watermark >= self.log.log_start_offset:
            self._check("7", self._on_disk_through(stored.high_watermark), stored, "is stored before its records")

    # ---- what leaves ---------------------------------------------------------------------------------------------------
    def sends_fetch(self, offset: int) -> None:
        """A ReplicationRequest left: it acknowledges everything through ``offset``."""
        self._check("3", self._on_disk_through(offset), "a fetch acknowledges", offset)

    def sends_ack(self, offset: int) -> None:
        """A publisher was told that its record is stored at ``offset``."""
        self._check("3", self._on_disk_through(offset), "an ack names", offset)

    def sends_batches(self, high_watermark: int, batches: bytes | memoryview) -> None:
        """A ReplicationResponse left; without batches it says that there are none."""
        if not batches and isinstance(self._doing, do.SendFetchResponse | do.AnswerParkedFetch):
            at_end = self._doing.from_offset >= self.log.log_end_offset
            self._check("4", at_end, self._doing, "is answered by nothing there, the log ends at", self.log.log_end_offset)
        written = batches_in(self._storage())
        for header in headers_in(batches):
            same = written.get(header.base_offset)
            compacted = same is not None and same.crc != header.crc and header.is_compacted
            self._check("2", same is not None and (same.crc == header.crc or compacted), "serves", header, "not in the log")
        if batches and not self._on_disk_through(max(header.last_offset for header in headers_in(batches))):
            self.checks["2: served before the flush"] += 1
        if high_watermark >= self.log.log_start_offset:
            self._check("4", self._on_disk_through(high_watermark), "tells HW", high_watermark, "which is not on the disk")
        self._check("4", high_watermark == self.log.high_watermark, "tells", high_watermark, "HW is", self.log.high_watermark)
