"""Test pre-votes: a member raises its term only after a majority would vote for it."""

from __future__ import annotations

from pathlib import Path

from tests.unit.quorum.raft_network import OurNet, our_net


def terms(net: OurNet) -> set[int]:
    return {member.core.raftCurrentTerm for member in net.up.values()}


def deaf(net: OurNet, name: str, seconds: float) -> None:
    """Drop all messages to ``name`` and deliver its own: long enough for elections, too short for the end of a session."""
    net.lose = lambda _, receiver, __: receiver == name
    assert net.run(lambda: net.up[name].core.leader_id == "", seconds), "it still names a leader that it does not hear"
    net.run(lambda: False, seconds)
    net.lose = lambda *_: False


def test_controller_partitioned_only_from_the_leader_triggers_no_election(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        before = terms(net)
        for name in (near, far, near):
            deaf(net, name, 4.0)
            assert net.leaders() == [lead]
            assert terms(net) == before
            assert net.run(lambda name=name: net.up[name].core.leader_id == lead), "it is back among them"
            value = b"after %d" % len(net.results)
            net.put(lead, value)
            assert net.run(lambda name=name, value=value: value in net.values(name))


def test_raft_group_after_a_member_with_a_higher_term_returns_has_one_leader(tmp_path: Path) -> None:
    """A power cut removed the votes of the member and kept its term."""
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        net.lose = lambda sender, receiver, _: near in (sender, receiver)
        net.elect_now(near)
        net.tick(near)
        net.run(lambda: False, 0.2)
        assert net.up[near].core.raftCurrentTerm == net.up[lead].core.raftCurrentTerm + 1
        net.lose = lambda *_: False
        assert net.run(lambda: not net.leaders())
        assert net.up[lead].core.leader_id == "", "it names itself no longer"
        net.put(lead, b"meanwhile")
        assert net.run(lambda: len(terms(net)) == 1 and len(net.leaders()) == 1 and len(net.last_indexes()) == 1, 6.0)
        assert net.up[near].core.leader_id == net.leaders()[0]


def test_controller_with_the_longer_log_wins_despite_a_lower_term(tmp_path: Path) -> None:
    """Two of three members are live. The member with the higher term lacks an entry."""
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.lose = lambda sender, receiver, _: far in (sender, receiver)
        net.put(lead, b"known to two")
        assert net.run(lambda: b"known to two" in net.acknowledged())
        for _ in range(30):
            net.elect_now(far)
        net.crash(lead)
        assert net.up[far].core.raftCurrentTerm == net.up[near].core.raftCurrentTerm + 30
        net.lose = lambda *_: False
        assert net.run(lambda: net.leaders() == [near], 6.0)
        assert net.run(lambda: len(net.last_indexes()) == 1)


def due_at(net: OurNet, name: str, moment: float) -> None:
    net.up[name].core._SyncObj__raftElectionDeadline = moment


def test_raft_pre_vote_round_ends_when_a_leader_sends_append_entries(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        member = net.up[near].core
        net.lose = lambda _, receiver, __: receiver == near
        assert net.run(lambda: member.pre_vote.asks)
        net.lose = lambda *_: False
        due_at(net, near, net.now + 1e9)
        assert net.run(lambda: member.leader_id == lead)
        assert not member.pre_vote.asks


def test_raft_pre_vote_grants_received_before_a_disconnect_start_no_election(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        _, near, far = net.elected()
        member, (before,) = net.up[near].core, terms(net)
        member.pre_vote.begin()
        member.pre_vote.record_grant(far)
        net.up[near].transport.sessions.set_online(False)
        net.tick(near)
        net.up[near].transport.sessions.set_online(True)
        assert net.run(lambda: len(net.leaders()) == 1 and all(m.core.leader_id for m in net.up.values()))
        assert terms(net) == {before}


def test_controller_on_probation_neither_requests_nor_grants_pre_votes(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        (before,) = terms(net)
        net.empty(far)
        net.crash(lead)
        net.start(far)
        net.run(lambda: False, 5.0)
        assert net.up[far].core.on_probation
        assert net.up[near].core.raftCurrentTerm == before
        assert not net.leaders()


def test_leadership_transfer_starts_an_election_without_a_pre_vote(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        core = net.up[lead].core
        assert net.run(lambda: {core.match_index(near), core.match_index(far)} == {core.log.last_index})
        core.transferLeadership()
        assert net.run(lambda: net.leaders() in ([near], [far]), 0.4), "nobody was asked first: they all hear the leader"


def test_leadership_transfer_during_proposals_succeeds_although_each_vote_is_needed(tmp_path: Path) -> None:
    """A voter that lacks the newest entry gets no vote, so the leader appends no entries until another voter leads."""
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.crash(far)
        net.put(lead, b"not copied yet")
        net.up[lead].core.hand_over()
        for number in range(100):
            if net.leaders() == [near]:
                break
            net.put(lead, b"%d" % number)
            net.step()
        assert net.leaders() == [near]
        net.put(near, b"afterwards")
        assert net.run(lambda: b"afterwards" in net.acknowledged())


def test_metadata_leader_after_a_lost_transfer_request_appends_entries_again(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, *_ = net.elected()
        net.lose = lambda _, receiver, __: receiver != lead
        net.up[lead].core.hand_over()
        net.put(lead, b"rejected")
        net.run(lambda: False, 0.2)
        net.lose = lambda *_: False
        net.run(lambda: False, 1.0)
        assert net.leaders() == [lead]
        net.put(lead, b"stored")
        assert net.run(lambda: b"stored" in net.acknowledged())
        assert b"rejected" not in net.values(lead)


# ---- controllers that stop -------------------------------------------------------------------------------------------------
def test_stopping_controller_starts_no_election(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        term = net.up[lead].core.raftCurrentTerm
        for name in (near, far):
            net.up[name].core.retired = True
        leader = net.up[lead].core
        assert net.run(lambda: {leader.match_index(name) for name in (near, far)} == {leader.log.last_index})
        leader.transferLeadership()
        for _ in range(100):
            net.step()
        assert net.leaders() == [lead]
        assert {member.core.raftCurrentTerm for member in net.up.values()} == {term}
        net.crash(lead)
        for _ in range(300):
            net.step()
        assert net.leaders() == []
        assert {member.core.raftCurrentTerm for member in net.up.values()} == {term}


def test_stopping_controller_votes_for_a_running_controller(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.up[near].core.retired = True
        net.crash(lead)
        assert net.run(lambda: net.leaders() == [far])
