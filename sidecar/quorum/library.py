"""Adapts the Raft library PySyncObj. Only this module uses private names of the library. It checks version and names at
the start.

It replaces pickle (by functions that reject everything), the journal, the application of a command
(``StateMachine.apply`` with the index), and the transport. It keeps the rules for elections, appends and commits, and
the time of compaction. Tests describe the original behavior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import pysyncobj.journal
import pysyncobj.serializer
import pysyncobj.syncobj
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from liftpy.core.metadata.controller.quorum_member import EntryOutcome
from liftpy.core.metadata.controller_list import ControllerList, first_list
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import ConfigError, ProtocolError, StorageError
from sidecar.disk.files import replace_file
from sidecar.quorum.journal import CHANGE, GroupJournal, LogControllers, change_in

__all__ = ["FAIL_REASON", "Node", "RaftCore", "StateMachine", "Transport", "check_library", "outcome_of", "settings"]
SUPPORTED_VERSION = "0.3.17"
MAX_APPEND_BYTES = 64 * 1024 * 1024
"""Maximum size of the entries in one message, in bytes. An entry must be smaller, because the library would split it."""
APPLIED_PER_TICK_BYTES = 8 * 1024
"""Maximum size of committed entries and their answers that one tick applies, in bytes. A tick applies at least one entry.

The work takes about 10 ms, and more on a busy machine. A leader sends its heartbeats between ticks.
"""
ENTRY_BYTES = 100
"""Cost of one applied entry in addition to its size, in bytes."""
STEP_BYTES = 2 * 1024
"""Cost of one step of an entry that concerns thousands of partitions (``liftpy/core/base/cooperative_apply.py``), in bytes."""
COMPACT_AFTER_BYTES = 512 * 1024
"""Size of applied entries after which the next idle time is used for a snapshot, in bytes.

A start applies these entries again, which takes ten times as long as reading the snapshot of thousands of partitions.
"""
COMPACT_AT_ONCE_BYTES = 16 * COMPACT_AFTER_BYTES
"""Applied bytes since the last snapshot after which a snapshot does not wait for an idle time."""
LULL_S = 1.0
"""Time without applied entries that counts as idle, in seconds."""
APPEND_EVERY_S = 0.1
"""Interval of the leader's append messages while the group is not settled, in seconds."""
SETTLED_APPEND_EVERY_S = 0.25
"""Interval of the leader's append messages while the group is settled, in seconds.

It is at most half of the shortest election timeout. It is below the time within which a majority must confirm a leader that
grants leases.
"""
CALM_S = 5.0
"""Time after a late tick for which the leader sends append messages at the shorter interval, in seconds."""
TICK_S = 0.05
"""Time between two ticks of a member that neither leads nor has a leader, in seconds."""
LATE_S = 0.1
"""Delay of a tick from which it counts as late, in seconds. Silence of the leader before a late tick does not count."""
HOLD_S = 0.5
"""Maximum delay of an election after a late tick, in seconds. It equals the shortest election timeout."""
HAND_OVER_S = 0.5
"""Maximum time for which a leader that hands over its leadership appends no entries, in seconds."""
_REGULAR = b"\x00"
_REGULAR_TYPE, _CHANGE_TYPE = 0, CHANGE[0]
_DUMP_FAILED = -2
_FOLLOWER = 0
_AT_ONCE = 0
"""Value of the library's election deadline that starts an election at once. Such an election needs no pre-vote."""
_PRIVATE = (
    "_SyncObj__doApplyCommand", "_SyncObj__parseChangeClusterRequest", "_applyCommand", "_isLeader", "_getLeader", "doTick",
    "forceLogCompaction",
    "_SyncObj__changeCluster", "_SyncObj__doChangeCluster", "_SyncObj__updateClusterConfiguration",
    "_SyncObj__onMessageReceived", "transferLeadership", "_SyncObj__applyLogEntries", "_SyncObj__tryLogCompaction",
)  # fmt: skip
_PRIVATE_STATE = (
    "_SyncObj__raftNextIndex", "_SyncObj__raftMatchIndex", "_SyncObj__newAppendEntriesTime", "_SyncObj__serializer",
    "_SyncObj__lastResponseTime", "_SyncObj__raftLog", "_SyncObj__raftState", "_SyncObj__raftElectionDeadline",
    "_SyncObj__generateRaftTimeout", "_SyncObj__raftCommitIndex", "_SyncObj__setCurrentTerm", "_SyncObj__setState",
    "_SyncObj__raftLeader", "_SyncObj__connectedToAnyone", "_SyncObj__otherNodes", "_SyncObj__readonlyNodes",
    "_SyncObj__connectedNodes", "_SyncObj__noopIDx",
)  # fmt: skip
LogEnd = tuple[int, int]
"""End of a log: (term, index) of its last entry."""


