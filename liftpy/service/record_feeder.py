"""``Feeder``: passes committed records from the own node's sidecar to the machine, and its snapshots to the store.

It reads from the record before the machine's position. The LeaderEpoch of this record must be the one in the state.
Otherwise an unclean election has truncated the log below the position, and the feeder restores a snapshot from below the
truncation [D5].
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice

from liftpy.client.batch_view import BatchSlice, one_by_one
from liftpy.client.consumer import PartitionReader
from liftpy.client.progress import ReadProgress
from liftpy.core.services.bad_records import (
    MAX_SKIPS,
    BadRecordError,
    DecisionMissedError,
    FailedUnit,
    NextStep,
    SkipDecision,
    Unit,
    decided_unit,
)
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.service import Role, Service, ServiceFailedError
from liftpy.core.services.snapshot import Section, Snapshot
from liftpy.core.services.versions import CodeTooNewError, VersionError, from_section
from liftpy.core.wire.batch import Record
from liftpy.errors import DataLossError, LiftError, LogTruncatedError, NotFoundError, OffsetOutOfRangeError
from liftpy.service.bad_record_writer import DecisionWriter
from liftpy.service.node_orders import NodeOrders
from liftpy.service.output_writer import Emitter
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshots import SnapshotKeeper

logger = logging.getLogger("liftpy.service")

_FIRST_CHUNK_RECORDS = 32
_MAX_CHUNK_RECORDS = 128
_PAUSE_S = 0.25
_MAX_DECIDED = 10_000
"""Maximum number of units that a replay knows to skip in advance."""


class Feeder:
    """Passes records from the node to the machine of a service, and restores an earlier snapshot when it is needed.

    ``started``: called with each new machine and its first state. None as state: the machine started with an empty state.
    """

    def __init__(
        self,
        *,
        reader: PartitionReader,
        settings: ServiceSettings,
        keeper: SnapshotKeeper,
        factory: Callable[[], Service],
        emitter: Emitter | None,
        orders: NodeOrders,
        decisions: DecisionWriter,
        started: Callable[[ServiceMachine, Snapshot | None], None],
    ) -> None:
        self._reader = reader
        self._identity = keeper.identity
        self._settings = settings
        self._keeper = keeper
        keeper.is_comparable = self._is_comparable
        self._outbox = keeper.outbox
        self._factory = factory
        self._emitter = emitter
        self._orders = orders
        self._decisions = decisions
        self._started = started
        self._failing: FailedUnit | None = None
        """Unit that the service could not apply. None: none."""
        self._decided: set[Unit] = set()
        """Units that the log decides to skip."""
        self._replay_epoch = 0
        """LeaderEpoch in which the current replay began. 0: there was none."""
        self._machine: ServiceMachine
        self._progress: ReadProgress
        self._log_start_offset = 0
        self._decision_ends: dict[Unit, int] = {}
        """Unit to skip -> offset after the record that decides it, for decisions that the machine had not read when it skipped."""
        self._lost_skips: set[int] = set()
        """Offsets of records that the state lacks, although the log may have lost the decision to skip them."""
        self._missed: dict[Unit, int] = {}
        """Applied unit that the log decides to skip -> offset after the decision. Snapshots between them contain the unit."""
        self._withdrawn: dict[Unit, int] = {}
        """Unit whose decision is withdrawn -> offset after the withdrawal. Snapshots below it lack the unit if they skip it."""
        self._stop_position: int | None = None
        """Exclusive: the feeder applies records up to this offset. None: up to the high watermark."""
        self._stop_reached: Callable[[], None] | None = None
        """Callback for the stop position. None: it was called."""
        self._truncated_at: int | None = None
        """End of the log if it is below the machine's position, so that a snapshot must be restored. None: it is not."""
        self._began: Snapshot | None = None
        """Snapshot from which the machine started. None: it started with an empty state."""
        self._disproven = False
        """True if the first state contradicts the written outputs. Then an earlier snapshot must be restored."""
        self._verifying = False
        """True if the next record is the one before the machine's position. Only its epoch is checked."""
        self._ask_again = False
        self._chunk_records = _FIRST_CHUNK_RECORDS
        self._wake = asyncio.Event()
        self.problem = ""
        """Reason why no records arrive, for the status. '': none."""

    # ---- calls of the host -------------------------------------------------------------------------------------------------
    def stop_at(self, position: int | None, reached: Callable[[], None] | None = None) -> None:
        """Apply records up to ``position`` (exclusive), then call ``reached`` once. None: up to the high watermark."""
        if position != self._stop_position:
            self._stop_position, self._stop_reached = position, reached
            self._wake.set()

    def cut_at(self, log_end_offset: int) -> None:
        """Restore a snapshot soon, because the leader's log was truncated below the machine's position.

        ``log_end_offset``: end of the leader's log, exclusive. If an earlier call still waits, the lower offset counts.
        """
        self._truncated_at = log_end_offset if self._truncated_at is None else min(log_end_offset, self._truncated_at)
        self._wake.set()

    def check_replay(self, leader_epoch: int, end_offset: int) -> None:
        """Shorten a replay if the log has become shorter in a later LeaderEpoch.

        ``leader_epoch``, ``end_offset``: current LeaderEpoch, and end of the committed records (exclusive).
        """
        if leader_epoch > self._replay_epoch:
            self._truncate_replay(end_offset)

    def disproven(self) -> None:
        """Restore an earlier snapshot soon, because the state of the first snapshot differs from the written outputs.

        This snapshot is not used again.
        """
        self._disproven = True
        self._wake.set()

    def verify(self, log_start_offset: int) -> None:
        """Check at the next read that the state belongs to this log, because the LeaderEpoch has changed.

        ``log_start_offset``: first offset of the log.
        """
        self._log_start_offset = max(self._log_start_offset, log_start_offset)
        self._verifying = self._machine.position > self._log_start_offset
        if self._failing is not None:  # records that were searched for a decision may have been replaced
            self._failing.scanned, self._failing.scan_end = self._failing.unit.offset + 1, None
        self._wake.set()

    def request_snapshot(self) -> None:
        self._keeper.ask()
        self._wake.set()

    def ask_again(self) -> None:
        """Send the current read request to the sidecar again, because the state of the sidecar has changed."""
        self._ask_again = True
        self._wake.set()

    # ---- state ---------------------------------------------------------------------------------------------------------------
    async def restart(
        self,
        log_start_offset: int,
        wanted: Callable[[Snapshot], bool] = lambda _: True,
        *,
        needed: Callable[[], bool] = lambda: True,
        replay_end: int = 0,
        rewind_epoch: int = 0,
    ) -> None:
        """Restore the machine from the newest suitable snapshot on disk, or from another node's snapshot.

        ``log_start_offset``: first offset of the log. A snapshot below it cannot be used. ``wanted``: returns whether a snapshot
        is suitable. ``needed``: returns False when any snapshot is suitable. ``replay_end``, ``rewind_epoch``: values of the new
        machine. Raises DataLossError if there is no usable snapshot, and VersionError if the code supports none.
        """
        self._log_start_offset = max(self._log_start_offset, log_start_offset)

        def suitable(snapshot: Snapshot) -> bool:
            return wanted(snapshot) and self._is_usable(snapshot)

        snapshot = await self._keeper.newest(suitable)
        if _position(snapshot) < self._log_start_offset:
            own = f"at snapshot {snapshot.position}" if snapshot is not None else "without a snapshot"
            is_abandoned = False

            def is_needed() -> bool:
                nonlocal is_abandoned
                is_abandoned = is_abandoned or not needed()  # a search that has ended early does not count as failed
                return not is_abandoned

            snapshot, tried = await self._keeper.later(self._log_start_offset, suitable, is_needed)
            if _position(snapshot) < self._log_start_offset and not is_needed():
                await self.restart(0, replay_end=replay_end)
                return
            if _position(snapshot) < self._log_start_offset and self._missed:
                raise self._cannot_skip(tried)
            if _position(snapshot) < self._log_start_offset:
                raise DataLossError(
                    f"{self._identity}: the log starts at offset {self._log_start_offset}, but the state {own} needs "
                    f"earlier records. No other node gave a later snapshot: {tried}. Start the service next to a node "
                    "that has one, or copy its snapshot directory."
                )
        try:
            await self._begin(snapshot, replay_end, rewind_epoch)
        except CodeTooNewError as error:
            supported = await self._supported(error, suitable, needed)
            if supported is None:
                await self.restart(0, replay_end=replay_end)
            else:
                await self._begin(supported, replay_end, rewind_epoch)

    async def _begin(self, snapshot: Snapshot | None, replay_end: int, rewind_epoch: int) -> None:
        """Start a new machine with the state of ``snapshot``, None: an empty one. Raises VersionError."""
        machine = ServiceMachine(
            self._factory(),
            self._identity,
            snapshot_interval_records=self._settings.snapshot_interval_records,
            outbox=self._outbox,
            parameters_digest=self._settings.parameters_digest,
        )
        machine.routes = frozenset(route.name for route in self._settings.routes)
        machine.replay_end, machine.rewind_epoch = replay_end, rewind_epoch
        if machine.starts_in_thread and self._outbox is None:  # no other code uses the machine yet
            await asyncio.to_thread(machine.start, snapshot)
        else:
            machine.start(snapshot)
        for unit in self._decided:
            if unit.offset >= machine.position:
                machine.skip(unit)
        self._machine, self._began = machine, snapshot
        if self._failing is not None:
            self._failing.undone = False
        self._verifying = machine.position > self._log_start_offset
        if not self._verifying:
            self._keeper.confirm_first_state()
        self._align()
        self._started(machine, snapshot)

    async def _supported(
        self, error: CodeTooNewError, wanted: Callable[[Snapshot], bool], needed: Callable[[], bool]
    ) -> Snapshot | None:
        """Return another node's snapshot that the code supports, because the code is too new for the records before it.

        None: no snapshot is needed any more.

        Args:
            error: Error of the own state.
            wanted: Says whether a snapshot is suitable.
            needed: Returns False when the search must end.

        Raises:
            VersionError: No other node gave such a snapshot.
        """

        def is_supported(snapshot: Snapshot) -> bool:
            return wanted(snapshot) and from_section(snapshot.section(Section.VERSION)) >= error.lowest_version

        snapshot, tried = await self._keeper.later(error.position + 1, wanted, needed, is_supported)
        if snapshot is None or not is_supported(snapshot):
            if not needed():
                return None
            raise VersionError(
                f"{error} Or start the service next to a node that has a snapshot of version {error.lowest_version} or later. No "
                f"other node gave one: {tried}."
            ) from error
        return snapshot

    def _align(self) -> None:
        """Set the next read to the machine's position, or to the record before it if its LeaderEpoch must be checked."""
        identity = self._identity
        self._progress = ReadProgress(identity.stream, identity.partition, next_offset=self._next_read(), uid=identity.uid)

    async def _go_back(self) -> bool:
        """Restore an earlier snapshot if the log was truncated, or if the state or the outbox cannot continue. Return True if so."""
        outbox, cut = self._outbox, self._truncated_at
        if cut is not None or self._lost_skips:
            self._truncated_at = None
            cut = await self._below_lost_skips(cut)
        if cut is not None:
            self._failing = None
            self._decided.clear()  # the records of these decisions may be lost
            self._clear_missed()
            logger.warning(
                "log truncated below the state service=%s end_offset=%d position=%d: restoring a snapshot",
                self._identity,
                cut,
                self._machine.position,
            )
            await self._keeper.drop_above(cut)
            await self.restart(0)
            if outbox is not None:
                outbox.compare_again()
            self._reread_outputs()
            return True
        # retention has deleted the next records: start from a later snapshot
        if self._machine.position < self._log_start_offset:
            await self.restart(0, replay_end=self._machine.replay_end)
            self._reread_outputs()
            return True
        if self._disproven:
            self._disproven = False
            await self._keeper.set_aside(_position(self._began))
            await self.restart(0)
            self._reread_outputs()
            return True
        if outbox is not None and outbox.must_rewind and self._machine.role is Role.LEADER:
            emitted_end = outbox.emitted_end
            logger.info("outputs not in memory service=%s from=%d: replaying from a snapshot", self._identity, emitted_end)
            epoch = self._machine.leader_epoch
            await self._replay(
                lambda snapshot: snapshot.output_count <= emitted_end,
                needed=lambda: outbox.must_rewind and self._machine.role is Role.LEADER,
                rewind_epoch=epoch,
            )
            return True
        return False

    async def _replay(
        self,
        wanted: Callable[[Snapshot], bool],
        *,
        needed: Callable[[], bool] = lambda: True,
        rewind_epoch: int = 0,
        known_end: int = 0,
    ) -> None:
        """Restore the newest snapshot for which ``wanted`` is true, to apply records of the same log again.

        The new machine knows the skip decisions that the earlier one knew.

        Args:
            wanted: Says whether a snapshot is suitable.
            needed: Returns False when any snapshot is suitable, because another LEADER writes the outputs.
            rewind_epoch: LeaderEpoch in which this LEADER writes its outputs again. 0: it does not.
            known_end: Offset (exclusive) up to which the feeder has read the log, if that is after the position of the
                earlier machine.
        """
        earlier = self._machine
        if not earlier.is_replaying:
            self._replay_epoch = earlier.leader_epoch
        self._decided.update(earlier.skipped_units)
        self._decided.difference_update(self._withdrawn)
        replay_end = max(earlier.position, earlier.replay_end, known_end)
        log_start = self._orders.log_start_offset
        await self.restart(log_start, wanted, needed=needed, replay_end=replay_end, rewind_epoch=rewind_epoch)

    def _forget_decisions(self, position: int) -> None:
        """Forget the decisions at or above ``position``, because the log may have lost them.

        A state at ``position`` lacks the units below it that these decisions skip.
        """
        lost = [unit for unit, end in self._decision_ends.items() if end > position]
        for unit in lost:
            del self._decision_ends[unit]
        self._lost_skips.update(unit.offset for unit in lost if unit.offset < position)

    async def _below_lost_skips(self, cut: int | None) -> int | None:
        """Return the offset above which no snapshot is usable after the log was truncated at ``cut``.

        It is below ``cut`` if the log may have lost a decision to skip a record, and if this node has a snapshot from before
        that record from which it can replay the log. ``cut`` None: the log was not truncated below the state.
        """
        if cut is not None:
            # the log may differ below the cut too, so only decisions before the snapshot are sure
            self._forget_decisions(await self._keeper.newest_position(cut))
        log_start = max(self._log_start_offset, self._orders.log_start_offset)
        skips, self._lost_skips = sorted(self._lost_skips), set()
        for offset in skips:
            if await self._keeper.newest_position(offset) >= log_start:
                return offset if cut is None else min(cut, offset)
            logger.warning(
                "decision to skip may be lost service=%s offset=%d log_start_offset=%d: no snapshot before it, continuing without "
                "the record",
                self._identity,
                offset,
                log_start,
            )
        return cut

    def _truncate_replay(self, end_offset: int) -> None:
        if self._machine.truncate_replay(end_offset):
            self._decided.clear()
            self._clear_missed()
            self._forget_decisions(self._machine.position)
            if self._lost_skips:
                self._wake.set()
            logger.warning(
                "log truncated during a replay service=%s end_offset=%d position=%d: continuing",
                self._identity,
                end_offset,
                self._machine.position,
            )

    # ---- feeding -------------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Read records and pass them to the machine, forever. Raises the error that ends the service."""
        fetch: asyncio.Task[list[BatchSlice]] | None = None
        try:
            while True:
                self._wake.clear()
                if await self._go_back() or self._is_misaligned() or self._ask_again:
                    self._ask_again = False
                    _cancel(fetch)
                    fetch = None
                    self._align()
                if self._failing is not None and self._failing.undone:
                    _cancel(fetch)
                    fetch = None
                    await self._handle_failure()
                    continue
                await self._forget_missed()
                if self._keeper.is_due:
                    await self._keeper.keep(self._machine)
                if self._must_wait():
                    await self._wait_for_wake(_PAUSE_S)
                    continue
                if fetch is None:
                    start_offset = self._progress.next_offset
                    fetch = asyncio.create_task(self._reader.fetch(self._progress))
                if not await self._wait_for_fetch(fetch):
                    continue
                done, fetch = fetch, None
                if start_offset != self._next_read() or self._truncated_at is not None:
                    _cancel(done)
                    continue  # in the meantime the feeder must verify the previous record, or the log was truncated
                slices = self._result(done)
                if slices is not None:
                    await self._apply_or_undo(slices)
        finally:
            _cancel(fetch)

    def _is_misaligned(self) -> bool:
        """Return whether the offset of the next read differs from the one that the machine needs now."""
        return self._progress.next_offset != self._next_read()

    def _next_read(self) -> int:
        return self._machine.position - 1 if self._verifying else self._machine.position

    def _must_wait(self) -> bool:
        """Return whether no record may be applied now.

        The reason is that the stop position is reached, or that a LEADER must first write its outputs.
        """
        if self._stop_position is not None and self._machine.position >= self._stop_position:
            return True
        if self._machine.waits_for_outputs and self._emitter is not None:
            self._emitter.wake()
        return self._machine.waits_for_outputs

    async def _wait_for_fetch(self, fetch: asyncio.Task[list[BatchSlice]]) -> bool:
        waking = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait((fetch, waking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        return fetch.done()

    async def _wait_for_wake(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # not wait_for, which may swallow a cancellation
                await self._wake.wait()

    def _result(self, done: asyncio.Task[list[BatchSlice]]) -> list[BatchSlice] | None:
        """Return the batches of the finished read ``done``. None: the read failed and is repeated.

        Raises errors that end the service.
        """
        try:
            slices = done.result()
        except OffsetOutOfRangeError as error:
            if self._verifying and self._progress.next_offset < self._machine.position:
                self._verifying = False  # retention has deleted the record before the position, so its epoch cannot be compared
                self._keeper.confirm_first_state()
                return None
            logger.warning(
                "records deleted before they were read service=%s position=%d error=%s: restoring a snapshot",
                self._identity,
                self._machine.position,
                error,
            )
            self._log_start_offset = max(self._log_start_offset, self._machine.position + 1)
            return None
        except NotFoundError:
            raise
        except LogTruncatedError as error:
            if error.end_offset < self._machine.position:
                self.cut_at(error.end_offset)
            else:
                self._truncate_replay(error.end_offset)
                self._align()
            return None
        except LiftError as error:
            self.problem = f"reading: {error.code}: {error}"
            return None
        self.problem = ""
        return slices

    # ---- bad records --------------------------------------------------------------------------------------------------------
    @property
    def failing(self) -> FailedUnit | None:
        """Record or timer that the service cannot apply now. None: there is none."""
        failing = self._failing
        return failing if failing is not None and self._machine.position <= failing.unit.offset else None

    async def _apply_or_undo(self, slices: list[BatchSlice]) -> None:
        try:
            await self._apply_slices(slices)
        except BadRecordError as error:
            logger.error("record not applied service=%s error=%s", self._identity, error)
            self.problem = str(error)
            if self._failing is not None and self._failing.unit == error.unit:
                self._failing.record_failure(error, time.monotonic())
            else:
                self._failing = FailedUnit(error, scanned=error.unit.offset + 1)
            self._failing.undone = True
        except DecisionMissedError as missed:
            logger.warning("decision missed service=%s unit=%s: restoring a snapshot", self._identity, missed)
            await self._handle_missed(missed.unit, missed.decision_offset)
        except CodeTooNewError as error:
            machine = self._machine
            supported = await self._supported(error, self._is_usable, _yes)
            await self._begin(supported, machine.replay_end, machine.rewind_epoch)
            self._reread_outputs()

    def _is_usable(self, snapshot: Snapshot) -> bool:
        return not self._has_missed(snapshot)

    def _has_missed(self, snapshot: Snapshot) -> bool:
        """Return whether the state of ``snapshot`` contradicts a decision: it contains a skipped unit, or lacks another one."""
        position, skips = snapshot.position, snapshot.skips
        contains_skipped = any(unit.offset < position < end and unit not in skips for unit, end in self._missed.items())
        return contains_skipped or any(position < end and unit in skips for unit, end in self._withdrawn.items())

    def _cannot_skip(self, tried: str) -> DataLossError:
        """Return the error for applied units that cannot be skipped. ``tried``: text about the other nodes."""
        unit, end = min(self._missed), max(self._missed.values())
        decision = Unit(self._missed[unit] - 1)
        return DataLossError(
            f"{self._identity}: the record at offset {decision.offset} decides to skip {unit}, but this service has applied it. "
            f"The log starts at offset {self._log_start_offset}, and there is no snapshot from there to offset {unit.offset}. No "
            f"other node gave one, or one from offset {end} on: {tried}. All snapshots of this node are unchanged. Start the "
            "service again when it has skipped the record on another node, or copy the snapshot directory of a node that has an "
            "earlier snapshot. If no node can skip the record, withdraw the decision, then start the service again: "
            f"{self._skip_command(decision)}"
        )

    async def _handle_missed(self, unit: Unit, decision_offset: int) -> None:
        """Restore a state without ``unit``, which the service has applied before it read the decision to skip it.

        If that is not possible, and a later record withdraws the decision, restore a state that ignores the decision.
        """
        identity = self._identity
        if not await self._has_snapshot_before(unit):
            withdrawal = Unit(decision_offset)
            async for record in self._records_from(decision_offset + 1):
                if decided_unit(record, identity.service) == withdrawal:
                    unit, decision_offset = withdrawal, record.offset
                    break
        first = await anext(self._records_from(unit.offset), None)
        skipped = decided_unit(first, identity.service) if first is not None and Unit(first.offset) == unit else None
        if skipped is not None:  # the unit is a decision itself, so the unit that it names must be applied
            self._withdrawn[skipped] = decision_offset + 1
            self._decision_ends.pop(skipped, None)
            if self._failing is not None and self._failing.unit == skipped:  # the log may have another decision
                self._failing.scanned, self._failing.scan_end = skipped.offset + 1, None
        self._missed[unit] = decision_offset + 1
        await self._skip_unit(unit, decision_offset + 1)

    async def _has_snapshot_before(self, unit: Unit) -> bool:
        """Return whether the log can be replayed from a snapshot at or below ``unit``, or from its first record."""
        log_start = max(self._log_start_offset, self._orders.log_start_offset)
        return await self._keeper.newest_position(unit.offset) >= log_start

    async def _records_from(self, offset: int) -> AsyncIterator[Record]:
        """Yield the committed records from ``offset`` on. Yield none if the log does not have it."""
        identity = self._identity
        progress = ReadProgress(identity.stream, identity.partition, next_offset=offset, uid=identity.uid)
        end_offset = 0
        while True:
            try:
                slices = await self._reader.fetch(progress)
            except (OffsetOutOfRangeError, LogTruncatedError):
                return
            except NotFoundError:
                raise
            except LiftError as error:
                if self._truncated_at is not None:
                    return
                self.problem = f"reading: {error.code}: {error}"
                await asyncio.sleep(_PAUSE_S)
                continue
            self.problem = ""
            for piece in one_by_one(slices):
                for record in piece.records():
                    yield record
            end_offset = end_offset or progress.high_watermark + 1
            if not slices or 0 < end_offset <= progress.next_offset:
                return

    async def _forget_missed(self) -> None:
        """Delete the snapshots that contain missed units, when the state has passed the decisions without these units.

        Until then these snapshots stay. A process that starts from one of them reads the decision again. The node then stores
        a snapshot soon, because other nodes may need it.
        """
        machine = self._machine
        if not self._missed or self._verifying or machine.failed or machine.position < max(self._missed.values()):
            return
        await self._keeper.drop(self._has_missed)
        self._clear_missed()
        self._keeper.ask()

    def _clear_missed(self) -> None:
        self._missed.clear()
        self._withdrawn.clear()
        self._keeper.pin(0)

    def _is_comparable(self, position: int) -> bool:
        """Return whether the state at ``position`` depends on the log below it alone.

        It does not between a skipped unit and the decision to skip it. Another node may have a state with the unit there.
        """
        return not any(unit.offset < position < end for unit, end in self._decision_ends.items())

    async def _handle_failure(self) -> None:
        """Process a unit (record or timer) on which the service failed: skip it if the log decides so, else retry or decide."""
        failing = self._failing
        assert failing is not None
        decision_end = await self._scan(failing)
        if decision_end:
            logger.warning("record skipped service=%s unit=%s: the log has the decision", self._identity, failing.unit)
            await self._skip_unit(failing.unit, decision_end)
        elif decision_end is not None:
            leads = self._orders.is_beside_leader and not self._has_written_later_outputs()
            await self._do(failing.next(self._machine.on_error, leads=leads, now_s=time.monotonic()), failing)

    def _has_written_later_outputs(self) -> bool:
        """Return whether the output stream may have outputs of the failed unit or of later ones.

        Another instance has then applied the unit. To skip it would change outputs that are written.
        """
        outbox = self._outbox
        return outbox is not None and (not outbox.known or outbox.emitted_end > outbox.output_count)

    async def _do(self, step: NextStep, failing: FailedUnit) -> None:
        if step is NextStep.STOP:
            text = f"{failing.error}. To skip this record on all nodes: {self._skip_command(failing.unit)}"
            raise ServiceFailedError(text) from failing.error
        if step is NextStep.TRY:
            await self._rebuild(failing.unit)
        elif step is NextStep.DECIDE:
            try:
                await self._decide_to_skip(failing)
                failing.decided_s = time.monotonic()
            except LiftError as error:
                self.problem = f"{failing.error}; giving up on it: {error.code}: {error}"
                await self._wait_for_wake(_PAUSE_S)
        else:
            await self._wait_for_wake(_PAUSE_S)

    async def _decide_to_skip(self, failing: FailedUnit) -> None:
        """Append the decision to skip the unit of ``failing``, which this service cannot apply, to the log.

        All nodes skip it when the decision is committed.
        """
        order = self._orders.last
        assert order is not None
        decision = SkipDecision(self._identity.service, failing.unit, order.leaderEpoch)
        await self._decisions.pass_over(self._identity, decision, failing.error.record, str(failing.error))

    def _skip_command(self, unit: Unit) -> str:
        who, timer = self._identity, f" --timer {shlex.quote(unit.timer)}" if unit.timer else ""
        return (
            f"liftpy service skip {who.service} --stream {who.stream} --partition {who.partition} --offset {unit.offset}{timer}"
        )

    async def _skip_unit(self, unit: Unit, decision_end: int) -> None:
        """Rebuild the state without ``unit``. ``decision_end``: offset after the record that decides to skip it."""
        self._decided.add(unit)
        self._withdrawn.pop(unit, None)
        if len(self._decided) > _MAX_DECIDED:
            self._decided.remove(min(self._decided))  # a replay that comes to it searches for its decision again
        self._decision_ends[unit] = decision_end
        if len(self._decision_ends) > MAX_SKIPS:
            del self._decision_ends[min(self._decision_ends)]
        await self._rebuild(unit, decision_end)

    async def _rebuild(self, unit: Unit, known_end: int = 0) -> None:
        """Restore a snapshot whose state has no part of the failed ``unit``.

        It is the newest one at or below the unit, or one of another node that has read the decision to skip the unit.
        ``known_end``: offset after this decision. 0: there is none.
        """

        def wanted(snapshot: Snapshot) -> bool:
            return snapshot.position <= unit.offset or 0 < known_end <= snapshot.position

        await self._replay(wanted, known_end=known_end)
        if self._missed:
            self._keeper.pin(self._machine.position)
        self._reread_outputs()

    def _reread_outputs(self) -> None:
        if self._emitter is not None:
            self._emitter.reread_end()

    async def _scan(self, failing: FailedUnit) -> int | None:
        """Search the committed records for a decision to skip the unit of ``failing``, which the service cannot apply.

        Return the offset after the decision. 0: there is none. None: the search is not complete.
        """
        identity = self._identity
        progress = ReadProgress(identity.stream, identity.partition, next_offset=failing.scanned, uid=identity.uid)
        fetch = asyncio.create_task(self._reader.fetch(progress))
        if not await self._wait_for_fetch(fetch):
            _cancel(fetch)
            return None
        slices = self._result(fetch)
        if slices is None:
            await self._wait_for_wake(_PAUSE_S)
            return None
        if failing.scan_end is None:
            failing.scan_end = progress.high_watermark + 1
        at_the_end = not slices or 0 < failing.scan_end <= progress.next_offset
        records = (record for piece in one_by_one(slices) for record in piece.records() if record.headers)
        ends = (
            record.offset + 1
            for record in records
            if decided_unit(record, identity.service) == failing.unit and Unit(record.offset) not in self._decided
        )
        decision_end = next(ends, 0)
        failing.scanned = progress.next_offset
        if decision_end or at_the_end:
            failing.scan_end = None
        self.problem = str(failing.error)
        return decision_end if decision_end or at_the_end else None

    async def _keep_below_failing(self) -> bool:
        """Store a snapshot directly before the failing record, so that retries and replays begin there. This happens once.

        Return False if the snapshot was stored earlier, or if the machine is not there yet.
        """
        failing, machine = self._failing, self._machine
        if failing is None or failing.stored or machine.position < failing.unit.offset:
            return False
        failing.stored = True
        if machine.position == failing.unit.offset:
            await self._keeper.save(machine.snapshot())
        return True

    async def _apply_slices(self, slices: list[BatchSlice]) -> None:
        machine = self._machine
        self._keeper.came(sum(piece.batch.header.size_bytes for piece in slices))
        records: Iterator[Record] = (record for piece in one_by_one(slices) for record in piece.records())
        if self._verifying and slices:
            records = self._verify_records(records)
        until_s = time.monotonic() + self._settings.step_s
        while chunk := list(islice(records, self._chunk_records)):
            if chunk[-1].offset + 1 >= machine.boundary and not await self._is_its_turn():
                return
            began_s = time.monotonic()
            applied = machine.apply(chunk, self._stop_before_failing())
            self._adapt_chunk(time.monotonic() - began_s)
            if applied.snapshots:
                self._keeper.note_blocked_time(time.monotonic() - began_s)
            self._report_stop_reached()  # before the snapshot is written, because a promotion may wait for the position
            if self._emitter is not None and machine.role is Role.LEADER:
                self._emitter.wake()
            for snapshot in applied.snapshots:
                await self._keeper.save(snapshot)
            if await self._keep_below_failing():
                break
            if machine.position <= chunk[-1].offset or self._must_wait() or self._truncated_at is not None:
                break
            if time.monotonic() >= until_s:
                await asyncio.sleep(0)  # other tasks send heartbeats and outputs in this pause
                until_s = time.monotonic() + self._settings.step_s
                if self._verifying or self._truncated_at is not None:
                    return
        else:
            if self._truncated_at is None:
                await self._skip(self._progress.next_offset)

    async def _is_its_turn(self) -> bool:
        """Wait until this node may take a snapshot. The nodes take turns, and a promotion ends the wait.

        Return False if records must be read again first.
        """
        machine, until_s = self._machine, time.monotonic() + self._keeper.turn_s()
        while self._stop_position is None and machine.role is Role.FOLLOWER and (left_s := until_s - time.monotonic()) > 0:
            self._wake.clear()
            await self._wait_for_wake(left_s)
            if self._verifying or self._truncated_at is not None:
                return False
        return True

    def _stop_before_failing(self) -> int | None:
        failing, stop = self._failing, self._stop_position
        if failing is None or failing.stored:
            return stop
        return failing.unit.offset if stop is None else min(stop, failing.unit.offset)

    def _adapt_chunk(self, took_s: float) -> None:
        """Change the number of records that are applied at once, so that heartbeats are not delayed."""
        step_s = self._settings.step_s
        if took_s > step_s:
            self._chunk_records = max(1, self._chunk_records // 2)
        elif took_s < step_s / 4:
            self._chunk_records = min(_MAX_CHUNK_RECORDS, self._chunk_records * 2)

    def _report_stop_reached(self) -> None:
        reached = self._stop_reached
        if reached is not None and self._stop_position is not None and self._machine.position >= self._stop_position:
            self._stop_reached = None
            reached()

    async def _skip(self, next_offset: int) -> None:
        """Move the machine to ``next_offset`` if a read ended with offsets without records, which compaction leaves."""
        stop = self._stop_position
        snapshots = self._machine.skip_to(next_offset if stop is None else min(next_offset, stop))
        self._report_stop_reached()
        for snapshot in snapshots:
            await self._keeper.save(snapshot)

    def _verify_records(self, records: Iterator[Record]) -> Iterator[Record]:
        """Yield the records from the machine's position on.

        The record before the position is only checked: if its LeaderEpoch differs from the state, a snapshot is restored.
        """
        self._verifying = False
        machine = self._machine
        for record in records:
            if record.offset == machine.position - 1 and record.leader_epoch != machine.last_epoch:
                self.cut_at(machine.position - 1)
                return
            if record.offset == machine.position - 1:
                self._keeper.confirm_first_state()
            if record.offset >= machine.position:
                yield record


def _yes() -> bool:
    return True


def _position(snapshot: Snapshot | None) -> int:
    return snapshot.position if snapshot is not None else 0


def _cancel(task: asyncio.Task[list[BatchSlice]] | None) -> None:
    if task is not None:
        task.cancel()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
