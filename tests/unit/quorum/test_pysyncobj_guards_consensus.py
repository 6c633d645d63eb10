"""Test the guards of the Raft driver against faults of PySyncObj 0.3.17: lost entries and double votes on a network without faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from liftpy.core.metadata.controller.quorum_member import ProposedEntry
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata import member as proposal_executor
from sidecar.quorum.library import Node
from tests.unit.quorum.raft_network import bare_member, our_net

# ---- 2: acknowledged loss on a perfect FIFO network with one leader crash -----------------------------------------------


def test_raft_entries_in_flight_are_not_resent_and_survive_a_crash(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.split(lead + near, far)
        net.stalled = net.pairs(lead, near)
        while net.wires[lead, near] or net.wires[near, lead]:
            net.deliver(lead, near), net.tick(near)
            net.deliver(near, lead), net.tick(lead)
        for values in (b"123", b"456"):
            for one in values:
                net.put(lead, b"%c" % one + b"." * 40_000)
            net.tick(lead)
            net.deliver(lead, near), net.tick(near)
        held = net.up[near].journal.last_index
        assert held == net.up[lead].journal.last_index
        net.deliver(near, lead, 1)
        net.now += 0.2
        net.tick(lead)  # a heartbeat
        assert net.up[lead].core.match_index(near) == held - 3, "the first answer is for the first three"
        assert sum(map(len, net.wires[lead, near])) < 1_000, "what is in flight is not sent again"
        assert net.up[lead].core.next_index(Node(near)) == held + 1
        net.deliver(near, lead), net.tick(lead)
        while net.up[lead].core.behind:
            net.tick(lead)  # so many bytes are applied in more than one tick
        assert len(net.acknowledged()) == 6
        net.deliver(lead, near, 1), net.tick(near)
        assert net.up[near].journal.last_index == held
        net.crash(lead)
        net.split(near + far)
        net.stalled = set()
        assert net.run(lambda: len(net.values(far)) == 6)
        assert set(net.values(far)) == net.acknowledged()


def test_raft_append_entries_received_twice_truncates_nothing(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        start = net.up[lead].journal.last_index
        for number in range(6):
            net.put(lead, b"%d" % number)
        assert net.run(lambda: len(net.values(near)) == 6)
        net.step()
        net.up[lead].core.set_next_index(Node(near), start + 1)
        journal = net.up[lead].journal
        previous, again = journal[start - 1], journal[start : start + 2]
        append = {"type": "append_entries", "term": net.up[lead].core.raftCurrentTerm, "commit_index": start}
        append |= {"entries": again, "prevLogIdx": previous[1], "prevLogTerm": previous[2]}
        net.up[lead].transport.send(Node(near), append)
        net.step(), net.step()
        assert net.counter(near, "entries_known") == 2
        assert net.up[near].journal.last_index == start + 6


# ---- 3: answers without a term, votes counted twice --------------------------------------------------------------------


def test_raft_append_answer_to_an_earlier_term_is_ignored(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        before = net.up[lead].core.raftCurrentTerm
        net.stalled = {(near, lead)}
        net.put(lead, b"1")
        assert net.run(lambda: net.acknowledged())
        under_way = len(net.wires[near, lead])
        for next_leader, others in ((far, near + lead), (lead, near + far)):
            net.forbid_elections(*others)
            net.elect_now(next_leader)
            led = lambda name=next_leader: net.leaders() == [name] and net.logs_are_equal()  # noqa: E731
            assert net.run(led, 0.7)  # both together before the session ends by silence
        assert net.up[lead].core.raftCurrentTerm > before
        assert net.up[lead].core.match_index(near) == 0
        net.deliver(near, lead, under_way)
        frames, net.up[lead].inbox = net.up[lead].inbox, []
        for sender, frame in frames:
            net.up[lead].transport.receive(sender, frame)
        assert net.counter(lead, "append_answers_of_other_term") > 0
        assert net.up[lead].core.match_index(near) == 0


@pytest.mark.parametrize("beyond", [0, 1])
def test_raft_append_answer_beyond_the_log_of_the_leader_ends_the_session(tmp_path: Path, beyond: int) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        last = net.up[lead].journal.last_index
        answer = {"type": "next_node_idx", "next_node_idx": last + 1 + beyond, "reset": False, "success": True}
        net.up[near].transport.send(Node(lead), answer)
        net.step(), net.step()
        assert net.counter(lead, "append_answers_beyond_log") == beyond
        assert net.counter(lead, "sessions ended: refused message") == beyond
        assert net.up[lead].core.match_index(near) <= last


def test_raft_vote_received_twice_is_counted_once(tmp_path: Path) -> None:
    with our_net(tmp_path, "abcde") as net:
        net.split("ab", "c", "de")
        once = net.post
        net.post = lambda *frame: (once(*frame), once(*frame))  # type: ignore[method-assign]
        for name in "ad" * 5:
            net.elect_now(name)  # nobody would ask for votes: no majority would give them
            assert not net.run(net.leaders, 2)
        assert all(net.counter(name, "refused: duplicate frame") for name in "abde")
        assert all(net.up[name].core.raftCurrentTerm >= 5 for name in "abde"), "they did vote"
        net.split("abcde")
        assert net.run(net.leaders)


# ---- 4: a follower that never catches up -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [64 * 1024 * 1024, 4096])
def test_raft_follower_with_many_conflicting_entries_catches_up(tmp_path: Path, batch_size: int) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        for member in net.up.values():
            assert member.core.conf.appendEntriesBatchSizeBytes == 64 * 1024 * 1024, "the setting helps"
            member.core.conf.appendEntriesBatchSizeBytes = batch_size  # and it goes without
        net.split(lead, near + far)
        for number in range(5):
            net.put(lead, b"tail %d" % number)
        assert net.run(lambda: near in net.leaders() or far in net.leaders())
        (new,) = set(net.leaders()) & {near, far}
        for number in range(200):
            net.put(new, b"%d" % number + b"." * 100)
        assert net.run(lambda: len(net.values(near)) == len(net.values(far)) == 200)
        net.up[new].core.transferLeadership()
        assert net.run(lambda: (near + far).replace(new, "") in net.leaders())
        net.split(lead + near + far)
        assert net.run(lambda: len(net.values(lead)) == 200, 5)
        assert net.counter(lead, "conflicting_entries_truncated") >= 1
        assert net.values(lead) == net.values(near) == net.values(far)


async def test_raft_entry_above_the_batch_size_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal_executor, "MAX_APPEND_BYTES", 4096)
    member = bare_member(tmp_path)
    request = pb.ControlRequest(createStream=pb.CreateStream(name="x" * 4096))
    response = await member._order(ProposedEntry(request))
    assert response.error == pb.ControlResponse.INVALID
    assert "too large" in response.detail
    member._log.journal.close()
