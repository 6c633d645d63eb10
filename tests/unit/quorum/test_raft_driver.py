"""Test single steps of the Raft driver: postponed elections, compaction, and the order of work in a tick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pysyncobj.syncobj
import pytest

from liftpy.core.metadata.controller.quorum_member import EntryOutcome
from sidecar.quorum import driver as driver_module
from sidecar.quorum.driver import GroupDriver, tick_once
from sidecar.quorum.library import FAIL_REASON, outcome_of
from tests.each import each
from tests.unit.quorum.raft_network import our_net


@each(
    ("answer", "reason", "outcome"),
    [
        (b"", FAIL_REASON.SUCCESS, EntryOutcome.APPLIED),
        (None, FAIL_REASON.SUCCESS, EntryOutcome.UNKNOWN),
        (None, FAIL_REASON.QUEUE_FULL, EntryOutcome.NEVER),
        (None, FAIL_REASON.MISSING_LEADER, EntryOutcome.NEVER),
        (None, FAIL_REASON.DISCARDED, EntryOutcome.NEVER),
        (None, FAIL_REASON.NOT_LEADER, EntryOutcome.NEVER),
        (None, FAIL_REASON.LEADER_CHANGED, EntryOutcome.UNKNOWN),
        (None, FAIL_REASON.REQUEST_DENIED, EntryOutcome.NEVER),
        (b"", FAIL_REASON.UNKNOWN_OUTCOME, EntryOutcome.UNKNOWN),
    ],
)
def test_raft_entry_outcome_of_each_pysyncobj_result_equals_the_expected_outcome(
    answer: bytes | None, reason: int, outcome: EntryOutcome
) -> None:
    assert outcome_of(answer, reason) is outcome


def deadline(core: Any) -> float:
    return float(core._SyncObj__raftElectionDeadline)


@contextmanager
def standing(folder: Path) -> Iterator[Any]:
    """Provide a group with a stopped clock."""
    with our_net(folder) as net, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: net.now)
        yield net


def test_raft_late_tick_postpones_the_election_by_its_delay(tmp_path: Path) -> None:
    with standing(tmp_path) as net:
        core: Any = net.up["a"].core
        net.step()

        def turn(after_s: float) -> tuple[bool, float]:
            core._SyncObj__raftElectionDeadline = 0.0
            core._turned = net.now - after_s
            core.listens()
            assert core._turned == net.now
            return core.turn_is_late, round(max(0.0, deadline(core) - net.now), 6)

        assert turn(0.14) == (False, 0.0)
        assert turn(0.3) == (True, 0.3)
        assert turn(0.3) == (False, 0.0), "a machine that is always busy has elections, too"
        assert turn(9.0) == (True, 0.5)
        core._SyncObj__raftElectionDeadline = net.now + 5
        core.hold_election(net.now + 1)
        assert deadline(core) == net.now + 5, "never sooner"
        core.defer_election(7.0)
        assert deadline(core) == pytest.approx(net.now + 7)


def test_isolated_controller_sends_no_pre_vote_requests(tmp_path: Path) -> None:
    with standing(tmp_path) as net:
        core: Any = net.up["a"].core
        core.pre_vote.begin()
        core._SyncObj__raftElectionDeadline = net.now - 1
        core._ask_before_election()
        assert not core.pre_vote.asks
        assert deadline(core) == net.now - 1


def test_raft_leader_steps_down_only_for_a_higher_term(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, *_ = net.elected()
        core: Any = net.up[lead].core
        term = core.raftCurrentTerm
        core.step_down(term)
        assert (core.leads, core.leader_id) == (True, lead)
        core.step_down(term + 2)
        assert (core.leads, core.leader_id, core.raftCurrentTerm, core.log.getVotedForNodeId()) == (False, "", term + 2, None)


def test_raft_member_that_may_have_lost_votes_stores_a_vote_for_itself_in_the_last_possible_term(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        core: Any = net.up["a"].core
        term = core.raftCurrentTerm
        core.vote_is_spent_up_to(term)
        assert core.log.getVotedForNodeId() is None
        core.vote_is_spent_up_to(term + 4)
        assert (core.raftCurrentTerm, core.log.getCurrentTerm(), core.log.getVotedForNodeId()) == (term + 4, term + 4, "a")


def test_raft_leader_put_on_probation_steps_down(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        core: Any = net.up[lead].core
        core.step_down(99)
        core.vote_is_spent_up_to(100)
        core._SyncObj__setState(2)
        core.begin_probation()
        assert (core.on_probation, core.leads, core.leader_id) == (True, False, "")
        assert core.raftCurrentTerm == core.log.getCurrentTerm() == core.log.last_term
        assert core.log.getVotedForNodeId() is None
        follower: Any = net.up[near].core
        follower.begin_probation()
        assert follower.leader_id == lead, "who follows goes on"


@pytest.mark.parametrize(
    ("applied_bytes", "quiet_s", "due"),
    [
        (512 * 1024 - 1, 99.0, False),
        (512 * 1024, 0.99, False),
        (512 * 1024, 1.0, True),
        (8 * 1024 * 1024 - 1, 0.0, False),
        (8 * 1024 * 1024, 0.0, True),
    ],
)
def test_raft_log_is_compacted_when_idle_or_at_once_above_the_upper_limit(
    applied_bytes: int, quiet_s: float, due: bool, tmp_path: Path
) -> None:
    with standing(tmp_path) as net:
        core: Any = net.up["a"].core
        core._uncompacted_bytes, core._applied_at = applied_bytes, net.now - quiet_s
        assert core._compaction_is_due() is due


# ---- ticks -------------------------------------------------------------------------------------------------------------------------
class Ticking:
    """Provide a driver whose parts record their calls in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[Any] = []
        self.core = SimpleNamespace(
            behind=False,
            leads=False,
            until_election_s=lambda: 1.0,
            propose=lambda command, callback, *, change: self.done.append((command, callback)),
        )
        self.outbox: list[tuple[str, bytes]] = []
        transport: Any = SimpleNamespace(sessions=SimpleNamespace(outbox=self.outbox), has_leader_contact=lambda _: False)
        self.fatal: list[Exception] = []
        nothing: Any = None
        core: Any = self.core
        self.driver: Any = GroupDriver(
            core,
            transport,
            nothing,
            lambda *sent: self.done.append(sent),
            lambda: self.done.append("ticked"),
            self.fatal.append,
        )
        self.frames: list[list[tuple[str, bytes]]] = []
        self.fails: Exception | None = None

        def once(_core: Any, _transport: Any, _journal: Any, frames: Any) -> None:
            self.frames.append(list(frames))
            if self.fails is not None:
                raise self.fails

        monkeypatch.setattr(driver_module, "tick_once", once)