# ---- pre-vote --------------------------------------------------------------------------------------------------------


def may_grant(*, leads: bool, quiet_s: float, quiet_needed_s: float, turn_is_late: bool, own: LogEnd, asker: LogEnd) -> bool:
    """Return whether a member grants a pre-vote to the member that asks. It does not lead, has no leader, and has no newer log.

    ``quiet_s``: time since the last message of a leader. ``quiet_needed_s``: minimum of this time. ``turn_is_late``: True if
    messages of the leader may be unread. ``own``, ``asker``: ends of the two logs.
    """
    return not leads and not turn_is_late and quiet_s >= quiet_needed_s and asker >= own


class PreVote:
    """Answers of the other controllers to this member in one round of pre-votes (Raft dissertation, 9.6).

    Before a controller raises its term, it asks whether a majority would vote for it. A controller that was suspended, or that
    alone has lost the leader, gets no majority. Then the term and the leader do not change. A grant is not binding and not
    stored.
    """

    def __init__(self, member_count: int) -> None:
        self._needed = member_count // 2
        """Number of grants of other members that form a majority together with this member."""
        self._granted: set[str] = set()
        self.asks = False
        """True while a round of pre-votes is running."""

    def follow(self, voters: Collection[str]) -> None:
        """Set the voters of the group. Only their grants count."""
        self._needed = len(voters) // 2
        self._granted &= set(voters)

    def begin(self) -> None:
        """Start a new round of pre-votes. Grants of earlier rounds do not count."""
        self._granted.clear()
        self.asks = True

    def record_grant(self, node_id: str) -> None:
        if self.asks:
            self._granted.add(node_id)

    def end(self) -> None:
        self._granted.clear()
        self.asks = False

    @property
    def won(self) -> bool:
        return self.asks and len(self._granted) >= self._needed


# ---- adapter ---------------------------------------------------------------------------------------------------------


def _refuse(*_: Any) -> None:
    raise ProtocolError("pysyncobj tried to pickle or unpickle data, which is not allowed here. Please report it.")


class _NoPickle:
    """Replacement for pickle in the library. It rejects everything.

    The library would pickle an entry that is larger than ``MAX_APPEND_BYTES``, but there is none.
    """

    dumps = loads = dump = load = staticmethod(_refuse)

    @staticmethod
    def to_bytes(data: str | bytes) -> bytes:
        return data if isinstance(data, bytes) else data.encode()


_NEVER_LOGGED = (
    FAIL_REASON.QUEUE_FULL,
    FAIL_REASON.MISSING_LEADER,
    FAIL_REASON.DISCARDED,
    FAIL_REASON.NOT_LEADER,
    FAIL_REASON.REQUEST_DENIED,
)
"""Library errors after which an entry is certainly not in the log. After any other error, the outcome is unknown."""


def outcome_of(answer: bytes | None, reason: int) -> EntryOutcome:
    """Return what is known about a proposed command: applied, never logged, or unknown.

    ``answer``: answer of the state machine, None without one. ``reason``: FAIL_REASON of the library.
    """
    if reason in _NEVER_LOGGED:
        return EntryOutcome.NEVER
    return EntryOutcome.APPLIED if reason == FAIL_REASON.SUCCESS and answer is not None else EntryOutcome.UNKNOWN


