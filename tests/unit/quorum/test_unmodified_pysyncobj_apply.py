"""Test PySyncObj 0.3.17 unmodified, then the Raft driver: outcomes, isolated leaders, and arguments of apply.

Points 9 and 10 of what the metadata group must not inherit.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.metadata.controller.quorum_member import ProposedEntry
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm, registration
from tests.unit.quorum.raft_network import bare_member, our_net
from tests.unit.quorum.unmodified_pysyncobj import Node, ShippedNet, in_process

# ---- 9: an outcome that is not known ------------------------------------------------------------------------------------


def leader_changed(net: ShippedNet, lead: str, near: str, far: str) -> None:
    """Let the leader die after one follower has the entry and before the other follower knows of it."""
    net.stalled = {(lead, near)}
    assert net.run(lambda: net.up[far].last_index > 2 and net.up[lead].values)
    net.crash(lead)
    net.stalled = set()
    net.split(near + far)
    net.elect_now(far)


def unknown_outcome(net: ShippedNet, lead: str, near: str, far: str) -> None:
    """Let the entry arrive before the answer of the leader about the entry."""
    late: list[Any] = []

    def held(sender: str, receiver: str, message: Any) -> bool:
        is_word = bool(message["type"] == "apply_command_response")
        if is_word:
            late.append(message)
        return is_word

    net.lose = held
    assert net.run(lambda: net.up[near].values and late)
    net.receive(lead, near, late[0])


def silence(net: ShippedNet, lead: str, near: str, far: str) -> None:
    """Let a snapshot deliver the entry for which the follower waits."""
    assert net.run(lambda: net.up[near]._SyncObj__commandsWaitingCommit)
    net.split(lead + far, near)
    net.forbid_elections(near)
    assert net.run(lambda: net.up[lead].values and net.up[far].values)
    net.put(lead, "another")
    net.put(lead, "and another")
    assert net.run(lambda: len(net.up[far].values) == 3)
    net.results.clear()
    net.up[lead].forceLogCompaction()
    net.run(lambda: net.up[lead]._getRaftLogSize() == 2)
    net.split(lead + near + far)


def told(folder: Path) -> Any:
    answers = []
    for happens in leader_changed, unknown_outcome, silence:
        net = ShippedNet()
        lead, near, far = net.elected()
        net.put(near, "once")
        happens(net, lead, near, far)
        assert net.run(lambda net=net, near=near: "once" in net.up[near].values)
        net.run(lambda net=net: net.results, 60)
        reasons = [reason for value, reason in net.results if value == "once"]
        net.lose = lambda *_: False
        net.put(near, "once")  # what can the caller do but try again?
        net.run(lambda net=net: "SUCCESS" in [reason for _, reason in net.results])
        answers.append((reasons, net.up[near].values.count("once")))
    return answers


def test_unmodified_pysyncobj_applies_a_retry_twice_after_an_unknown_outcome(tmp_path: Path) -> None:
    changed, unknown, silent = in_process(told, tmp_path, leader_changed, unknown_outcome, silence)
    assert changed == [["LEADER_CHANGED"], 2]
    assert unknown == [["UNKNOWN_OUTCOME"], 2]
    assert silent == [[], 2]


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


async def test_raft_proposal_without_an_answer_times_out_with_an_unknown_outcome(tmp_path: Path) -> None:
    member = bare_member(tmp_path)
    member._driver.stopped = True  # nothing is ever applied
    request = pb.ControlRequest(barrier=pb.Barrier())
    response = await member._orders.order(ProposedEntry(request, timeout_ns=10_000_000))
    assert response.error == pb.ControlResponse.OUTCOME_UNKNOWN
    assert response.operationId == request.operationId != b""
    member._log.journal.close()


# ---- 9: a leader that is alone ------------------------------------------------------------------------------------------


def reign(folder: Path) -> Any:
    from pysyncobj import SyncObjConf

    net = ShippedNet()
    lead, near, far = net.elected()
    net.split(lead, near + far)
    since = net.now
    net.put(lead, "alone")
    net.run(lambda: len(net.leaders()) == 2)
    two_lead_after = net.now - since
    net.run(lambda: lead not in net.leaders(), 100)
    return SyncObjConf().leaderFallbackTimeout, two_lead_after, net.now - since, net.results


def test_unmodified_pysyncobj_isolated_leader_stays_leader_for_30_seconds(tmp_path: Path) -> None:
    default, two_lead_after, ends_after, results = in_process(reign, tmp_path)
    assert default == 30.0
    assert two_lead_after < 3
    assert 29 < ends_after < 31
    assert results == []


def test_raft_isolated_leader_steps_down_within_seconds(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.split(lead, near + far)
        since = net.now
        assert net.run(lambda: lead not in net.leaders())
        assert net.now - since < 1.7
        assert net.up[lead].core.conf.leaderFallbackTimeout == 1.5


# ---- 9: a thread that dies with its creator ------------------------------------------------------------------------------


def tick_thread(folder: Path) -> Any:
    import threading

    from pysyncobj import SyncObj, SyncObjConf
    from pysyncobj.transport import Transport

    made: list[SyncObj] = []
    ticks, ticking = [], threading.Event()

    def create() -> None:
        made.append(SyncObj(Node("a"), [], SyncObjConf(), transport=Transport(None, None, []), nodeClass=Node))
        made[0].addOnTickCallback(lambda: (ticks.append(1), ticking.set()))
        ticking.wait(10)

    creator = threading.Thread(target=create)
    creator.start()
    creator.join()
    made[0]._SyncObj__thread.join(10)
    return len(ticks) > 0, made[0].tick_thread_alive()


def test_unmodified_pysyncobj_tick_thread_ends_with_its_creator_thread(tmp_path: Path) -> None:
    assert in_process(tick_thread, tmp_path) == [True, False]


def test_raft_driver_starts_no_thread_and_ticks_from_any_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with our_net(tmp_path, "a") as net:
        net.crash("a")
        creator = threading.Thread(target=lambda: net.start("a"))
        creator.start()
        creator.join()
        assert threading.active_count() == before
        assert net.up["a"].core.conf.autoTick is False
        assert net.run(net.leaders)


# ---- 10: what an apply knows --------------------------------------------------------------------------------------------


def arguments(folder: Path) -> Any:
    from pysyncobj import SyncObj, SyncObjConf, replicated
    from pysyncobj.transport import Transport

    given: list[Any] = []

    class Machine(SyncObj):
        @replicated
        def put(self, *values: Any, **named: Any) -> None:
            given.append((values, named))

    conf = SyncObjConf(autoTick=False, raftMinTimeout=0.31, raftMaxTimeout=0.32)
    node = Machine(Node("a"), [], conf, transport=Transport(None, None, []), nodeClass=Node)
    node.put("value", key="word")
    while not given:
        node.doTick(0.01)
    return given


def test_unmodified_pysyncobj_passes_no_log_index_to_apply(tmp_path: Path) -> None:
    assert in_process(arguments, tmp_path) == [[["value"], {"key": "word"}]]


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