async def test_raft_tick_with_unapplied_committed_entries_schedules_another_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Ticking(monkeypatch)
    future = bench.driver.propose(b"command")
    (command, callback) = bench.done.pop()
    assert (command, bench.driver._scheduled) == (b"command", True)
    callback(b"answer", 0)
    gone = bench.driver._loop.create_future()
    gone.cancel()
    bench.driver._answers.append((gone, (b"", 0)))
    bench.outbox += [("b", b"1"), ("c", b"2")]
    bench.driver.tick()
    assert (bench.done, bench.outbox) == ([("b", b"1"), ("c", b"2"), "ticked"], [])
    assert (future.result(), bench.driver._answers, bench.driver._scheduled) == ((b"answer", 0), [], False)
    bench.core.behind = True
    bench.driver.tick()
    assert bench.driver._scheduled, "entries are committed that are not applied"


async def test_raft_tick_processes_a_bounded_number_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Ticking(monkeypatch)
    for number in range(2001):
        bench.driver.frame_received("b", b"%04d" % number)
    assert bench.driver.inbox_bytes == 2001 * 4
    bench.driver.tick()
    assert (len(bench.frames[0]), bench.driver.inbox_bytes, bench.driver._scheduled) == (2000, 4, True)
    bench.driver.tick()
    assert (bench.frames[1], bench.driver.inbox_bytes, bench.driver._scheduled) == ([("b", b"2000")], 0, False)


async def test_raft_tick_that_raises_stops_the_driver_and_ends_waiting_proposals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Ticking(monkeypatch)
    bench.driver.start()
    timer = bench.driver._timer
    future = bench.driver._loop.create_future()
    bench.driver._answers.append((future, (b"answer", 0)))
    bench.fails = OSError("no space")
    bench.driver.tick()
    assert (bench.fatal, bench.driver.stopped, timer.cancelled()) == ([bench.fails], True, True)
    assert future.result() == (None, FAIL_REASON.UNKNOWN_OUTCOME)
    (said,) = caplog.records
    assert said.exc_info is not None
    assert said.exc_info[1] is bench.fails, "where it failed is in the log"
    bench.driver.tick()
    bench.driver._on_timer()
    bench.driver.wake()
    assert (len(bench.frames), bench.driver._scheduled) == (2, False)


