"""Checks the invariants of docs/invariants.md after each step of a simulated cluster.

The checks read real logs and replicas, and a ghost state. A violation raises InvariantError with the invariant's name.
Each check reads
only what a step can have changed, so it costs microseconds. ``SimReplica`` and ``SimGroup`` call the hooks.

Also checked: the clock by which a simulated node decides that records are too old [D28], and the disks that have
everything committed.

The latter decide what a fault may destroy. With the ISR, one complete member is enough, because it is elected. With the
quorum, an election
also needs enough eligible replicas that no majority is without a complete one. A fault that leaves fewer has lost the
partition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from liftpy.config import NS_PER_S, AckPolicy, CommitPolicy
from liftpy.core.base.clock_trust import BOUND_NS
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.sessions import heartbeat_every_s
from liftpy.core.publish.message_decoder import RawMessage
from liftpy.core.publish.standby import FailoverBacklog
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRequest
from liftpy.core.replication.phases import LeaderPhase, RoleName
from liftpy.core.wire.batch import parse_header, split_batches
from tests.simulation.replica.compaction_checks import gone_for_good, kept_the_newest, newest_of_each_key
from tests.simulation.replica.ghost import PartitionGhost, Shadow
from tests.simulation.replica.messages import Ack, FetchFrame, Publish, ids_in, value_in

if TYPE_CHECKING:
    from tests.simulation.replica.cluster import Cluster
    from tests.simulation.replica.process import SimNode, SimProcess
    from tests.simulation.replica.sim_replica import SimReplica


class ClockChecks:
    """Checks the clocks of a cluster. A clock counts as right if it is off by at most half the limit."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._were_wrong: set[str] = set()
        """Nodes whose clock was not right at some time."""

    def _error_ns(self, machine: SimNode) -> int:
        return abs(machine.clock.now_ns() + machine.wall_offset_ns - self._cluster.clock.now_ns)

    def told_ages(self, machine: SimNode, told_ns: int, peers: Sequence[str]) -> None:
        """Check the time that ``machine`` uses for ages: ``told_ns``, 0: none. ``peers``: nodes that it may ask [D28]."""
        for one in self._cluster.nodes.values():
            if self._error_ns(one) > BOUND_NS // 2:
                self._were_wrong.add(one.node_id)
        clocks = {machine.node_id, *peers}
        if told_ns and peers and 2 * len(clocks & self._were_wrong) < len(clocks):
            error_ns = self._error_ns(machine)
            check(
                error_ns <= BOUND_NS + BOUND_NS // 2, "D28", machine.node_id, "tells ages by a clock that is off by", error_ns
            )


def others_hold_enough(
    stream: StreamImage, partition: PartitionState, left_out: Collection[str], whole: Collection[str]
) -> bool:
    """Return whether the partition can continue without ``left_out``. ``whole``: nodes whose disk has everything."""
    by_quorum = stream.config.commit_policy is CommitPolicy.QUORUM
    able = stream.electable_replicas(partition) if by_quorum else partition.isr
    needed = (len(partition.replicas) + 1) // 2 if by_quorum else 1
    return len({*able} & {*whole} - {*left_out}) >= needed


