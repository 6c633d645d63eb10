"""One node of the replica model: the shipped ``Replica``, a disk that is a tuple of records, and the shell between them.

A cell is never changed: a step copies it (``structure.py``), lets the copy take the event, and carries out the effects. What a
step does depends on nothing but the cell and the event, so each is taken once and remembered: there are far fewer of them than
states of the cluster.

Time stands still. A deadline that is set may be reached at any moment, in any order, however far away it is: what holds here
holds for every clock. So times are put back to NOW after each step. That leaves out what is about time alone (leases, quiet
fetches, wake-ups, slow disks; the lease model and the simulator look at those).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from liftpy.config import AckPolicy, FlushPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionMetadata, PartitionState
from liftpy.core.log.compaction_point import Horizon
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.candidate import CandidateRole
from liftpy.core.replication.catchup_throttle import CatchupThrottle, LearnerCopy
from liftpy.core.replication.fetch_handler import FetchHandler, ParkedFetch
from liftpy.core.replication.follower import FollowerRole
from liftpy.core.replication.inactive import FailedRole, InactiveRole, StoppedRole
from liftpy.core.replication.inflight_limits import InflightLimits, NodeInflight
from liftpy.core.replication.isr import FollowerProgress, IsrChange, SlowFlushes
from liftpy.core.replication.leader import LeaderRole, PauseEnforcer
from liftpy.core.replication.lease import EarlierLeaders, Lease, ReplicaLease
from liftpy.core.replication.log_offsets import LogOffsets
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, RefusalReason
from liftpy.core.replication.phases import FollowerPhase
from liftpy.core.replication.replica import Replica
from liftpy.core.replication.role import Backoff, Deadlines, NodeContext, ReplicaContext, ReplicaRole
from liftpy.errors import InvariantError
from tests.model.search import Broken
from tests.model.structure import Interned, Names, Structure

NOW = 1
_LONG_AGO = -(10**18)
KEY = PartitionKey("s", "u", 0)
CONFIG = ReplicationConfig(idle_polls_before_quiet=1 << 20)
Record = tuple[int, int]
"""(LeaderEpoch, number of the publish)."""
Message = tuple[Any, ...]
"""(kind, from, to, ...); the first five kinds have a request id in the fourth place."""
REQUESTS, ANSWERS = ("fetch", "query"), ("fetched", "answered", "refused")


@dataclass(slots=True)
class Cell:
    """A node. ``replica`` None: no process runs."""

    name: str
    replica: Replica | None
    log: tuple[Record, ...]
    durable: int
    """Exclusive: records below it survive a power cut."""
    persisted: int = 0
    """LeaderEpoch that was promised, durably."""
    checkpoint: int = -1
    """Of HW, inclusive: what the next process finds."""
    incarnation: int = 1
    serves: bool = False
    """Whether it listens on ``.replicate`` and ``.offset``."""
    kept: tuple[tuple[str, int], ...] = ()
    """(replica, request id) of fetches that may be answered again."""


class Stepped(NamedTuple):
    """``cell``: the number of what it became. ``sent``: messages; to '*': to all that listen. ``raised``: HW rose."""

    cell: int
    sent: tuple[Message, ...]
    raised: bool
    acked: int
    """Inclusive: acknowledged ALL up to here, by this step; -1: nothing."""


STRUCTURE = Structure(
    state=(
        Cell, Replica, NodeContext, ReplicaContext, LogOffsets, EpochCache, Deadlines, Lease, ReplicaLease, Backoff,
        EarlierLeaders, IsrChange, FetchHandler, FollowerProgress, InflightLimits, NodeInflight, CatchupThrottle, LearnerCopy,
        SlowFlushes, PauseEnforcer, ReplicaRole, InactiveRole, FailedRole, StoppedRole, FollowerRole, CandidateRole, LeaderRole,
    ),
    values=(PartitionMetadata, PartitionState, PartitionKey, StreamConfig, FlushPolicy, ReplicationConfig, ParkedFetch, Horizon),
)  # fmt: skip


def scan(log: tuple[Record, ...]) -> tuple[tuple[int, int], ...]:
    """(LeaderEpoch, offset of its first record) as they stand in the log."""
    return tuple((epoch, i) for i, (epoch, _) in enumerate(log) if not i or log[i - 1][0] != epoch)


def in_name_order(state: PartitionState) -> PartitionState:
    """With the replicas in the order of their names, as every state of a model has them."""
    return replace(
        state,
        replicas=tuple(sorted(state.replicas)),
        isr=tuple(sorted(state.isr)),
        incomplete=tuple(sorted(state.incomplete)),
        complete=tuple(sorted(state.complete)),
    )


_KINDS = (ev.Deadline.FETCH, ev.Deadline.REQUEST, ev.Deadline.ISR_CHANGE, ev.Deadline.PROMOTION)
"""Those that the model lets end; of the others it says itself when."""


def shared_of(replica: Replica) -> ReplicaContext:
    """Return the state that all roles of a replica share."""
    return replica._shared


def role_of(replica: Replica) -> ReplicaRole:
    """Return the role of a replica, with its state."""
    return replica._role


_FOLLOWER_NOW = {"_leader_contact_ns": NOW, "_has_leader_contact": True, "_quiet_rounds": 0, "_woken": False}
"""Fields of a follower that say when something happened."""


def put_back_times(replica: Replica) -> None:
    """Everything has happened just now, and may be due just now; what will not be looked at any more is forgotten."""
    shared, role = shared_of(replica), role_of(replica)
    shared.backoff._state = shared.backoff._failures = 0
    shared.deadlines._at_ns = {kind: NOW for kind in _KINDS if shared.deadlines.is_set(kind)}
    shared.earlier_leaders = EarlierLeaders(shared.node_id, 0)
    if isinstance(role, FollowerRole):
        for name, value in _FOLLOWER_NOW.items():
            setattr(role, name, value)
        role._phases = [role.phase]
        if role.phase is not FollowerPhase.IDLE:
            role._idle_request_id = 0
        if role.phase is not FollowerPhase.RECONCILING:
            role._requested_epoch, role._is_horizon_query = 0, False
        if role.phase is not FollowerPhase.FLUSHING:
            role._leader_high_watermark = -1
        return
    if not isinstance(role, LeaderRole | CandidateRole):
        return
    for progress in role.handler.followers.values():
        progress.caught_up_ns = progress.last_fetch_ns = progress.last_contact_ns = progress.last_request_ns = NOW
        progress.mark_ns, progress.progressed_ns, progress.sent_high_watermark = NOW, 0, -2
        progress.doubted_ns, progress.notice_since_ns = None, 0
        # It may have been at the log end for a moment: who joins the ISR must be safe without that.
        progress.was_caught_up = progress.position is not None
        progress.mark_end_offset, progress.log_end_offset_at_last_fetch = -1, 0
    if isinstance(role, LeaderRole):
        role.isr_change.retry_at_ns = 0
        role._stays_until_ns, role._waiting_end_offset, role._waiting_ns = 0, -1, 0
        role._acked_leader_through = shared.log.flushed_newest_offset


class Cells:
    """All cells that were ever met, by number, and what steps do to them."""

    def __init__(self) -> None:
        self._cells = Interned()
        self._steps: dict[tuple[int, Hashable], Stepped | Broken] = {}
        self._renamed: dict[tuple[int, Hashable], int] = {}
        self._options: dict[int, tuple[tuple[Any, ...], ...]] = {}
        self._ids: dict[int, tuple[tuple[str, int], ...]] = {}
        self._sketches: dict[int, int] = {}
        self._known_sketches = Interned()

    def __getitem__(self, number: int) -> Cell:
        return self._cells[number]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._cells)

    def add(self, cell: Cell) -> int:
        """Its number; equal cells have one."""
        return self._cells.number(STRUCTURE.form(cell), cell)

    def step(self, number: int, event: tuple[Any, ...]) -> Stepped | Broken:
        """What ``event`` makes of a cell."""
        found = self._steps.get((number, event))
        if found is None:
            cell = STRUCTURE.copy(self[number])
            try:
                found = Shell(cell).take(event, self)
            except InvariantError as error:
                found = Broken(f"{cell.name}: {error}")
            self._steps[number, event] = found
        return found

    # ---- names and ids -----------------------------------------------------------------------------------------------
    def renamed(self, number: int, names: Names, key: Hashable) -> int:
        """The same cell in a cluster whose nodes have other names. ``key`` stands for ``names``."""
        found = self._renamed.get((number, key))
        if found is None:
            cell = STRUCTURE.copy(self[number], names)
            cell.kept = tuple(sorted(cell.kept))
            if cell.replica is not None:
                held = shared_of(cell.replica).metadata
                shared_of(cell.replica).metadata = replace(held, state=in_name_order(held.state))
            found = self._renamed[number, key] = self.add(cell)
        return found

    def sketch(self, number: int) -> int:
        """What can be said of a cell without any name: cells with other sketches are other cells."""
        found = self._sketches.get(number)
        if found is None:
            cell = self[number]
            role = ("", "", 0) if cell.replica is None else (cell.replica.role, cell.replica.phase, cell.replica.leader_epoch)
            sketch = (role, cell.log, cell.durable, cell.persisted, cell.checkpoint, cell.incarnation, cell.serves)
            found = self._sketches[number] = self._known_sketches.number(sketch)
        return found

    def request_ids(self, number: int) -> tuple[tuple[str, int], ...]:
        """(whose, request id) of every id that the cell knows."""
        found = self._ids.get(number)
        if found is None:
            cell, ids = self[number], set(self[number].kept)
            if cell.replica is not None:
                role = role_of(cell.replica)
                ids.add((cell.name, shared_of(cell.replica).next_request_id))
                if isinstance(role, FollowerRole):
                    ids |= {(cell.name, role._request_id), (cell.name, role._idle_request_id)}
                elif isinstance(role, LeaderRole | CandidateRole):
                    ids |= {(name, progress.last_request_id) for name, progress in role.handler.followers.items()}
            found = self._ids[number] = tuple(pair for pair in ids if pair[1])
        return found

    def renumbered(self, number: int, numbers: dict[str, dict[int, int]], key: Hashable) -> int:
        """The same cell with other request ids, in the same order."""
        found = self._renamed.get((number, key))
        if found is None:
            cell = STRUCTURE.copy(self[number])
            cell.kept = tuple((name, numbers[name][rid]) for name, rid in cell.kept)
            if cell.replica is not None:
                role, own = role_of(cell.replica), {0: 0, **numbers[cell.name]}
                shared_of(cell.replica).next_request_id = own[shared_of(cell.replica).next_request_id]
                if isinstance(role, FollowerRole):
                    role._request_id, role._idle_request_id = own[role._request_id], own[role._idle_request_id]
                elif isinstance(role, LeaderRole | CandidateRole):
                    for name, progress in role.handler.followers.items():
                        progress.last_request_id = {0: 0, **numbers[name]}[progress.last_request_id]
            found = self._renamed[number, key] = self.add(cell)
        return found

    def forgetting(self, number: int, ids: frozenset[tuple[str, int]]) -> int:
        """Without these (whose, request id): neither will ever come again, nor be answered."""
        found = self._renamed.get((number, ids))
        if found is None:
            cell = STRUCTURE.copy(self[number])
            role = role_of(cell.replica) if cell.replica is not None else None
            handler = role.handler if isinstance(role, LeaderRole | CandidateRole) else None
            for name, rid in cell.kept:
                if (name, rid) in ids and handler is not None:
                    handler.parked.pop(name, None)
            cell.kept = tuple(pair for pair in cell.kept if pair not in ids)
            for name, progress in handler.followers.items() if handler is not None else ():
                if (name, progress.last_request_id) in ids:
                    progress.last_request_id = 0
            found = self._renamed[number, ids] = self.add(cell)
        return found

    # ---- what may happen to it ---------------------------------------------------------------------------------------
    def options(self, number: int) -> tuple[tuple[Any, ...], ...]:
        """Events that need nothing but the cell."""
        found = self._options.get(number)
        if found is None:
            found = self._options[number] = tuple(_options(self[number]))
        return found


def _options(cell: Cell) -> list[tuple[Any, ...]]:
    replica = cell.replica
    if replica is None:
        return [("restart",)]
    deadlines, found = shared_of(replica).deadlines, []
    found += [("flush", end) for end in range(cell.durable + 1, len(cell.log) + 1)]
    if replica.takes_publishes() and replica.phase == "LEADER_READY":
        found.append(("publish",))
    if deadlines.is_set(ev.Deadline.REQUEST):
        found.append(("timeout", role_of(replica)._request_id))  # type: ignore[attr-defined]
    elif deadlines.is_set(ev.Deadline.FETCH):
        found.append(("wake",))
    role = role_of(replica)
    if isinstance(role, LeaderRole):
        found += [("lags", name) for name in sorted(role.handler.followers) if name in replica.state.isr]
        if deadlines.is_set(ev.Deadline.ISR_CHANGE):
            found.append(("unanswered",))
    elif isinstance(role, CandidateRole) and deadlines.is_set(ev.Deadline.PROMOTION):
        found.append(("report again",))
    for kept in range(cell.durable, len(cell.log) + 1):
        found += [("crash", kept, checkpoint) for checkpoint in sorted({-1, replica.high_watermark})]
    return found


class Shell:
    """Carries out what a step of one cell asks for."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.sent: list[Message] = []
        self.acked = -1
        self._asker: tuple[str, int] = ("", 0)
        self._fetched: tuple[Record, ...] = ()
        self._number = 0

    def take(self, event: tuple[Any, ...], cells: Cells) -> Stepped:
        cell = self.cell
        before = cell.replica.high_watermark if cell.replica is not None else -1
        getattr(self, "_" + event[0].replace(" ", "_"))(*event[1:])
        if cell.replica is not None:
            after, log = cell.replica.high_watermark, cell.replica.log
            check(event[0] == "restart" or after >= before, "D8", cell.name, "HW falls to", after)
            check(after < cell.durable, "D7", cell.name, "HW", after, "is not flushed, the disk ends at", cell.durable)
            check(log.epochs.entries == scan(cell.log), "D13", cell.name, log.epochs.entries, "but", scan(cell.log))
            check(log.log_end_offset == len(cell.log), "D15", cell.name, log.log_end_offset, "but", len(cell.log))
            raised = after > before
        else:
            raised = False
        return Stepped(cells.add(cell), tuple(self.sent), raised, self.acked)

    # ---- events ------------------------------------------------------------------------------------------------------
    def feed(self, event: ev.Event) -> None:
        replica = self.cell.replica
        assert replica is not None
        effects = replica.step(event, NOW)
        put_back_times(replica)
        for effect in effects:
            act = _ACTS.get(type(effect))
            if act is not None:
                act(self, effect)

    def _flush(self, end: int) -> None:
        self.cell.durable = end
        self.feed(ev.LogFlushed(end_offset=end))

    def _publish(self, number: int) -> None:
        self._number = number
        self.feed(ev.PublishesReceived(token=1, record_count=1, size_bytes=100, received_wall_ns=0))

    def _timeout(self, request_id: int) -> None:
        """The back-off behind it is left out: nothing can be seen of it from outside."""
        self.feed(ev.DeadlineReached(kind=ev.Deadline.REQUEST))
        self._wake()

    def _wake(self) -> None:
        self.feed(ev.DeadlineReached(kind=ev.Deadline.FETCH))

    def _lags(self, follower: str) -> None:
        assert self.cell.replica is not None
        role_of(self.cell.replica).handler.followers[follower].caught_up_ns = _LONG_AGO  # type: ignore[attr-defined]
        shared_of(self.cell.replica).deadlines._at_ns[ev.Deadline.LAG] = NOW
        self.feed(ev.DeadlineReached(kind=ev.Deadline.LAG))

    def _unanswered(self) -> None:
        self.feed(ev.DeadlineReached(kind=ev.Deadline.ISR_CHANGE))

    def _report_again(self) -> None:
        self.feed(ev.DeadlineReached(kind=ev.Deadline.PROMOTION))

    def _learn(self, held: PartitionMetadata, live: tuple[tuple[str, int], ...]) -> None:
        self.feed(ev.PartitionChanged(metadata=held, incarnations=dict(live)))

    def _crash(self, kept: int, checkpoint: int) -> None:
        cell = self.cell
        cell.log, cell.durable, cell.checkpoint = cell.log[:kept], kept, min(checkpoint, kept - 1)
        cell.replica, cell.serves, cell.kept = None, False, ()

    def _restart(self, incarnation: int, request_id: int, held: PartitionMetadata, live: tuple[tuple[str, int], ...]) -> None:
        cell = self.cell
        cell.incarnation = incarnation
        lease = Lease(1 << 62)
        lease.extend(NOW, 0, NOW)
        replica = cell.replica = Replica(NodeContext(cell.name, incarnation, CONFIG, lease))
        put_back_times(replica)
        self.feed(
            ev.LogOpened(
                log_start_offset=0,
                log_end_offset=len(cell.log),
                high_watermark=cell.checkpoint,
                epochs=scan(cell.log),
                persisted_epoch=cell.persisted,
            )
        )
        cell.checkpoint = -1
        shared_of(replica).next_request_id = request_id
        self._learn(held, live)

    def _deliver(self, message: Message) -> None:
        getattr(self, f"_{message[0]}_came")(*message)

    def _fetch_came(
        self, _: str, src: str, dst: str, rid: int, offset: int, offset_epoch: int, epoch: int, incarnation: int
    ) -> None:
        self._asker = src, rid
        self.feed(
            FetchRequest(
                token=1, replica=src, offset=offset, leader_epoch=epoch, offset_epoch=offset_epoch, incarnation=incarnation,
                request_id=rid, max_bytes=0, stream_uid=KEY.uid, awaits_more=True,
            )
        )  # fmt: skip

    def _query_came(self, _: str, src: str, dst: str, rid: int, requested_epoch: int, epoch: int) -> None:
        self._asker = src, rid
        self.feed(
            EpochQuery(
                token=1, replica=src, request_id=rid, requested_epoch=requested_epoch, current_epoch=epoch, stream_uid=KEY.uid
            )
        )

    def _fetched_came(
        self, _: str, src: str, dst: str, rid: int, epoch: int, hw: int, base: int, records: tuple[Record, ...]
    ) -> None:
        self._fetched = records
        spans = tuple(
            ev.BatchSpan(base_offset=base + i, last_offset=base + i, leader_epoch=written)
            for i, (written, _) in enumerate(records)
        )
        self.feed(ev.FetchAnswered(token=1, request_id=rid, leader_epoch=epoch, high_watermark=hw, spans=spans))

    def _answered_came(self, _: str, src: str, dst: str, rid: int, epoch: int, last_offset: int, current: int) -> None:
        self.feed(
            EpochAnswer(request_id=rid, leader_epoch=epoch, last_offset=last_offset, current_epoch=current, log_start_offset=0)
        )

    def _refused_came(self, _: str, src: str, dst: str, rid: int, reason: str, epoch: int) -> None:
        self.feed(FetchRefusal(request_id=rid, reason=RefusalReason[reason], leader_epoch=epoch, log_start_offset=0))
        if self.cell.replica is not None and shared_of(self.cell.replica).deadlines.is_set(ev.Deadline.FETCH):
            self._wake()  # as after a time-out: the back-off is left out

    def _isr_answer_came(self, _: str, src: str, dst: str, epoch: int) -> None:
        self.feed(ev.IsrChangeAnswered(epoch=epoch, accepted=False))

    # ---- effects -----------------------------------------------------------------------------------------------------
    def append_batch(self, effect: do.AppendBatch) -> None:
        check(effect.base_offset == len(self.cell.log), "D15", effect, "at", len(self.cell.log))
        check(self.cell.replica is not None and self.cell.replica.role == "LEADER", "C1", self.cell.name, "appends")
        self.cell.log = (*self.cell.log, (effect.leader_epoch, self._number))

    def append_fetched(self, effect: do.AppendFetched) -> None:
        self.cell.log = self.cell.log + self._fetched
        check(effect.last_offset == len(self.cell.log) - 1, "D15", effect, "but the log ends at", len(self.cell.log))

    def truncate_log(self, effect: do.TruncateLog) -> None:
        cell = self.cell
        check(cell.replica is not None and cell.replica.role != "LEADER", "D25", cell.name, effect)
        cell.log, cell.durable = cell.log[: effect.end_offset], min(cell.durable, effect.end_offset)
        self.feed(ev.LogTruncated(end_offset=effect.end_offset))

    def reset_log(self, effect: do.ResetLog) -> None:
        self.cell.log, self.cell.durable = (), 0
        self.feed(ev.LogTruncated(end_offset=effect.start_offset))

    def persist_leader_epoch(self, effect: do.PersistLeaderEpoch) -> None:
        self.cell.persisted = effect.leader_epoch
        self.feed(ev.LeaderEpochPersisted(leader_epoch=effect.leader_epoch))

    def replay_log(self, effect: do.ReplayLog) -> None:
        self.feed(ev.ReplayFinished(end_offset=effect.end_offset))

    def start_serving(self, effect: do.StartServing) -> None:
        self.cell.serves = True

    def close_subject(self, effect: do.CloseSubject) -> None:
        self.cell.serves, self.cell.kept = False, ()

    def send_acks(self, effect: do.SendAcks) -> None:
        if effect.policy is AckPolicy.ALL:
            self.acked = max(self.acked, effect.through_offset)

    def send_fetch_request(self, effect: FetchRequest) -> None:
        cell = self.cell
        check(effect.offset < cell.durable, "D6", cell.name, "acknowledges", effect.offset, "flushed is", cell.durable)
        request = effect.request_id, effect.offset, effect.offset_epoch, effect.leader_epoch, cell.incarnation
        self.sent.append(("fetch", cell.name, "*", *request))

    def send_epoch_query(self, effect: EpochQuery) -> None:
        self.sent.append(("query", self.cell.name, "*", effect.request_id, effect.requested_epoch, effect.current_epoch))

    def send_fetch_response(self, effect: do.SendFetchResponse) -> None:
        name, rid = self._asker
        self.cell.kept = tuple(pair for pair in self.cell.kept if pair[0] != name)
        self._send_records(name, rid, effect.from_offset, effect.leader_epoch)

    def park_fetch(self, effect: do.ParkFetch) -> None:
        name, rid = self._asker
        others = tuple(pair for pair in self.cell.kept if pair[0] != name)
        self.cell.kept = tuple(sorted((*others, (name, rid))))
        assert self.cell.replica is not None
        self._send_records(
            name, rid, len(self.cell.log), role_of(self.cell.replica).leader_epoch
        )  # SendHighWatermark's, which may come at once

    def answer_parked_fetch(self, effect: do.AnswerParkedFetch) -> None:
        for name, rid in self.cell.kept:
            if name == effect.replica:
                self.cell.kept = tuple(pair for pair in self.cell.kept if pair[0] != name)
                self._send_records(name, rid, effect.from_offset, effect.leader_epoch)

    def _send_records(self, name: str, rid: int, from_offset: int, epoch: int) -> None:
        assert self.cell.replica is not None
        records = self.cell.log[from_offset:]
        base = from_offset if records else 0
        self.sent.append(("fetched", self.cell.name, name, rid, epoch, self.cell.replica.high_watermark, base, records))

    def send_epoch_answer(self, effect: EpochAnswer) -> None:
        name, rid = self._asker
        self.sent.append(("answered", self.cell.name, name, rid, effect.leader_epoch, effect.last_offset, effect.current_epoch))

    def send_fetch_refusal(self, effect: FetchRefusal) -> None:
        name, rid = self._asker
        self.sent.append(("refused", self.cell.name, name, rid, effect.reason.name, effect.leader_epoch))

    def propose_isr(self, effect: do.ProposeIsr) -> None:
        asked = tuple(sorted(effect.isr)), effect.leader_epoch, effect.epoch, effect.incarnations, tuple(sorted(effect.lost))
        self.sent.append(("isr", self.cell.name, "M", *asked))

    def report_leader(self, effect: do.ReportLeader) -> None:
        told = effect.leader, effect.leader_epoch, effect.last_epoch, effect.newest_offset, effect.high_watermark
        check(effect.newest_offset < self.cell.durable, "D6", self.cell.name, "reports", effect.newest_offset)
        self.sent.append(("report", self.cell.name, "M", self.cell.incarnation, *told, effect.leader_lacks))

    def report_promotion(self, effect: do.ReportPromotion) -> None:
        if effect.finished:
            self.sent.append(("promoted", self.cell.name, "M", self.cell.incarnation, effect.leader_epoch, effect.epoch))

    def combine_fetch(self, effect: do.CombineFetch) -> None:
        raise AssertionError("quiet fetches are not in this model")


_ACTS: dict[type, Any] = {
    do.AppendBatch: Shell.append_batch,
    do.AppendFetched: Shell.append_fetched,
    do.TruncateLog: Shell.truncate_log,
    do.ResetLog: Shell.reset_log,
    do.PersistLeaderEpoch: Shell.persist_leader_epoch,
    do.ReplayLog: Shell.replay_log,
    do.StartServing: Shell.start_serving,
    do.CloseSubject: Shell.close_subject,
    do.SendAcks: Shell.send_acks,
    FetchRequest: Shell.send_fetch_request,
    EpochQuery: Shell.send_epoch_query,
    do.SendFetchResponse: Shell.send_fetch_response,
    do.ParkFetch: Shell.park_fetch,
    do.AnswerParkedFetch: Shell.answer_parked_fetch,
    EpochAnswer: Shell.send_epoch_answer,
    FetchRefusal: Shell.send_fetch_refusal,
    do.ProposeIsr: Shell.propose_isr,
    do.ReportLeader: Shell.report_leader,
    do.ReportPromotion: Shell.report_promotion,
    do.CombineFetch: Shell.combine_fetch,
}
"""Every other effect wakes somebody, tells somebody what the next request tells it, or is for people."""