def check_library() -> None:
    """Remove pickle from the library. Raise ConfigError unless the library is exactly the checked version."""
    if VERSION != SUPPORTED_VERSION:
        raise ConfigError(
            f"pysyncobj {VERSION} is installed, but the metadata group supports only {SUPPORTED_VERSION}. Install "
            f"pysyncobj=={SUPPORTED_VERSION}."
        )
    missing = [name for name in _PRIVATE if not hasattr(SyncObj, name)]
    modules = (pysyncobj.syncobj, pysyncobj.serializer)
    missing += [f"{m.__name__}.pickle" for m in modules if not hasattr(m, "pickle")]
    missing += [name for name in ("createJournal", "monotonicTime") if not hasattr(pysyncobj.syncobj, name)]
    if missing:
        raise ConfigError(f"The installed pysyncobj lacks {', '.join(missing)}. Install pysyncobj=={SUPPORTED_VERSION}.")
    pysyncobj.syncobj.pickle = _NoPickle
    pysyncobj.serializer.pickle = _NoPickle
    pysyncobj.journal.loads = pysyncobj.journal.dumps = _refuse
    pysyncobj.syncobj.createJournal = lambda journal: journal


def is_applied(command: bytes, index: int) -> bool:
    """Return whether the entry ``command`` is passed to the state machine.

    The library's own entries and invalid changes of members are not.
    """
    return command[:1] == _REGULAR or change_in(command, index) is not None


class StateMachine(Protocol):
    """State machine that the library replicates."""

    def apply(self, entry: bytes, index: int) -> bytes:
        """Apply one entry and return its answer. It never raises."""

    def precompute(self, entry: bytes, index: int) -> bool:
        """Compute a part of the decision on the next entry ahead of ``apply``, so that ``apply`` takes less time.

        Return whether the decision is complete.
        """


def settings(
    journal: GroupJournal,
    dump_file: str,
    save: Callable[[str, Any], None],
    load: Callable[[str], Any],
    state_changed: Callable[[int, int], None],
    compact_after_entries: int,
) -> SyncObjConf:
    """Return the settings for the Raft library: no automatic tick, large batches, no fork, always journal and snapshot.

    Args:
        journal: Journal that the library writes.
        dump_file: Path of the snapshot file.
        save: Function that writes a snapshot.
        load: Function that loads one.
        state_changed: Called with the old and the new Raft state.
        compact_after_entries: Number of entries in the log after which the library writes a snapshot.
    """
    return SyncObjConf(
        autoTick=False,
        autoTickPeriod=0.02,
        appendEntriesUseBatch=True,
        appendEntriesBatchSizeBytes=MAX_APPEND_BYTES,
        appendEntriesPeriod=APPEND_EVERY_S,
        raftMinTimeout=0.5,
        raftMaxTimeout=1.0,
        leaderFallbackTimeout=1.5,
        connectionTimeout=3.5,
        commandsWaitLeader=False,
        commandsQueueSize=100_000,
        journalFile=journal,
        fullDumpFile=dump_file,
        serializer=save,
        deserializer=load,
        useFork=False,
        logCompactionMinEntries=compact_after_entries,
        logCompactionMinTime=24 * 3600,
        logCompactionBatchSize=256 * 1024,
        dynamicMembershipChange=True,
        onStateChanged=state_changed,
    )