class Checkers:
    """All checkers, with the ghost state of each partition."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ghosts: dict[PartitionKey, PartitionGhost] = {}
        self.rejected_ids: set[int] = set()
        self.committed_ids: set[int] = set()
        self.repeated: set[int] = set()
        """Messages that are sent again under one message id: a refusal says nothing of the next attempt."""
        self.expected: dict[int, tuple[int, int]] = {}
        """Message -> (subject, the last sequence of it that it expects)."""
        self._last: dict[tuple[PartitionKey, int], int] = {}
        """(partition, subject) -> the offset of its last committed record."""
        self.follows: dict[int, int] = {}
        """A producer's message -> the one before it, of the same process: of all that are the producer's that is committed before."""
        self._told: dict[tuple[PartitionKey, int], int] = {}
        """The offset that a message was acknowledged at, ALL."""
        self._stored: dict[int, int] = {}
        """Committed offset of each stored message."""
        self.isr_changes = 0
        self.clocks = ClockChecks(cluster)
        self._left: set[tuple[PartitionKey, str]] = set()
        """(partition, node) that was a holder once and was none later."""

    def ghost(self, key: PartitionKey) -> PartitionGhost:
        """Return the ghost of one partition."""
        if key not in self.ghosts:
            self.ghosts[key] = PartitionGhost(deletes=self.cluster.plan.has_deletes(key.stream))
        return self.ghosts[key]

    def shadow(self, replica: SimReplica) -> Shadow:
        """Return the shadow of one replica's log."""
        return self.ghost(replica.key).shadows.setdefault(replica.host, Shadow())

    def chain_at(self, replica: SimReplica, offset: int) -> int | None:
        """Return the digest of a replica's log through ``offset``."""
        return self.shadow(replica).chain_at(offset)

    def _where(self, replica: SimReplica) -> str:
        return f"{replica.host}[{replica.process.incarnation}] {replica.replica.role} e{replica.replica.leader_epoch}"

    # ---- the log -----------------------------------------------------------------------------------------------------
    def opened(self, replica: SimReplica) -> None:
        """Check a newly opened log: flushed records exist [S1], and this node may have it [D5]."""
        if not replica.log.log_end_offset and (replica.key, replica.node_id) in self._left:
            self.ghost(replica.key).shadows.pop(replica.host, None)  # its disk was emptied while it held none of this any more
        ghost, old, log = self.ghost(replica.key), self.shadow(replica), replica.log
        where = self._where(replica)
        if not replica.process.lost_data:
            check(log.log_end_offset >= old.durable_end_offset, "S1", where, log.log_end_offset, old.durable_end_offset)
        if log.log_start_offset > ghost.log_start_offset:  # retention was stored, and the process died before it could say so
            check(log.log_start_offset <= ghost.high_watermark + 1, "D26", where, log.log_start_offset)
            ghost.log_start_offset = log.log_start_offset
        known = old.base_chain if log.log_start_offset == old.log_start_offset else None
        base = ghost.chain_below(log.log_start_offset) if known is None else known
        shadow = Shadow(log_start_offset=log.log_start_offset, base_chain=base)
        ghost.shadows[replica.host] = shadow
        self._push_all(replica, log.log_start_offset, where)
        shadow.durable_end_offset = log.log_end_offset
        ghost.commit(shadow, log.log_start_offset - 1, ghost.known_through(shadow, log.high_watermark), where)

    def _push_all(self, replica: SimReplica, from_offset: int, where: str) -> None:
        log = replica.log
        data = b"".join(log.read(from_offset, 1 << 40, end_offset=log.log_end_offset).chunks)
        self._push(replica, data, None, where)

    def _push(self, replica: SimReplica, data: bytes | memoryview, ids: tuple[int, ...] | None, where: str) -> None:
        ghost, shadow, view, position = self.ghost(replica.key), self.shadow(replica), memoryview(data), 0
        while position < len(view):
            header = parse_header(view, position)
            ghost.push(shadow, header, ids, where)
            position += header.size_bytes

    def appended(self, replica: SimReplica, data: bytes | memoryview, *, led: bool) -> None:
        """Check appended batches: the leader's own (``led``) or fetched ones."""
        where, ids = self._where(replica), None
        if led:
            check(replica.replica.role is RoleName.LEADER, "C1", where, "appends")
            (batch,) = split_batches(data)
            ids = ids_in(batch)
        self._push(replica, data, ids, where)

    def newest_is_newest(self, replica: SimReplica) -> None:
        """Check that a replica's newest record of each key is the true newest one, or none after a delete [D29]."""
        ghost, log = self.ghost(replica.key), replica.log
        unknown = self.lost_by_command(replica.key) or replica.process.node.went_back or replica.failed or bool(log.closed)
        if ghost.deletes and not unknown and not replica.is_busy:
            newest_of_each_key(self._where(replica), log, ghost)
            self.cluster.counters["newest of each key compared"] += 1

    def cut(self, replica: SimReplica, *, afresh: bool = False) -> None:
        """A follower cut its log: nothing committed is gone [D9, D10], and no leader does that [D25]. ``afresh``: it threw all away,
        and is no member of the ISR."""
        ghost, shadow, log, where = self.ghost(replica.key), self.shadow(replica), replica.log, self._where(replica)
        check(replica.replica.role is not RoleName.LEADER, "D25", where, "cut to", log.log_end_offset)
        member = replica.node_id in self._truth(replica.key).isr and not self.lost_by_command(replica.key)
        check(not (afresh and member), "D3", where, "throws its log away and is in the ISR")
        at_another = log.log_start_offset != shadow.log_start_offset
        gone = shadow.cut(-1 if afresh or at_another else log.log_end_offset)
        for key in gone:
            still_needed = not afresh and (not at_another or key[1] >= log.log_start_offset)
            if still_needed and not self._truth(replica.key).unclean_elected:
                unknown = (
                    ghost.led_by_older and key[1] > log.high_watermark
                )  # to itself: what it knows to be committed it keeps
                check(unknown or ghost.committed.get(key[1]) != key, "D9", where, "cut the committed", key)
        if afresh or at_another:
            shadow.log_start_offset, shadow.base_chain = log.log_start_offset, ghost.chain_below(log.log_start_offset)
            check(log.log_start_offset <= ghost.log_start_offset, "D26", where, "starts afresh at", log.log_start_offset)
        shadow.durable_end_offset = log.log_end_offset

    def lost_by_command(self, key: PartitionKey) -> bool:
        """Return whether an operator has commanded an unclean election, or left only a copy of a running directory."""
        return self._truth(key).unclean_elected or self.ghost(key).led_by_older

    def prefix_dropped(self, replica: SimReplica) -> None:
        """The log start moved: never above HW [D26]."""
        ghost, shadow, log = self.ghost(replica.key), self.shadow(replica), replica.log
        check(log.log_start_offset <= ghost.high_watermark + 1, "D26", self._where(replica), log.log_start_offset)
        check(log.log_start_offset >= shadow.log_start_offset, "D26", self._where(replica), "falls")
        shadow.drop_prefix(log.log_start_offset)
        ghost.log_start_offset = max(ghost.log_start_offset, log.log_start_offset)

    # ---- after every step ------------------------------------------------------------------------------------------------
    def before_effect(self, replica: SimReplica, effect: do.Effect) -> None:
        """Check what must hold before an effect is carried out."""
        if isinstance(effect, do.RaiseHighWatermark):
            self._high_watermark_rises(replica, effect.high_watermark)
        elif isinstance(effect, FetchRequest):
            self._fetch_leaves(replica, effect)
        elif isinstance(effect, do.OpenSubject):
            ghost = self.ghost(replica.key)
            ghost.opened_epoch = max(ghost.opened_epoch, replica.replica.leader_epoch)

    def _high_watermark_rises(self, replica: SimReplica, high_watermark: int) -> None:
        ghost, shadow, log, where = self.ghost(replica.key), self.shadow(replica), replica.log, self._where(replica)
        check(high_watermark <= log.newest_offset, "D7", where, "HW", high_watermark, "newest", log.newest_offset)
        check(high_watermark > log.high_watermark, "D8", where, "HW", log.high_watermark, "->", high_watermark)
        check(high_watermark < log.flushed_end_offset, "D6", where, "HW", high_watermark, "is not on its own disk")
        shadow.durable_end_offset = max(shadow.durable_end_offset, log.flushed_end_offset)
        if ghost.led_by_older:
            ghost.replaced_by(shadow, log.high_watermark, high_watermark)
        fresh = ghost.commit(shadow, log.high_watermark, high_watermark, where)
        if not fresh:
            return
        core = replica.replica
        check(core.role is RoleName.LEADER, "D6", where, "commits", fresh)
        check(len(core.state.isr) >= core.min_isr, "D20", where, "commits with ISR", sorted(core.state.isr))
        self._complete_members(replica.key, "D6")
        for key in fresh:
            self._committed_publish(replica.key, ghost, key, where)
            if not self.expected.keys().isdisjoint(ghost.spans[key][1]):
                self._as_expected(replica.key, ghost, *ghost.spans[key], where)

    def _committed_publish(self, of: PartitionKey, ghost: PartitionGhost, key: tuple[int, int], where: str) -> None:
        """Check the order per publisher [A4], and that rejected messages stay invisible [A2]."""
        base, ids = ghost.spans[key]
        if not self.repeated.isdisjoint(ids):
            self._once(of, ghost, base, ids, where)
        check(not self.rejected_ids.intersection(ids), "A2", where, "commits what was refused", ids)
        self.committed_ids.update(ids)
        for message_id in ids:
            publisher, _ = self.cluster.publishes[message_id]
            newest = ghost.newest_ids.get(publisher, -1)
            if message_id in self.repeated and newest == message_id:
                continue  # ``_once`` has looked
            check(newest < message_id, "A4", where, publisher, message_id, "after", newest)
            before = self.follows.get(message_id, newest)
            check(before == newest, "A4", where, publisher, message_id, "commits, and is to follow", before, "not", newest)
            ghost.newest_ids[publisher] = message_id

    def after_step(self, replica: SimReplica, event: ev.Event) -> None:
        """The core's view of its log is the log's own; the epoch cache is a scan [D7, D13]."""
        if replica.failed or replica.is_busy:
            return
        log, core, shadow = replica.log, replica.replica.log, self.shadow(replica)
        where = self._where(replica)
        check(core.log_end_offset == log.log_end_offset, "D15", where, "core", core.log_end_offset, "log", log.log_end_offset)
        check(core.flushed_end_offset <= log.flushed_end_offset, "D21", where, "takes for flushed what is not", event)
        check(log.high_watermark <= log.newest_offset, "D7", where, log.high_watermark, log.newest_offset)
        check(core.high_watermark == log.high_watermark, "D7", where, core.high_watermark, log.high_watermark)
        check(log.log_end_offset == shadow.log_end_offset, "D15", where, "lost track of", log.log_end_offset)
        shadow.durable_end_offset = max(shadow.durable_end_offset, log.flushed_end_offset)
        if isinstance(event, ev.PartitionChanged | ev.LogTruncated | ev.LogStartMoved | ev.LogOpened | ev.FetchAnswered):
            check(core.epochs.entries == log.epochs.entries, "D13", where, core.epochs.entries, log.epochs.entries)
            check(log.epochs.entries == shadow.scan(), "D13", where, log.epochs.entries, "scan", shadow.scan())
        if replica.replica.role is RoleName.LEADER:
            self._leader_speaks(replica, where)
            if isinstance(event, FetchRequest | ev.PartitionChanged):
                self._positions_are_true(replica, where)

    def _positions_are_true(self, replica: SimReplica, where: str) -> None:
        """The leader's view of a follower is nothing that this process of the follower has not flushed [D18, C12]."""
        for follower in replica.replica.snapshot(replica.now_ns()).followers:
            process = self.cluster.acting(follower.replica).process
            current = process is not None and process.incarnation == replica.replica.live_incarnation(follower.replica)
            if follower.position is None or not current or process is None or replica.key not in process.replicas:
                continue
            state, told = replica.replica.state, process.replicas[replica.key].replica
            if told.leader_epoch != replica.replica.leader_epoch:
                continue  # it has gone on to another leader: nothing more can be committed here with its help
            if told.state.copy_of(follower.replica) != state.copy_of(follower.replica):
                continue  # it has begun another copy, of which the leader has not heard: nobody can be let in for the one before
            durable = self.shadow(process.replicas[replica.key]).durable_end_offset
            check(
                follower.position < durable, "D18", where, "has", follower.replica, "at", follower.position, "flushed", durable
            )

    def _leader_speaks(self, replica: SimReplica, where: str) -> None:
        """Check that the latest offset never falls [D8, R4], except after a commanded unclean election."""
        unseen = self.lost_by_command(replica.key) or replica.process.node.went_back
        if unseen or not replica.replica.may_answer_latest(replica.now_ns()):
            return
        ghost = self.ghost(replica.key)
        check(replica.log.high_watermark >= ghost.latest, "R4", where, "latest", replica.log.high_watermark, ghost.latest)
        ghost.latest = replica.log.high_watermark

    # ---- fetches -----------------------------------------------------------------------------------------------------------
    def _fetch_leaves(self, replica: SimReplica, effect: FetchRequest) -> None:
        """Check that a fetch acknowledges flushed records and follows the truncation for its epoch [D11, D12, D18]."""
        log, where = replica.log, self._where(replica)
        check(effect.offset < log.flushed_end_offset, "D18", where, "acknowledges", effect.offset, log.flushed_end_offset)
        leader = self._acting_leader(replica.key, effect.leader_epoch)
        if leader is None or log.log_end_offset == log.log_start_offset:
            return
        theirs, mine = self.shadow(leader), self.shadow(replica)
        offset = log.newest_offset
        if offset >= theirs.log_start_offset and self._agreed_once(replica, effect.leader_epoch):
            check(mine.chain_at(offset) == theirs.chain_at(offset), "D12", where, "fetches from", offset, "without the cut")

    def _agreed_once(self, replica: SimReplica, leader_epoch: int) -> bool:
        return replica.replica.leader_epoch == leader_epoch and replica.replica.may_serve_committed()

    def _acting_leader(self, key: PartitionKey, leader_epoch: int) -> SimReplica | None:
        for node in self.cluster.machines:
            replica = node.process.replicas.get(key) if node.process is not None else None
            if replica is None or replica.failed or replica.replica.leader_epoch != leader_epoch:
                continue
            if replica.replica.role in (RoleName.LEADER, RoleName.CANDIDATE):
                return replica
        return None

    def fetch_accepted(self, replica: SimReplica, frame: FetchFrame) -> None:
        """A leader counts a fetch: the follower's log through that offset is a prefix of its own [D11, D16, D17]."""
        where, request = self._where(replica), frame.fetch
        check(
            request.leader_epoch == replica.replica.leader_epoch, "D11", where, "counts a fetch of epoch", request.leader_epoch
        )
        self.cluster.counters["fetch answered"] += 1
        if frame.ghost_chain is None:
            return
        own = self.shadow(replica).chain_at(request.offset)
        check(own == frame.ghost_chain, "D17", where, "counts a diverging fetch of", request.replica, "at", request.offset)

    def quiet_fetch_confirmed(self, replica: SimReplica, follower: str, end_offset: int) -> None:
        """Check a confirmed waiting fetch: the follower's log, flushed to ``end_offset``, has all records of the leader [D16]."""
        self.cluster.counters["quiet fetch confirmed"] += 1
        core = replica.replica
        check(core.role is RoleName.LEADER, "D11", self._where(replica), "confirms a fetch of", follower)
        check(end_offset == core.log.log_end_offset, "D16", self._where(replica), "confirms", follower, "at", end_offset)

    def epoch_answered(self, replica: SimReplica, query: EpochQuery, effect: EpochAnswer) -> None:
        """A leader answers `.offset` as a scan of its log would [D12, D27]."""
        shadow = self.shadow(replica)
        known = [(e, last) for e, last in zip(shadow.epochs, shadow.lasts, strict=True) if e <= query.requested_epoch]
        epoch, last = known[-1] if known else (0, -1)
        answer = (effect.leader_epoch, effect.last_offset)
        check(
            answer == (epoch, last), "D27", self._where(replica), "answers", answer, "for", query.requested_epoch, "not", last
        )

    # ---- acks ----------------------------------------------------------------------------------------------------------------
    def rejected(self, replica: SimReplica, message_id: int) -> None:
        """Check a negative ack: the message is not stored, and the sender may answer [A2, D22]."""
        where = self._where(replica)
        lost = message_id in self.repeated and self.lost_by_command(replica.key)
        check(lost or message_id not in self.committed_ids, "A2", where, "refuses what is committed", message_id)
        self._may_speak(replica, where)
        if message_id not in self.repeated:
            self.rejected_ids.add(message_id)

    def answered_again(self, replica: SimReplica, message_id: int, offset: int, effect: do.SendAcks) -> None:
        """Check the ack of a repeated message: it is committed there, and the sender may answer [A3, D22]."""
        ghost, where = self.ghost(replica.key), self._where(replica)
        self._may_speak(replica, where)
        if offset < 0:
            return  # it is not among the last of its producer, or no message at all but a question
        held = ghost.message_at(offset)
        check(
            held == message_id, "A3", where, "says", message_id, "is at", offset, "where is", held, "HW", ghost.high_watermark
        )
        key = ghost.committed[ghost.lasts[bisect_left(ghost.lasts, offset)]]
        self.cluster.counters["duplicate answered"] += 1
        self.cluster.counters["duplicate of an earlier leader's record"] += key[0] != effect.leader_epoch
        ghost.acked_all[key[1]] = key

    def _once(self, key: PartitionKey, ghost: PartitionGhost, base: int, ids: tuple[int, ...], where: str) -> None:
        """Check that a repeated message id is committed once [A3], even after its record was deleted [A16]."""
        for place, message_id in enumerate(ids):
            if message_id in self.repeated:
                before = self._stored.get(message_id, -1)
                dropped = before < ghost.log_start_offset
                gone = self.lost_by_command(key) if dropped else ghost.message_at(before) != message_id
                self.cluster.counters["sent again, its record dropped"] += dropped and before >= 0
                code = "A16" if dropped else "A3"
                check(before < 0 or gone, code, where, "commits", message_id, "at", base + place, "and at", before)
                self._stored[message_id] = base + place

    def _as_expected(self, key: PartitionKey, ghost: PartitionGhost, base: int, ids: tuple[int, ...], where: str) -> None:
        """Check that a publish with an expected sequence follows that record, or retention deleted it [A7]."""
        for place, message_id in enumerate(ids):
            if message_id in self.expected:
                subject, expected = self.expected[message_id]
                last = self._last.get((key, subject), -1)
                fits = expected == last + 1 or (not expected and last < ghost.log_start_offset) or self.lost_by_command(key)
                check(fits, "A7", where, "commits", message_id, "behind", last, "of its subject, it expects", expected)
                self._last[key, subject] = base + place

    def answered(self, replica: SimReplica, publish: Publish, ack: Ack, effect: do.SendAcks | None) -> None:
        """Check a positive ack: it matches the publish and its epoch [A1]."""
        where = self._where(replica)
        check(effect is not None and publish.policy is effect.policy, "A1", where, "answers", publish.policy, "for", effect)
        check(effect is not None and ack.leader_epoch in (0, effect.leader_epoch), "A1", where, "says", ack, "for", effect)

    def acknowledged(self, replica: SimReplica, acked: list[tuple[int, int]], effect: do.SendAcks) -> None:
        """Acks leave, (message id, offset) of each [A1, D1, D21, D22]."""
        ghost, where = self.ghost(replica.key), self._where(replica)
        self._may_speak(replica, where)
        shadow, seen = self.shadow(replica), set[int]()
        for message_id, offset in acked:
            lasts = shadow.lasts if offset >= shadow.log_start_offset else ghost.lasts  # it may have expired by now
            index = bisect_left(lasts, offset)
            last_offset = lasts[index] if index < len(lasts) else -1
            key = effect.leader_epoch, last_offset
            if replica.log.config.failover_standby and 0 <= index < len(lasts):  # it answers for those before it too
                key = (shadow.epochs[index], last_offset) if lasts is shadow.lasts else ghost.committed[last_offset]
                self.cluster.counters["answered for an earlier leader"] += key[0] != effect.leader_epoch
            base, ids = ghost.spans.get(key, (0, ()))
            held = ids[offset - base] if 0 <= offset - base < len(ids) else -1
            check(held == message_id, "A1", where, "acknowledges", message_id, "at", offset, "where is", held)
            if effect.policy is AckPolicy.ALL and message_id not in self.repeated and not self.lost_by_command(replica.key):
                told = self._told.setdefault((replica.key, message_id), offset)
                check(told == offset, "A8", where, "says", message_id, "is at", offset, "and it was said to be at", told)
            if last_offset not in seen:
                seen.add(last_offset)
                self._batch_acknowledged(replica, ghost, key, effect)

    def taken_over(self, replica: SimReplica, heard: Sequence[RawMessage], claim: FailoverBacklog, buffer_start: int) -> None:
        """Check a takeover: the standby buffer lost no message that the old leader had not processed, and stored none twice
        [A3, A4]."""
        ghost, shadow, where = self.ghost(replica.key), self.shadow(replica), self._where(replica)
        spans = [(key[1], ghost.spans[key][1]) for key in zip(shadow.epochs, shadow.lasts, strict=True)]
        stored = {message_id for _, ids in spans for message_id in ids}
        later = {message_id for last_offset, ids in spans if last_offset >= buffer_start for message_id in ids}
        newest = {self.cluster.publishes[message_id][0]: message_id for message_id in sorted(stored)}
        taken = [value_in(message) for message in (*claim.fresh, *claim.undecided)]
        unheard = later - set(map(value_in, heard))
        for message_id in map(value_in, heard):
            publisher, _ = self.cluster.publishes[message_id]
            passed_over = newest.get(publisher, -1) > message_id or unheard
            is_there = message_id in stored or message_id in self.committed_ids or message_id in taken
            check(is_there or bool(passed_over), "A3", where, "heard", message_id, "and lets it go")
        for message_id in taken:
            check(message_id not in stored or message_id in self.repeated, "A3", where, "takes", message_id, "again")

    def _batch_acknowledged(
        self, replica: SimReplica, ghost: PartitionGhost, key: tuple[int, int], effect: do.SendAcks
    ) -> None:
        where, last_offset = self._where(replica), key[1]
        check(last_offset < replica.log.flushed_end_offset, "D21", where, "acknowledges unflushed", last_offset)
        self.cluster.counters[f"ack {effect.policy.name}"] += 1
        if effect.policy is not AckPolicy.ALL:
            return
        check(ghost.committed.get(last_offset) == key, "D1", where, "acknowledges uncommitted", key)
        chain = ghost.chains[key][0]
        holders = {
            host.rstrip("'")
            for host, shadow in ghost.shadows.items()
            if shadow.log_start_offset > last_offset
            or (shadow.durable_end_offset > last_offset and shadow.chain_at(last_offset) == chain)
        }
        min_isr = replica.replica.min_isr
        # They held it when it was committed: in an earlier epoch, or disks have been lost since.
        before = key[0] != effect.leader_epoch or ghost.disk_lost_in_epoch == effect.leader_epoch
        held = len(holders) >= min_isr or before
        check(held, "D21", where, "acknowledges", key, "flushed on", sorted(holders), "only")
        ghost.acked_all[last_offset] = key
        ghost.acks_all += 1

    def _may_speak(self, replica: SimReplica, where: str) -> None:
        """Check that a node without a session answers nothing [D22]."""
        group, process = self.cluster.group, replica.process
        node = group.image.nodes[replica.node_id]
        check(node.incarnation == process.incarnation, "D22", where, "speaks, though", node.incarnation, "is its successor")
        check(not node.fenced, "D22", where, "speaks while its session has ended")
        fenced_at = group.fenced_at.get(replica.node_id, -1)
        own_fence_seen = fenced_at <= replica.known_index
        opened = self.ghost(replica.key).opened_epoch
        check(replica.replica.leader_epoch >= opened, "D22", where, "speaks, though epoch", opened, "has opened")
        check(own_fence_seen, "D22", where, "speaks on image", replica.known_index, "but was fenced at", fenced_at)

    def deletes(self, process: SimProcess, key: PartitionKey) -> None:
        """Check a deletion of data: an applied record says that the node is no replica [M11]."""
        truth = self._truth(key)
        check(process.node_id not in truth.replicas, "M11", process.host, "deletes", key, "and is a replica of", truth)
        self.ghost(key).shadows.pop(process.host, None)

    def disk_lost(self) -> None:
        """Note that a fault removed flushed data of a disk."""
        for key, ghost in self.ghosts.items():
            ghost.disk_lost_in_epoch = self._truth(key).leader_epoch

    # ---- roles and the metadata ------------------------------------------------------------------------------------------
    def role_changed(self, replica: SimReplica, effect: do.RoleChanged) -> None:
        """Check that there is one leader per LeaderEpoch, the recorded one, with all committed records [C1, D2]."""
        if effect.role is not RoleName.LEADER or effect.phase != LeaderPhase.REPLAY:
            return
        ghost, where, log = self.ghost(replica.key), self._where(replica), replica.log
        me = (replica.node_id, replica.process.incarnation)
        check(ghost.leaders.setdefault(effect.leader_epoch, me) == me, "C1", where, "and", ghost.leaders[effect.leader_epoch])
        recorded = self.cluster.leader_of_epoch.get((replica.key, effect.leader_epoch))
        check(recorded == replica.node_id, "C1", where, "leads, recorded is", recorded)
        superseded = self._truth(replica.key).leader_epoch > effect.leader_epoch  # it has been paused; it may not speak [D22]
        if not superseded and not self.lost_by_command(replica.key):
            complete = ghost.holds_committed(self.shadow(replica), log.flushed_end_offset)
            seen = complete or not replica.process.node.went_back
            check(
                complete or not seen,
                "D2",
                where,
                "leads to",
                log.flushed_end_offset,
                "but",
                ghost.high_watermark,
                "is committed",
            )
            if not seen:
                self._led_by_older(replica, ghost)
        self.cluster.counters["leaderships"] += 1

    def _led_by_older(self, replica: SimReplica, ghost: PartitionGhost) -> None:
        """Return whether its old log was undetectable and all better replicas were down or silent at the election."""
        self.cluster.counters["led by a log that went back"] += 1
        ghost.led_by_older = ghost.may_be_gone = True

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Check a decision of the metadata group [C2, C3, C6, M6]. All ISR members have all committed records [D3, D19]."""
        check(self.cluster.group.fsm.failure_count == 0, "M6", "an apply failed")
        if new.nodes is not old.nodes:
            self._nobody_is_deposed(old, new)
        for stream in new.streams.values():
            before = old.streams.get(stream.name)
            if before is stream:
                continue
            for partition in stream.partitions:
                was = before.partitions[partition.partition] if before is not None else None
                if was is not partition:
                    self._partition_changed(stream.key(partition.partition), was, partition, new)

    def _nobody_is_deposed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Check that no process replaces one that sends heartbeats [C12]."""
        cluster = self.cluster
        for node_id, node in old.nodes.items():
            after, (incarnation, beat_ns) = new.nodes.get(node_id), cluster.group.beats.get(node_id, (0, 0))
            if after is None or after.incarnation == node.incarnation or incarnation != node.incarnation:
                continue
            silent_s = (cluster.clock.now_ns - beat_ns) / NS_PER_S
            every_s = heartbeat_every_s(
                cluster.plan.own_config("group").heartbeat_interval_s, cluster.group.image.session_times
            )
            check(silent_s >= every_s, "C12", after, "takes the place of", incarnation, silent_s)

    def _partition_changed(
        self, key: PartitionKey, old: PartitionState | None, new: PartitionState, image: ClusterImage
    ) -> None:
        check(set(new.isr) <= set(new.replicas) and bool(new.isr), "C3", new)
        check(new.leader == "" or new.leader in new.isr, "C3", new)
        if new.status is PartitionStatus.ONLINE:
            recorded = self.cluster.leader_of_epoch.setdefault((key, new.leader_epoch), new.leader)
            check(recorded == new.leader, "C1", "epoch", new.leader_epoch, "of", recorded, "is given to", new.leader)
        if old is None:
            return
        check(new.epoch > old.epoch and new.leader_epoch >= old.leader_epoch, "C2", old, new)
        self._left.update((key, node_id) for node_id in {*old.holders} - {*new.holders})
        joined = set(new.isr) - set(old.isr)
        for node_id in joined:
            check(image.is_live(node_id), "C6", node_id, "joins and is fenced")
        counters = self.cluster.counters
        if set(old.isr) != set(new.isr):
            self.isr_changes += 1
            counters["ISR grew" if joined else "ISR shrank"] += 1
            counters["ISR = min_isr"] += len(new.isr) == min(self.cluster.min_isr, len(new.replicas))
            counters["ISR < min_isr"] += len(new.isr) < min(self.cluster.min_isr, len(new.replicas))
        if old.status is not new.status:
            counters[f"partition {new.status.name}"] += 1
        self._complete_members(key, "D19" if joined else "D3")

    def _complete_members(self, key: PartitionKey, name: str) -> None:
        """Check that possible leaders have all committed records on disk, unless an unnoticed loss occurred.

        With ack by quorum: enough of them.
        """
        ghost, truth = self.ghost(key), self._truth(key)
        if ghost.high_watermark < 0 or self.lost_by_command(key):
            return
        lacking = {node_id for node_id in self._counted(key, truth) if not self.holds_committed(key, node_id)}
        if self.cluster.commit_by_quorum:
            few = 2 * len(lacking) < len(truth.replicas)
            alone = truth.last_leader in lacking
            check(few and not alone, name, lacking, "lack what", truth, "has committed, HW is", ghost.high_watermark)
        else:
            check(not lacking, name, lacking, "may lead of", truth, "and lack something, HW is", ghost.high_watermark)

    def _counted(self, key: PartitionKey, truth: PartitionState) -> list[str]:
        able = self.cluster.group.image.streams[key.stream].electable_replicas(truth)
        nodes = [self.cluster.acting(node_id) for node_id in able]
        for node in nodes:
            process = node.process
            if node.went_back and process is not None and process.serves_all:
                node.went_back = not all(self.holds_committed(held, node.node_id) for held in process.replicas)
        return [node.node_id for node in nodes if not (node.lost_data or node.went_back)]

    def holds_committed(self, key: PartitionKey, node_id: str) -> bool:
        """Return whether the disk of a node has all committed records."""
        return self._holds_committed(self.ghost(key), self.cluster.acting(node_id).host)

    def others_hold_all(self, node_id: str) -> bool:
        """Return whether everything committed is on a disk that counts, without the disk of this node."""
        return all(
            node_id not in partition.replicas or self._others_hold(stream.key(partition.partition), node_id)
            for stream in self.cluster.group.image.streams.values()
            for partition in stream.partitions
        )

    def is_the_last(self, node_id: str) -> bool:
        """Return whether only this node has all committed records of some partition. A fault may then lose them."""
        found = False
        for key, ghost in self.ghosts.items():
            holds = node_id in self._truth(key).replicas and self.holds_committed(key, node_id)
            if holds and ghost.high_watermark >= 0 and not self._others_hold(key, node_id):
                ghost.may_be_gone = found = True
        return found

    def held_only_on(self, host: str) -> list[PartitionGhost]:
        """Return the partitions of which only this machine's disk has all committed records. A disk that lost data has none."""
        whole = {machine.host for machine in self.cluster.machines if not machine.lost_data}
        return [
            ghost
            for ghost in self.ghosts.values()
            if ghost.high_watermark >= 0
            and [each for each in ghost.shadows if each in whole and self._holds_committed(ghost, each)] == [host]
        ]

    def _others_hold(self, key: PartitionKey, node_id: str) -> bool:
        truth, ghost = self._truth(key), self.ghost(key)
        left_out = {node_id, *truth.incomplete, *self.cluster.twin_ids}  # a twin may take its node's place at any time
        nodes = self.cluster.nodes
        whole = [member for member in ghost.shadows if member in nodes and not nodes[member].lost_data]
        whole = [member for member in whole if self._holds_committed(ghost, member)]
        return others_hold_enough(self.cluster.group.image.streams[key.stream], truth, left_out, whole)

    @staticmethod
    def _holds_committed(ghost: PartitionGhost, host: str) -> bool:
        shadow = ghost.shadows.get(host, Shadow())
        return ghost.holds_committed(shadow, shadow.durable_end_offset)

    def _truth(self, key: PartitionKey) -> PartitionState:
        return self.cluster.group.partition(key.stream, key.partition)

    # ---- at the end ------------------------------------------------------------------------------------------------------------
    def nothing_is_lost(self) -> None:
        """Check that each committed record exists, and each ALL-acknowledged one on the leader [D1, D24]."""
        for key, ghost in self.ghosts.items():
            if self.lost_by_command(key) or ghost.high_watermark < 0:
                continue
            holders = [n for n, s in ghost.shadows.items() if ghost.holds_committed(s, s.durable_end_offset)]
            check(bool(holders) or ghost.may_be_gone, "D24", key, "HW", ghost.high_watermark, "is held by nobody")
            leader = self._acting_leader(key, self._truth(key).leader_epoch)
            if leader is None:
                continue
            shadow = self.shadow(leader)
            for last_offset, batch in ghost.acked_all.items():
                if last_offset >= shadow.log_start_offset:
                    check(
                        shadow.chain_at(last_offset) == ghost.chains[batch][0],
                        "D1",
                        "acknowledged",
                        batch,
                        "is not on",
                        leader.node_id,
                    )
            where = self._where(leader)
            if leader.log.config.is_cleaned:
                kept_the_newest(where, leader.log, ghost)
        for node_id in self.cluster.nodes:
            process = self.cluster.acting(node_id).process
            for replica in process.replicas.values() if process is not None else ():
                state = self._truth(replica.key)
                if not self.lost_by_command(replica.key) and node_id in state.holders and not replica.log.closed:
                    gone_for_good(self._where(replica), replica.log, self.ghost(replica.key), state)
                    self.newest_is_newest(replica)
