"""Test a controller with a data directory restored from an older copy: it has no vote until it has caught up [S15, M2, M4]."""

from __future__ import annotations

import struct
from pathlib import Path

import crc32c
import pytest

from liftpy.errors import CorruptionError, ProtocolError, UnknownFormatError
from sidecar.quorum.peer_sessions import _FRAME, _HELLO
from sidecar.quorum.probation import FILE, DirectoryLineage, Probation
from tests.unit.quorum.raft_network import OurNet, our_net

OPERATIONS = [b"%d" % number for number in range(40)]


def restored_behind_and_leader(net: OurNet) -> tuple[str, str, str]:
    """Return a follower with a restored older directory, a follower without the committed entries, and the leader."""
    leader, restored, behind = net.elected()
    net.put(leader, b"before the copy")
    assert net.run(lambda: all(net.values(name) == [b"before the copy"] for name in net.members))
    net.crash(restored)
    net.copy(restored)
    net.start(restored)
    heard = net.up[restored].probation.lineage.nonce
    assert net.run(lambda: all(net.up[n].probation.lineage.known.get(restored) == heard for n in (leader, behind)))
    net.split(leader + restored, behind)
    net.forbid_elections(behind)
    for operation in OPERATIONS:
        net.put(leader, operation)
    assert net.run(lambda: len(net.acknowledged()) == 1 + len(OPERATIONS))
    net.put_back(restored)
    return leader, restored, behind


@pytest.mark.parametrize("compact_after", [15, 100_000])
def test_controller_with_a_restored_directory_votes_after_catching_up_and_a_barrier(tmp_path: Path, compact_after: int) -> None:
    with our_net(tmp_path, compact_after=compact_after) as net:
        leader, restored, behind = restored_behind_and_leader(net)
        net.split()
        member = net.start(restored)
        assert net.run(lambda: len(net.values(restored)) == 41)
        assert not member.probation.over
        assert net.up[leader].core.match_index(restored) == 0
        net.ask_for_barrier(restored, leader)
        assert net.run(lambda: member.probation.over)
        assert net.run(lambda: all(net.up[n].transport.sessions.peers[restored].trusted for n in (leader, behind)))
        net.crash(behind)
        net.put(leader, b"with its voice")
        assert net.run(lambda: b"with its voice" in net.acknowledged())
        net.crash(restored)
        assert net.start(restored).probation.over
        net.put(leader, b"and after a restart")
        assert net.run(lambda: b"and after a restart" in net.acknowledged())


def test_controller_with_a_restored_directory_ignores_a_barrier_requested_before_the_detection(tmp_path: Path) -> None:
    """Its own acknowledgment may have committed this barrier."""
    with our_net(tmp_path) as net:
        leader, restored, behind = restored_behind_and_leader(net)
        del net.up[leader].probation.lineage.known[restored]
        member = net.start(restored)
        assert net.run(lambda: len(net.values(restored)) == 41)
        net.ask_for_barrier(restored, leader)
        turn = member.probation.turn
        net.split(leader + restored + behind)
        assert net.run(lambda: not member.probation.over)
        member.probation.barrier_applied(turn)
        net.run(lambda: False, 1)
        assert not member.probation.over
        net.ask_for_barrier(restored, leader)
        assert net.run(lambda: member.probation.over)


def test_raft_leader_with_a_restored_directory_steps_down_when_detected(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        leader, other, third = net.elected()
        assert net.run(lambda: leader in net.up[other].probation.lineage.known)
        net.up[other].probation.lineage.known[leader] = 4711
        assert net.run(lambda: not net.up[leader].probation.over)
        assert not net.up[leader].core.leads
        assert net.run(lambda: net.up[other].core.leads or net.up[third].core.leads)


def test_controller_accepts_a_hello_without_nonces(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        for member in net.up.values():
            member.transport.sessions.tail_for = lambda _: b""
        leader, *_ = net.elected()
        net.put(leader, b"first")
        assert net.run(lambda: len(net.acknowledged()) == 1)


def test_raft_hello_with_an_invalid_directory_history_is_rejected(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        leader, other, _ = net.elected()
        for tail in (
            b"x",
            struct.pack("<QQB", 0, 0, 0),
            struct.pack("<QQB", 7, 0, 2) + bytes(8),
            struct.pack("<QQB", 7, 0, 0) + b"x",
        ):
            with pytest.raises(ProtocolError):
                net.up[other].probation.lineage.process_hello(leader, tail)
            to = net.up[other].transport.sessions.peers[leader].own_epoch
            net.up[other].inbox.append((leader, _FRAME.pack(_HELLO, 0, 99, to, 0, 0) + tail))
        net.run(lambda: False, 0.3)
        assert net.counter(other, "refused: hellos") == 4
        assert net.leaders() == [leader]


def test_data_directory_history_reports_a_missing_nonce_until_caught_up(tmp_path: Path) -> None:
    lineage = DirectoryLineage(tmp_path, lambda: 5)
    lineage.process_hello("b", struct.pack("<QQB", 99, 4711, 0))
    assert lineage.missed == (4711,)
    lineage.caught_up()
    assert (lineage.missed, lineage.holds(4711)) == ((), True)


def test_data_directory_history_is_reported_as_restored_only_by_a_majority_of_untrusted_peers(tmp_path: Path) -> None:
    """A peer with a restored directory knows only an old process of this node."""
    lineage = DirectoryLineage(tmp_path, lambda: 5, majority=2)
    for peer in "bc":
        assert lineage.process_hello(peer, struct.pack("<QQB", 99, 0, 0))
    for peer, missed in (("b", ()), ("b", ()), ("c", (4711,))):
        assert not lineage.process_hello(peer, struct.pack("<QQB", 101, 4711, 0))
        assert lineage.missed == missed
    assert lineage.process_hello("b", struct.pack("<QQB", 103, 4711, 0)), "one that went back itself has no say"
    lineage.caught_up()
    assert lineage.known == {}, "what it knew of them was as old as the rest of it"


def test_data_directory_history_file_that_is_damaged_raises_corruption_error(tmp_path: Path) -> None:
    DirectoryLineage(tmp_path, lambda: 5)
    path = tmp_path / FILE
    stored = path.read_bytes()
    path.write_bytes(stored[:-2] + b"x}")
    with pytest.raises(CorruptionError, match="is damaged"):
        DirectoryLineage(tmp_path, lambda: 5)
    assert stored.count(b'"nonce": 5') == 1
    path.write_bytes(stored.replace(b'"nonce": 5', b'"nonce": 7'))  # as well formed as before
    with pytest.raises(CorruptionError, match="is damaged"):
        DirectoryLineage(tmp_path, lambda: 5)
    path.write_bytes(b"%08x\n%b" % (0xD2A0ACB0, b"{}"))
    with pytest.raises(CorruptionError):
        DirectoryLineage(tmp_path, lambda: 5)


def test_data_directory_history_file_of_another_format_raises_unknown_format_error(tmp_path: Path) -> None:
    body = b'{"format": 2}'
    (tmp_path / FILE).write_bytes(b"%08x\n%b" % (crc32c.crc32c(body), body))
    with pytest.raises(UnknownFormatError):
        Probation(tmp_path, ("a", "b", "c"))