class RaftCore(SyncObj):  # type: ignore[misc]  # the library has no types
    """Raft node of one controller, based on the library. It runs in ticks and takes commands as bytes."""

    def __init__(
        self,
        node_id: str,
        members: tuple[str, ...],
        conf: SyncObjConf,
        transport: Transport,
        machine: StateMachine,
        by_log: LogControllers | None = None,
    ) -> None:
        self._machine = machine
        self.failure: BaseException | None = None
        """Error of applying or loading, after which this process must stop. None: no error. The library itself would continue."""
        self._turned = pysyncobj.syncobj.monotonicTime()
        """Time when the last tick began, by the clock of the library."""
        self.rest_s = TICK_S
        """Planned time from the last tick to the next one, in seconds."""
        self._late = False
        """True if the last tick was late."""
        self._late_at = -math.inf
        """Time of the last late tick, by the clock of the library."""
        self._by_log = by_log or LogControllers(first_list(members))
        self.controllers = self._by_log.newest(conf.journalFile.changes)
        """Controllers by the end of this member's log, committed or not. Majorities are counted among its voters."""
        self.followed: Callable[[ControllerList], None] = lambda _: None
        """Callback after the controllers or ``members`` have changed."""
        self.members: tuple[str, ...] = self.controllers.members
        """Members with which this member exchanges messages.

        They include members of the previous list until the change is committed, because one of them may lead and undo the
        change.
        """
        self.dismissed_at = 0
        """Index of the entry that removed this node from the controllers. 0: not removed. A removed node does not campaign."""
        self.pre_vote = PreVote(len(self.controllers.voters))
        self._hand_over_term = -1
        """Term in which this member handed over the leadership last. -1: in none."""
        self._hand_over_until = -math.inf
        """Time until which this member, as the leader, hands over the leadership, by the clock of the library."""
        self._successor_was_asked = True
        """False if a hand-over waits until a voter has the whole log."""
        self._applied_bytes = 0
        """Cost of the entries and answers applied in the running tick, in bytes."""
        self._uncompacted_bytes = 0
        """Cost of the entries applied since the last snapshot was written or read, in bytes."""
        self._applied_at = 0.0
        """Time when the last entry was applied, in seconds."""
        self._goes_on = False
        """True during the second pass of one tick. Both passes share the limit ``APPLIED_PER_TICK_BYTES``."""
        self.compactions = 0
        """Number of snapshots with which this process has compacted the log."""
        self.on_probation = False
        """True if this member is on probation and must not campaign (``sidecar.quorum.probation``)."""
        self.retired = False
        """True if this member stops soon. It still votes but does not campaign."""
        conf.serializer, conf.deserializer = self._fatal(conf.serializer), self._fatal(conf.deserializer)
        self._node_id = node_id
        self._link = transport
        super().__init__(Node(node_id), self._others, conf, transport=transport, nodeClass=Node)
        self.log.changed = self._follow
        self._follow(anew=True)
        self._SyncObj__serializer.setTransmissionData = self._fatal(self._install_dump)
        missing = [name for name in _PRIVATE_STATE if not hasattr(self, name)]
        missing += ["Serializer.__pid"] if not hasattr(self._SyncObj__serializer, "_Serializer__pid") else []
        if missing:
            raise ConfigError(f"The installed pysyncobj lacks {', '.join(missing)}. Install pysyncobj=={SUPPORTED_VERSION}.")

    def _fatal(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls ``work``, and stops the process if it raises an error.

        ``work`` reads or writes a snapshot. The library would only log the error.
        """

        def run(*arguments: Any) -> Any:
            try:
                return work(*arguments)
            except Exception as error:
                self.failure = error
                raise

        return run

    def _install_dump(self, piece: tuple[bytes, bool, bool]) -> bool:
        """Install a complete snapshot of the leader, flushed before the rename.

        The library would rename without a flush, so a power cut could leave an empty file.
        """
        data, _, _ = piece
        replace_file(Path(self.conf.fullDumpFile), data)
        return True

    def propose(self, command: bytes, callback: Callable[[bytes | None, int], None], *, change: bool = False) -> None:
        """Propose ``command`` for the log. This succeeds only on the leader.

        ``callback(answer, FAIL_REASON)`` runs at once while this member hands over the leadership, else in a later tick. It must
        not raise. ``change``: True if the command changes the members. It is rejected while no change is allowed.
        """
        if self.hands_over:
            callback(None, FAIL_REASON.MISSING_LEADER)
        else:
            self._applyCommand(command, callback, _CHANGE_TYPE if change else _REGULAR_TYPE)

    # ---- who forms the group -------------------------------------------------------------------------------------------
    @property
    def _others(self) -> list[Node]:
        return [Node(i) for i in self.controllers.voters if i != self._node_id]

    @property
    def votes(self) -> bool:
        """True if this member is a voter by the newest controller list in its log."""
        return self._node_id in self.controllers.voters

    def controllers_at(self, index: int) -> ControllerList:
        """Return the controller list that applied when the log ended with ``index``."""
        return self._by_log.at(index, self.log.changes)

    def snapshot_holds(self, controllers: ControllerList | None) -> None:
        """Store the controller list at the end of a snapshot, before the entries up to the snapshot leave the journal."""
        self._by_log.in_snapshot = controllers
        self._follow()

    def _follow(self, *, anew: bool = False) -> None:
        """Apply the controller list at the end of the log to the library, because a change was appended or truncated.

        ``anew``: True to apply it even if it is unchanged.
        """
        now = self._by_log.newest(self.log.changes)
        before = now if now.index <= self.raftCommitIndex else self.controllers_at(self.raftCommitIndex)
        members = tuple(sorted({*now.members, *before.members}))
        if (now, members) == (self.controllers, self.members) and not anew:
            return
        voted, self.controllers, self.members = self.votes, now, members
        others = set(self._others)
        learners = {Node(i) for i in members} - others - {self.selfNode}
        self._SyncObj__otherNodes, self._SyncObj__readonlyNodes = others, learners
        of_leader = self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex, self._SyncObj__lastResponseTime
        for node in set().union(*of_leader, self._SyncObj__connectedNodes) - others - learners:
            for offsets_by_node in of_leader:
                offsets_by_node.pop(node, None)
            self._SyncObj__connectedNodes.discard(node)
            self.cancel_snapshot(node)
        for node in others | learners:
            self._SyncObj__raftNextIndex.setdefault(node, self.log.last_index + 1)
            self._SyncObj__raftMatchIndex.setdefault(node, 0)
            self._SyncObj__lastResponseTime.setdefault(node, pysyncobj.syncobj.monotonicTime())
        self.pre_vote.follow(now.voters)
        if self.votes and not voted:
            self._SyncObj__raftElectionDeadline = pysyncobj.syncobj.monotonicTime() + self._SyncObj__generateRaftTimeout()
        self.followed(now)

    @property
    def blocked(self) -> str:
        """Return why the leader cannot append a controller change now, or '' if it can.

        The library checks it again at the append.
        """
        if self.controllers.index > self.raftCommitIndex:
            return "the change before is not committed yet: ask again"
        if not self.leads or self.raftCommitIndex < (self._SyncObj__noopIDx or math.inf):
            return "the metadata leader has committed nothing in its term yet: ask again"
        return ""

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> bytes | None:
        """Return the command if it is a change of the controllers. The library passes it to the next methods."""
        return command if command[:1] == CHANGE else None

    def _SyncObj__changeCluster(self, command: bytes) -> bool:
        """As the leader, return whether the controller change ``command`` may be appended to the log.

        Only one change may be in progress [M10]. It applies when it is in the journal.
        """
        after = change_in(command, self.log.last_index + 1)
        if after is None or self.blocked or self._node_id not in after.voters:
            return False
        based_on = pb.ControlRequest.FromString(command[1:]).changeControllers.after
        return based_on == self.controllers.index and len({*after.voters} ^ {*self.controllers.voters}) <= 1

    def _SyncObj__doChangeCluster(self, command: bytes, reverse: bool = False) -> bool:
        """Do nothing. The library calls this method to change its members, but here the controller lists in the journal do it."""
        return True

    def _SyncObj__updateClusterConfiguration(self, nodes: list[Node]) -> None:
        """Do nothing. The library would set the members of a snapshot, but here the controller lists in the journal do it."""

    def hand_over(self) -> None:
        """As the leader, request that another voter with the whole log becomes leader. A voter that leaves is never chosen.

        For ``HAND_OVER_S`` this member appends no more entries, because a voter without the newest entry can win no election.
        """
        if any(node in self._SyncObj__connectedNodes for node in self._successors):
            self._hand_over_term = self.raftCurrentTerm
            self._hand_over_until = pysyncobj.syncobj.monotonicTime() + HAND_OVER_S
            self._successor_was_asked = False
            self._ask_successor()

    @property
    def _successors(self) -> list[Node]:
        return [node for node in self._others if node.id != self.controllers.leaving]

    @property
    def hands_over(self) -> bool:
        """True while this member, as the leader, hands over the leadership and appends no entries."""
        return (
            self.leads
            and self._hand_over_term == self.raftCurrentTerm
            and pysyncobj.syncobj.monotonicTime() < self._hand_over_until
        )

    def _ask_successor(self) -> None:
        """Request that a voter with the whole log becomes leader. If there is none yet, a later tick tries again."""
        connected = (node for node in self._successors if node in self._SyncObj__connectedNodes)
        complete = [node.id for node in connected if self.match_index(node.id) == self.log.last_index]
        if complete:
            self._successor_was_asked = True
            self.transferLeadership(Node(max(complete)))

    def record_dismissal(self, index: int, known_to: int) -> None:
        """Record that entry ``index`` removed this node from the controllers. The node resigns and never leads again.

        ``known_to``: the sender knows all committed entries up to this index. A later controller list up to there in the log of this
        node was never committed. A list beyond it may have added this node again, so that the removal is outdated.
        """
        if max(index, known_to) >= self.controllers.index:
            self.dismissed_at = max(self.dismissed_at, index)
            if self._SyncObj__raftState != _FOLLOWER:
                self._SyncObj__setState(_FOLLOWER)
                self._SyncObj__raftLeader = None

    @property
    def turn_is_late(self) -> bool:
        """True if the current tick is late, so that messages of the leader may still be unread."""
        return self._late

    @property
    def leads(self) -> bool:
        """True if this member believes that it is the leader. Another member may have been elected since."""
        return bool(self._isLeader())

    @property
    def leader_id(self) -> str:
        leader = self._getLeader()
        return "" if leader is None else str(leader.id)

    @property
    def log(self) -> GroupJournal:
        journal = self._SyncObj__raftLog
        assert isinstance(journal, GroupJournal)
        return journal

    def _SyncObj__sendAppendEntries(self) -> None:
        super()._SyncObj__sendAppendEntries()
        if self._is_settled:
            self._SyncObj__newAppendEntriesTime = pysyncobj.syncobj.monotonicTime() + SETTLED_APPEND_EVERY_S

    @property
    def _is_settled(self) -> bool:
        """True if all voters have answered lately that they have all entries, and the ticks of this leader are on time.

        Then a member that hears no leader can wait as long as before: its election timeout does not change.
        """
        last, now = self.log.last_index, pysyncobj.syncobj.monotonicTime()
        if self.raftLastApplied < last or self.members != self.controllers.members or now - self._late_at < CALM_S:
            return False
        answered_s, connected = self._SyncObj__lastResponseTime, self._SyncObj__connectedNodes
        return all(
            node in connected
            and self._SyncObj__raftMatchIndex[node] == last
            and now - answered_s[node] <= SETTLED_APPEND_EVERY_S + LATE_S
            for node in self._others
        )

    def until_append_s(self) -> float:
        """As the leader, return the time until the next append message, in seconds. It is negative if the message is due."""
        return float(self._SyncObj__newAppendEntriesTime - pysyncobj.syncobj.monotonicTime())

    def until_election_s(self) -> float:
        """Return the time until this member asks for votes, in seconds. It is negative if the time has passed."""
        return float(self._SyncObj__raftElectionDeadline - pysyncobj.syncobj.monotonicTime())

    def next_index(self, node: Node) -> int:
        return int(self._SyncObj__raftNextIndex.get(node, 0))

    def set_next_index(self, node: Node, index: int) -> None:
        self._SyncObj__raftNextIndex[node] = index

    def match_index(self, node_id: str) -> int:
        """As the leader, return the index of the last entry that the member is known to have."""
        return int(self._SyncObj__raftMatchIndex.get(Node(node_id), 0))

    def forget_match(self, node: Node) -> None:
        """As the leader, forget which entries ``node`` has acknowledged. Its new process may have an empty directory."""
        if node in self._SyncObj__raftMatchIndex:
            self._SyncObj__raftMatchIndex[node] = 0

    def without_confirming(self, node: Node, deliver: Callable[[], bool]) -> bool:
        """As the leader, call ``deliver``, which passes a message of ``node`` to the library. Return its result.

        The message then does not count as a confirmation of the leadership.
        """
        answered: dict[Node, float] = self._SyncObj__lastResponseTime
        before = answered.get(node)
        done = deliver()
        if before is not None and node in answered:
            answered[node] = before
        return done

    def cancel_snapshot(self, node: Node) -> None:
        """Restart an unfinished snapshot transfer to ``node`` from its beginning."""
        self._SyncObj__serializer.cancelTransmisstion(node)

    def hold_election(self, until: float) -> None:
        """Start no election before the time ``until``, by the library's monotonic clock in seconds."""
        self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, until)

    def defer_election(self, seconds: float) -> None:
        """Start no election for ``seconds``, because another member has started one."""
        self.hold_election(pysyncobj.syncobj.monotonicTime() + seconds)

    def listens(self) -> None:
        """Begin a tick. Detect whether the tick is late (busy machine or process).

        In a late tick, this member delays its election, because messages of the leader may be unread.
        """
        now = pysyncobj.syncobj.monotonicTime()
        away_s, self._turned = now - self._turned, now
        is_late = away_s > self.rest_s + LATE_S
        if is_late:
            self._late_at = now
        self._late = is_late and not self._late
        if self._late:
            self.hold_election(now + min(away_s, HOLD_S))

    def doTick(self, timeToWait: float = 0.0) -> None:
        """Run one tick of the library. A member on probation, or one that was removed, starts no election."""
        if self.on_probation or self.retired or self.dismissed_at or not self.votes:
            self._SyncObj__raftElectionDeadline = math.inf
        elif not self.leads and self._SyncObj__raftElectionDeadline != _AT_ONCE:
            self._ask_before_election()
        super().doTick(timeToWait)
        if not self._successor_was_asked and self.hands_over:
            self._ask_successor()
        if len(self.members) > len(self.controllers.members):
            self._follow()  # it may be committed by now

    def _ask_before_election(self) -> None:
        """Send pre-vote questions if an election is due. The election starts when a majority would vote for this member."""
        now = pysyncobj.syncobj.monotonicTime()
        if not self._others or not self._SyncObj__connectedToAnyone():
            self.pre_vote.end()
        elif self.pre_vote.won:
            self.pre_vote.end()
            self._SyncObj__raftElectionDeadline = _AT_ONCE
        elif self._SyncObj__raftElectionDeadline < now:
            self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()
            self._SyncObj__raftLeader = None
            self.pre_vote.begin()
            log = {"last_log_index": self.log.last_index, "last_log_term": self.log.last_term}
            question = {"type": "pre_vote", "term": self.raftCurrentTerm, **log}
            for node in self._others:
                self._link.send(node, question)

    def pre_vote_granted(self, node: Node, term: int) -> None:
        """Record that ``node`` would vote for this member. ``term``: term of ``node``."""
        if self.pre_vote.asks and term > self.raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
        if node.id in self.controllers.voters:
            self.pre_vote.record_grant(node.id)

    def step_down(self, term: int) -> None:
        """As the leader, step down, because a member has reached ``term`` and ignores leaders of lower terms.

        An election is needed.
        """
        if term > self.raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
            self._SyncObj__setState(_FOLLOWER)
            self._SyncObj__raftLeader = None

    def send_at_once(self) -> None:
        """As the leader, send new entries in this tick and not with the next heartbeat."""
        self._SyncObj__newAppendEntriesTime = 0
        self._goes_on = True
        try:
            self.doTick(0)
        finally:
            self._goes_on = False

    def begin_probation(self) -> None:
        """Begin probation: this member may not lead or vote, because it may have forgotten earlier votes."""
        self.on_probation = True
        self.log.forget_promises()
        self._SyncObj__setCurrentTerm(self.log.getCurrentTerm(), None)
        if self._SyncObj__raftState != _FOLLOWER:
            self._SyncObj__setState(_FOLLOWER)
            self._SyncObj__raftLeader = None

    def end_probation(self) -> None:
        """End probation: this member may vote and campaign."""
        self.on_probation = False
        self._SyncObj__raftElectionDeadline = pysyncobj.syncobj.monotonicTime() + self._SyncObj__generateRaftTimeout()

    def vote_is_spent_up_to(self, term: int) -> None:
        """Make sure that this member never votes in ``term`` or an earlier term."""
        if term > self.raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, self.selfNode.id)

    def _SyncObj__tryLogCompaction(self) -> None:
        """Write a snapshot and return when it is complete.

        If the method returned earlier, the library would answer every request for a snapshot with "not ready", in a
        busy loop.
        """
        if self.failure is not None:
            return  # the process stops: nothing more is written
        if self._compaction_is_due():
            self._uncompacted_bytes = 0
            self.forceLogCompaction()
        count = len(self.log)
        self._compact()
        self.compactions += len(self.log) < count

    def _compact(self) -> None:
        super()._SyncObj__tryLogCompaction()
        if self._SyncObj__serializer._Serializer__pid:
            if self._SyncObj__serializer._Serializer__pid == _DUMP_FAILED and self.failure is None:
                self.failure = StorageError(
                    "Cannot rename the new metadata snapshot. Check the disk and the permissions of the data directory."
                )  # the library tries again with every tick
            super()._SyncObj__tryLogCompaction()

    def _compaction_is_due(self) -> bool:
        """Return whether a snapshot should be written now, by the size of the entries that were applied since the last one.

        Above ``COMPACT_AFTER_BYTES`` it waits for a short time without entries, above ``COMPACT_AT_ONCE_BYTES`` it does not wait.
        The library also compacts by the number of entries.
        """
        if self._uncompacted_bytes < COMPACT_AFTER_BYTES:
            return False
        lull = pysyncobj.syncobj.monotonicTime() - self._applied_at >= LULL_S
        return lull or self._uncompacted_bytes >= COMPACT_AT_ONCE_BYTES

    @property
    def behind(self) -> bool:
        """True if there is work left for the next tick: committed entries are not applied yet, or the only voter must flush."""
        there = self.log.last_index if self._decides_alone else self.raftCommitIndex
        return bool(there > self.raftLastApplied) and self.failure is None

    @property
    def _decides_alone(self) -> bool:
        """True if this member leads a group of one. Then an entry is committed when it is flushed."""
        return self.leads and len(self.controllers.voters) == 1

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply committed entries up to the limit of one tick, so that a returning member still handles frames in between."""
        committed = self.raftCommitIndex
        if self._decides_alone:  # the library has counted what the journal is still to flush
            committed = max(self.raftLastApplied, min(committed, self.log.flushed_index))
        if not self._goes_on:
            self._applied_bytes = 0
        try:
            while self.raftLastApplied < committed and self._applied_bytes < APPLIED_PER_TICK_BYTES:
                following = self.raftLastApplied + 1
                if not self._worked_ahead(following):
                    self._applied_bytes += STEP_BYTES
                    continue
                self._SyncObj__raftCommitIndex = following
                super()._SyncObj__applyLogEntries()
                if self.raftLastApplied < following:
                    break  # a snapshot has to come first
        finally:
            self._SyncObj__raftCommitIndex = committed
        return False

    def _worked_ahead(self, index: int) -> bool:
        """Compute a part of the decision on entry ``index``, which may change thousands of partitions.

        Return True if the entry can be applied now.
        """
        log = self.log
        position = index - log[0][1] if len(log) and self.failure is None else -1  # type: ignore[operator]
        if not 0 <= position < len(log):
            return True
        command = log[position][0]
        assert isinstance(command, bytes)
        if not is_applied(command, index):
            return True
        try:
            return self._machine.precompute(bytes(command[1:]), index)
        except BaseException as error:
            self.failure = error
            return True

    def _SyncObj__doApplyCommand(self, command: bytes) -> bytes | None:
        if not is_applied(command, self.raftLastApplied + 1) or self.failure is not None:
            return None
        try:
            answer = self._machine.apply(bytes(command[1:]), self.raftLastApplied + 1)
            work_bytes = len(command) + len(answer) + ENTRY_BYTES
            self._applied_bytes += work_bytes
            self._uncompacted_bytes += work_bytes
            self._applied_at = pysyncobj.syncobj.monotonicTime()
            return answer
        except BaseException as error:  # a raising apply would be tried again for ever, with partial effects
            self.failure = error
            return None
