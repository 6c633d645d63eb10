"""SimMember: a controller between two crashes. ``MemberLog`` and ``QuorumMember`` as shipped; the shell around them is this one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from liftpy.config import NS_PER_S
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.controller.election_triggers import LeaderCheck, ProbeResult
from liftpy.core.metadata.controller.quorum_member import (
    CatchUp,
    EntryOutcome,
    MemberEffect,
    ProbeNode,
    ProposedEntry,
    PublishEntry,
    QuorumMember,
    TransferMetadataLeadership,
)
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata.member_log import UNLED_S, MemberDirectory, MemberEnvironment, MemberLog
from sidecar.quorum.driver import tick_once
from sidecar.quorum.library import outcome_of
from tests.simulation.raft.asking import Asking
from tests.simulation.raft.ghost import CheckedFsm, Violation

if TYPE_CHECKING:
    from tests.simulation.raft.group_simulation import Run

_LEADER = 2
_JOIN_ATTEMPT_NS = NS_PER_S

Decided = Callable[[pb.ControlResponse | None], None]


class DiskBefore:
    """A member's journal before a tick, to be left as a death within the tick's flush leaves it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal"
        self._before = self._path.read_bytes() if self._path.exists() else b""

    @property
    def written(self) -> bool:
        """Whether the tick changed the file: only then can a death be within its flush."""
        return self._path.read_bytes() != self._before

    def tear(self, draw: random.Random) -> str:
        """Keep a part of what the tick wrote: some first bytes of an append; of a rewrite the old file or the new one."""
        after = self._path.read_bytes()
        if after.startswith(self._before) and self._before:
            self._path.write_bytes(after[: draw.randrange(len(self._before), len(after))])
            return "torn: append"
        if draw.random() < 0.5:
            self._path.with_name("journal.tmp").write_bytes(after[: draw.randrange(len(after))])
            self._path.write_bytes(self._before)
            return "torn: rewrite, not yet renamed"
        return "torn: rewrite, just renamed"


