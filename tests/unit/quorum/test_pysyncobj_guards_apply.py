"""Test the guards of the Raft driver against faults of PySyncObj 0.3.17: outcomes, isolated leaders, and arguments of apply."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.metadata.controller.quorum_member import EntryOutcome
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.quorum.driver import GroupDriver
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import FAIL_REASON, RaftCore, check_library, outcome_of, settings
from sidecar.quorum.transport import SessionTransport
from tests.born import born_fsm, registration
from tests.each import each
from tests.unit.quorum.raft_network import our_net

# ---- 9: an outcome that is not known ------------------------------------------------------------------------------------


def test_raft_retry_across_a_leader_change_is_applied_once(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        machines = {}
        for name, member in net.up.items():
            machines[name] = member.core._machine = born_fsm()
        register = pb.ControlRequest(operationId=b"o" * 16, registerNode=registration(nodeId="n1"))
        net.put(lead, register.SerializeToString())
        net.stalled = {(lead, near)}
        assert net.run(lambda: len(net.up[far].journal) > 2 and machines[lead].image.nodes)
        net.crash(lead)
        net.stalled = set()
        net.results.clear()
        net.elect_now(far)
        assert net.run(lambda: net.leaders() == [far])
        register.timeNs = 5  # when it was tried again
        net.put(far, register.SerializeToString())
        assert net.run(lambda: net.results and machines[near].image == machines[far].image)
        commands = [command for command, *_ in net.up[far].journal[:] if command[:1] == b"\0"]
        assert len(commands) == 2, "the log has it twice"
        assert machines[far].image.nodes["n1"].incarnation == 1, "and it was applied once"
        register.operationId = b"p" * 16
        net.put(far, register.SerializeToString())
        assert net.run(lambda: machines[far].image.nodes["n1"].incarnation == 2), "another operation is another one"


def test_raft_proposal_to_a_follower_is_rejected_at_once(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        net.put(near, b"not forwarded")
        assert net.run(lambda: net.results, 0.1)
        assert net.results == [(b"not forwarded", "NOT_LEADER")]
        assert net.run(lambda: net.logs_are_equal() and not net.values(lead))


# ---- 9: a leader that is alone ------------------------------------------------------------------------------------------


def test_raft_isolated_leader_steps_down_within_seconds(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.split(lead, near + far)
        since = net.now
        assert net.run(lambda: lead not in net.leaders())
        assert net.now - since < 1.7
        assert net.up[lead].core.conf.leaderFallbackTimeout == 1.5


# ---- 9: a thread that dies with its creator ------------------------------------------------------------------------------


def test_raft_driver_starts_no_thread_and_ticks_from_any_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with our_net(tmp_path, "a") as net:
        net.crash("a")
        creator = threading.Thread(target=lambda: net.start("a"))
        creator.start()
        creator.join()
        assert set(threading.enumerate()) <= before
        assert net.up["a"].core.conf.autoTick is False
        assert net.run(net.leaders)


# ---- 10: what an apply knows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacts", [False, True])
def test_raft_apply_receives_the_log_index(tmp_path: Path, compacts: bool) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        for number in range(10):
            net.put(lead, b"%d" % number)
        assert net.run(lambda: len(net.values(near)) == len(net.values(lead)) == 10)
        if compacts:
            net.up[near].core.forceLogCompaction()
            assert net.run(lambda: len(net.up[near].journal) < 5)
        net.crash(near)
        net.start(near)  # and again, from the start or from the snapshot on
        net.put(lead, b"10")
        assert net.run(lambda: len(net.values(near)) == len(net.values(lead)) == 11)
        in_log = {index: command[1:] for command, index, _ in net.up[lead].journal[:] if command[:1] == b"\0"}
        for name in lead, near:
            assert {index: bytes.fromhex(value) for index, value in net.up[name].machine.applied} == in_log


class _Raising:
    def __init__(self) -> None:
        self.calls = 0

    def apply(self, entry: bytes, index: int) -> bytes:
        self.calls += 1
        raise ValueError(entry)

    def precompute(self, entry: bytes, index: int) -> bool:
        return True


class _Counting(_Raising):
    def apply(self, entry: bytes, index: int) -> bytes:
        self.calls += 1
        return b"done"


def _alone(folder: Path, machine: Any) -> RaftCore:
    check_library()
    journal = GroupJournal(folder / "journal", flush=False)
    transport = SessionTransport("a", ("a",))
    conf = settings(journal, str(folder / "snapshot"), lambda *_: None, lambda *_: None, lambda *_: None, 10_000)
    core = RaftCore("a", ("a",), conf, transport, machine)
    transport.attach(core)
    while not core.leads:
        core.doTick(0.005)
    return core


async def test_raft_callback_that_raises_stops_the_process_after_one_apply(tmp_path: Path) -> None:
    machine = _Counting()
    core = _alone(tmp_path, machine)
    failures: list[Exception] = []
    transport = core._SyncObj__transport
    driver = GroupDriver(core, transport, core.log, lambda *_: None, lambda: None, failures.append)

    def bad(*_: Any) -> None:
        raise KeyError

    core.propose(b"once", bad)
    for _ in range(20):
        driver.tick()
    assert machine.calls == 1
    assert driver.stopped
    assert [type(failure) for failure in failures] == [KeyError]
    core.log.close()


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