@pytest.mark.parametrize(("moved", "leads", "at_once"), [(True, True, True), (False, True, False), (True, False, False)])
def test_raft_leader_with_new_entries_sends_them_in_the_same_tick(moved: bool, leads: bool, at_once: bool) -> None:
    done: list[str] = []
    core: Any = SimpleNamespace(log=SimpleNamespace(last_index=4), raftLastApplied=3, leads=leads, failure=None)
    core.listens = lambda: done.append("listens")
    core.send_at_once = lambda: done.append("sends at once")

    def tick(_: float) -> None:
        done.append("ticks")
        core.raftLastApplied += moved

    core.doTick = tick
    transport: Any = SimpleNamespace(
        poll=lambda: done.append("polls"), receive=lambda *given: done.append(str(given)), sync=lambda: done.append("lineage")
    )
    journal: Any = SimpleNamespace(sync=lambda: done.append("journal"))
    tick_once(core, transport, journal, [("b", b"f")])
    assert done == ["listens", "polls", "('b', b'f')", "ticks", *(["sends at once"] * at_once), "lineage", "journal"]


# ---- what is applied ---------------------------------------------------------------------------------------------------------------
class Machine:
    """Provide a state machine that records its calls. ``ready``: whether an entry can be applied at once."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.ready = True
        self.fails: BaseException | None = None

    def precompute(self, entry: bytes, index: int) -> bool:
        self.told.append(("ahead", entry, index))
        if self.fails is not None:
            raise self.fails
        return self.ready

    def apply(self, entry: bytes, index: int) -> bytes:
        self.told.append(("apply", entry, index))
        if self.fails is not None:
            raise self.fails
        return b"answer"


def test_raft_driver_prepares_only_the_next_entry_in_steps(tmp_path: Path) -> None:
    with standing(tmp_path) as net:
        core: Any = net.up["a"].core
        core._machine = machine = Machine()
        first = core.log.last_index + 1
        for command in (b"\x00one", b"\x01noop", b"\x00two"):
            core.log.add(command, core.log.last_index + 1, 1)
        assert [core._worked_ahead(first + n) for n in (-9, 0, 1, 2, 3)] == [True] * 5
        assert machine.told == [("ahead", b"one", first), ("ahead", b"two", first + 2)]
        machine.ready = False
        assert core._worked_ahead(first) is False
        machine.fails = RuntimeError("broken")
        assert core._worked_ahead(first) is True
        assert core.failure is machine.fails
        machine.told.clear()
        assert core._worked_ahead(first) is True
        assert machine.told == [], "the process stops"


def test_raft_driver_after_a_failed_apply_applies_no_more_entries(tmp_path: Path) -> None:
    with standing(tmp_path) as net:
        core: Any = net.up["a"].core
        core._machine = machine = Machine()
        core._applied_bytes = core._uncompacted_bytes = 0
        index = core.raftLastApplied + 1
        assert core._SyncObj__doApplyCommand(b"\x00entry") == b"answer"
        assert machine.told == [("apply", b"entry", index)]
        assert (core._applied_bytes, core._uncompacted_bytes, core._applied_at) == (112, 112, net.now)
        assert core._SyncObj__doApplyCommand(b"\x01noop") is None
        assert (len(machine.told), core._applied_bytes) == (1, 112)
        machine.fails = RuntimeError("broken")
        assert core._SyncObj__doApplyCommand(b"\x00entry") is None
        assert (core.failure, core._applied_bytes) == (machine.fails, 112)
        machine.fails = None
        assert core._SyncObj__doApplyCommand(b"\x00entry") is None
        assert len(machine.told) == 2, "nothing is applied after a failure"


def test_raft_tick_applies_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    with standing(tmp_path) as net:
        core: Any = net.up["a"].core
        core._machine = machine = Machine()
        first = core.log.last_index + 1
        for number in range(6):
            core.log.add(b"\x00" + b"x" * 3000, first + number, 1)
        core._SyncObj__raftCommitIndex = first + 5
        applied = []
        for goes_on in (False, True, False, False, False):
            core._goes_on = goes_on
            core._SyncObj__applyLogEntries()
            applied.append(core.raftLastApplied - first + 1)
        assert applied == [3, 3, 6, 6, 6], "8 KiB in one tick, three entries here"
        assert core.raftCommitIndex == first + 5
        assert not core.behind
        machine.ready = False
        core.log.add(b"\x00large", first + 6, 1)
        core._SyncObj__raftCommitIndex = first + 6
        assert core.behind
        machine.told.clear()
        core._SyncObj__applyLogEntries()
        assert (machine.told, core.raftLastApplied) == ([("ahead", b"large", first + 6)] * 4, first + 5), (
            "a step counts as 2 KiB"
        )
        core.failure = RuntimeError("broken")
        assert not core.behind