class SimMember:
    """``death``: when it will die: one of DEATHS, or not at all; or of what it died."""

    def __init__(self, run: Run, node_id: str, joins: ControllerList | None = None) -> None:
        self.run_ = run
        self.node_id = node_id
        fsm, self.feed = self.state_machine(), FeedProducer()
        opened = MemberDirectory(node_id, run.members, run.folder / node_id, run.majority, run.compact_after, joins=joins)
        around = MemberEnvironment(lambda: run.now, run.now_ns, lambda: run.draws["nonces"].getrandbits(63))
        self.log = MemberLog(opened, fsm, self.feed, self._state_changed, around)
        self.log.core.conf.logCompactionBatchSize = run.piece_bytes
        self.log.core.conf.appendEntriesBatchSizeBytes = run.append_bytes
        self.member = QuorumMember(run.config, fsm.rules, self.log, self.feed, lambda: run.draws["ids"].randbytes(16))
        self.log.transport.sessions.fit(run.max_payload)
        self.feed.set_message_size(run.max_payload)
        self.log.transport.sessions.set_online(True)
        self.inbox: list[tuple[str, bytes]] = []
        self.death = ""
        self.paused_until = 0.0
        self._backlog: list[Callable[[], None]] = []
        self._dead = False
        self._answers: list[tuple[ProposedEntry, Decided, bytes | None, int]] = []
        self._open_orders: set[ProposedEntry] = set()
        self._unled_since = run.now
        """When it began to listen for a leader, or asked last."""
        self._waits: tuple[int, int] | None = None
        """(turn of its probation, index that has to be applied) of a barrier that was committed."""
        self._catch_up()

    def state_machine(self) -> CheckedFsm:
        """Of the version that the process runs."""
        return CheckedFsm(self.run_.ghost, self.node_id, self._steps, first=self.run_.first_image)

    # ---- what reaches it -----------------------------------------------------------------------------------------------
    def run(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` in this process, now or when the pause ends."""
        if self._dead:
            return
        if self.paused_until > self.run_.now:
            self._backlog.append(callback)
        else:
            callback()

    def resume(self) -> None:
        """What waited while it was paused comes at once."""
        backlog, self._backlog = self._backlog, []
        for callback in backlog:
            self.run(callback)

    def died(self) -> None:
        """Nothing reaches it any more."""
        self._dead = True
        self.log.journal.abandon()

    # ---- a tick --------------------------------------------------------------------------------------------------------
    def tick(self, frames: Sequence[tuple[str, bytes]]) -> None:
        """The part before anything leaves; raises StorageError."""
        tick_once(self.log.core, self.log.transport, self.log.journal, frames)

    def after_tick(self) -> None:
        """The rest of it, as ``Driver`` and ``RaftMember`` do it."""
        answers, self._answers = self._answers, []
        for order, done, answer, reason in answers:
            self._order_ended(order, outcome_of(answer, reason), answer, done)
        self.log.probation.end_if_complete()
        if self._waits is not None and self.log.applied_index >= self._waits[1]:
            turn, self._waits = self._waits[0], None
            self.log.probation.barrier_applied(turn)
            if self.log.probation.over:
                self.member.caught_up()
            else:
                self._catch_up()
        run = self.run_
        self._ask_whether_it_is_one()
        for decision in self.member.tick(run.now_ns(), votes=self.log.probation.over, online=True):
            self._do(decision)

    def _ask_whether_it_is_one(self) -> None:
        """As ``RaftMember``: who hears no leader asks whether the group goes on without it."""
        run = self.run_
        if run.changes and run.now - self._unled_since > UNLED_S:
            unled, self._unled_since = not self.log.has_leader_contact(self._unled_since), run.now
            if not unled:
                return
            request = pb.ControlRequest(describeCluster=pb.DescribeCluster(), linearizable=True)
            request.operationId = run.draws["ids"].randbytes(16)
            Asking(run, self.node_id, self.run, request, _JOIN_ATTEMPT_NS, self._told_who_they_are)

    def _told_who_they_are(self, response: pb.ControlResponse) -> None:
        if self.log.process_leader_description(response):
            self.run_.seen["members told that they are none"] += 1

    def _steps(self) -> int:
        """Of the work on the entry that is to be applied next: one in four takes several ticks, with all that may happen meanwhile."""
        run, draw = self.run_, self.run_.draws["long entries"]
        drawn, steps, many = draw.random(), draw.randint(2, 12), draw.randint(20, 60)
        if not (run.has_long_entries and run.faults.last):
            return 1
        return many if drawn < 0.02 else steps if drawn < 0.25 else 1

    def _state_changed(self, old: int, new: int) -> None:
        if old == _LEADER and new != _LEADER:
            self.member.resign()

    def _do(self, effect: MemberEffect) -> None:
        run = self.run_
        match effect:
            case PublishEntry():
                run.published(self, effect.entry)
            case ProposedEntry():
                self.order(effect, lambda _: None)
            case CatchUp():
                self._catch_up()
            case TransferMetadataLeadership():
                run.seen["leaders that hand over to leave"] += 1
                self.member.transfer_requested()
                self.log.core.hand_over()
            case ProbeNode():
                absent = run.is_absent(effect.node_id)
                run.later(NS_PER_S // 200, lambda: self.run(lambda: self._looked_for(effect, absent)))
            case LeaderCheck():
                said = ProbeResult.ABSENT if run.is_absent(effect.node) else None
                run.later(NS_PER_S // 200, lambda: self.run(lambda: self.member.question_answered(effect, said)))

    def _looked_for(self, looked: ProbeNode, absent: bool) -> None:
        self.run_.seen["nodes found absent"] += absent
        self.member.probe_ended(looked.node_id, absent=absent)

    # ---- requests ------------------------------------------------------------------------------------------------------
    def decide(self, request: pb.ControlRequest, timeout_ns: int, done: Decided) -> None:
        """As ``Orders.decide``."""
        decided = self.member.request(request, timeout_ns, self.run_.now_ns())
        if request.HasField("heartbeat") and isinstance(decided, pb.ControlResponse) and decided.error == pb.ControlResponse.OK:
            self.run_.checks.granted(self)
        if isinstance(decided, ProposedEntry):
            self.order(decided, done)
        else:
            done(decided)

    def order(self, order: ProposedEntry, done: Decided) -> None:
        """As ``Orders.order``."""
        entry = self.member.entry(order, self.run_.wall_ns(self.node_id), self.run_.append_bytes - 1)
        if not isinstance(entry, bytes):
            self.run_.seen["entries that are too large"] += 1
            done(entry)
            return
        self._open_orders.add(order)
        self.log.core.propose(
            entry,
            lambda answer, reason: self._answers.append((order, done, answer, reason)),
            change=order.changes_controllers,
        )
        self.run_.wake(self.node_id)
        late = partial(self._order_ended, order, EntryOutcome.UNKNOWN, None, done)
        self.run_.later(order.timeout_ns, lambda: self.run(late))

    def _order_ended(self, order: ProposedEntry, outcome: EntryOutcome, answer: bytes | None, done: Decided) -> None:
        if order in self._open_orders:
            self._open_orders.discard(order)
            self.run_.seen[f"orders: {outcome.name}"] += 1
            done(self.member.proposal_ended(order, outcome, answer, self.run_.now_ns()))

    def _catch_up(self) -> None:
        """As ``RaftMember._catch_up``: barriers until one is applied that ends probation."""
        turn = self.log.probation.turn
        request = pb.ControlRequest(barrier=pb.Barrier(), operationId=self.run_.draws["ids"].randbytes(16))
        Asking(self.run_, self.node_id, self.run, request, _JOIN_ATTEMPT_NS, partial(self._barrier_answered, turn), here=self)

    def _barrier_answered(self, turn: int, response: pb.ControlResponse) -> None:
        if response.error == pb.ControlResponse.OK:
            self._waits = (turn, response.index)
        else:
            self._catch_up()

    # ---- the feed ------------------------------------------------------------------------------------------------------
    def fed(self, request: pb.FeedSnapshotRequest) -> pb.FeedSnapshotResponse | None:
        """As ``FeedPublisher``."""
        response = self.feed.answer(request)
        if response is None:
            image: ClusterImage = self.log.image
            self.feed.snapshot_is_ready(image.index, encode_snapshot(image, operations=False))
            response = self.feed.answer(request)
        if response is not None and response.chunk:
            self.run_.seen["chunks of the feed's snapshots"] += 1
            if not response.index:
                raise Violation(f"M11: {self.node_id} serves a snapshot of index 0")
        return response
