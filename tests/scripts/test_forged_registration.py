"""A stranger registers under the id of a running node.

Taken, the registration would end the process that runs: three of them would end a whole cluster. So the metadata leader takes none
as long as the node's heartbeats come, whatever else is said in its name, that it stops included, and puts nothing into the log. A
process that was killed costs its successor little more than a heartbeat, and not its place in the ISR.

Shows C12, S15, L1.
"""

from __future__ import annotations

from liftpy.config import NS_PER_S
from liftpy.core.metadata.sessions import REGISTRATION_HOLD_S
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import registration
from tests.scripts.stage import Stage
from tests.simulation.replica.clock import MS


def forge(s: Stage, node: str) -> list[pb.ControlResponse]:
    """A registration in the name of ``node`` is on its way; what is answered."""
    answers: list[pb.ControlResponse] = []
    asked = registration(nodeId=node, folderId="another", start=9, nonce=99, cleanStop=True, flushedAlways=True)
    request = pb.ControlRequest(operationId=s.cluster.group.new_operation_id(), registerNode=asked)
    s.cluster.group.propose(node, request, lambda answer: answers.append(answer) if answer else None)
    return answers


def test_forged_registration_of_a_running_node_is_rejected() -> None:
    with Stage() as s:
        s.publish(3)
        for node in ("n1", "n2", "n3"):
            index = s.cluster.group.image.index
            answers = forge(s, node)
            s.until(lambda answers=answers: bool(answers))
            assert answers[0].error == pb.ControlResponse.EXISTS
            assert f"Node {node!r} runs already, as incarnation" in answers[0].detail
            assert s.cluster.group.image.index == index
        s.publish(3)
        assert s.counted("deposed by another registration") == 0
        assert s.isr == {"n1", "n2", "n3"}


def test_forged_registration_of_a_node_fenced_by_a_forged_request_is_rejected() -> None:
    with Stage() as s:
        node = s.followers[0]
        s.run(1.0)
        known = s.cluster.group.image.nodes[node]
        said = pb.ControlRequest(fenceNode=pb.FenceNode(nodeId=node, incarnation=known.incarnation))
        s.cluster.group.propose(node, said, lambda answer: None)
        s.until(lambda: s.cluster.group.image.nodes[node].fenced)
        answers = forge(s, node)
        s.until(lambda: bool(answers))
        assert answers[0].error == pb.ControlResponse.EXISTS
        s.until(lambda: not s.cluster.group.image.nodes[node].fenced)
        s.publish(1)
        assert s.cluster.group.image.nodes[node].incarnation == known.incarnation


def test_forged_registration_under_a_new_metadata_leader_is_rejected() -> None:
    with Stage() as s:
        s.publish(1)
        s.metadata_down()
        s.run(0.5)
        s.metadata_up()
        answers = forge(s, "n2")
        s.until(lambda: bool(answers))
        assert answers[0].error == pb.ControlResponse.EXISTS
        assert s.counted("deposed by another registration") == 0


def test_registration_of_a_restarted_node_replaces_the_killed_process_within_a_heartbeat() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        for _ in range(3):
            before = s.cluster.group.image.nodes[c].incarnation
            s.crash(c)
            began_ns = s.cluster.clock.now_ns
            s.start(c)
            s.until(lambda before=before: s.cluster.group.image.nodes[c].incarnation > before)
            assert s.cluster.clock.now_ns - began_ns < 500 * MS
            s.always(lambda: s.isr == {a, b, c}, 1.0)


def test_forged_registration_of_a_paused_node_is_rejected_until_well_after_its_session() -> None:
    """Silence before that proves nothing. The session also ends on a starved machine."""
    with Stage() as s:
        c = s.followers[-1]
        s.run(1.0)
        s.pause(c)
        silent_ns = s.cluster.clock.now_ns
        answers = forge(s, c)
        s.until(lambda: bool(answers))
        assert answers[0].error == pb.ControlResponse.EXISTS
        s.until(lambda: s.cluster.group.image.nodes[c].fenced)
        answers = forge(s, c)
        s.until(lambda: bool(answers))
        assert answers[0].error == pb.ControlResponse.EXISTS
        s.run(REGISTRATION_HOLD_S - (s.cluster.clock.now_ns - silent_ns) / NS_PER_S + 0.5)
        answers = forge(s, c)
        s.until(lambda: bool(answers))
        assert answers[0].error == pb.ControlResponse.OK
        s.resume(c)
