"""Test the guards of the Raft driver against faults of PySyncObj 0.3.17: snapshots that commit or discard entries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.quorum import transport as transport_module
from sidecar.quorum.library import Node
from sidecar.quorum.snapshot_file import decode_snapshot_file, encode_snapshot_file
from tests.unit.quorum.raft_network import OurNet, our_net


def compact(net: Any, name: str) -> None:
    node = getattr(net.up[name], "core", net.up[name])
    before = node._getRaftLogSize()
    node.forceLogCompaction()
    assert net.run(lambda: node._getRaftLogSize() < before)


# ---- the commit index is raised over a tail that matches nothing --------------------------------------------------------


def test_raft_snapshot_chunks_commit_nothing(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, far = net.elected()
        net.split(lead, near + far)
        for number in range(3):
            net.put(lead, b"tail %d" % number)
        assert net.run(lambda: set(net.leaders()) & {near, far})
        (new,) = set(net.leaders()) & {near, far}
        for number in range(100):
            net.put(new, b"%d" % number + b"." * 5_000)  # several pieces
        assert net.run(lambda: len(net.acknowledged()) == 100)
        compact(net, new)
        tail = net.up[lead].journal.last_index
        net.stalled = {(new, lead)}
        net.split(lead + near + far)
        pieces = 0
        while not net.counter(lead, "snapshots_installed"):
            assert not any(value.startswith(b"tail") for value in (*net.values(lead), *net.acknowledged()))
            assert net.up[lead].core.raftCommitIndex < tail - 2
            waiting = len(net.wires[new, lead])
            pieces = max(pieces, waiting)
            net.deliver(new, lead, min(1, waiting))  # one frame a step
            net.step()
        assert pieces > 2
        net.stalled = set()
        assert net.run(lambda: net.values(lead) == net.values(new))
        assert not any(value.startswith(b"tail") for value in net.values(lead))


# ---- an older snapshot discards newer entries ---------------------------------------------------------------------------


def _with_snapshot(net: OurNet) -> tuple[str, str, bytes]:
    """Return leader, follower and a snapshot of the leader, 20 entries older than the applied entries of both."""
    lead, near, _ = net.elected()
    for half in (1, 2):
        for number in range(20):
            net.put(lead, b"%d of %d" % (number, half))
        assert net.run(lambda half=half: len(net.values(near)) == len(net.acknowledged()) == 20 * half)
        if half == 1:
            compact(net, lead)
    return lead, near, (net.folder / lead / "snapshot").read_bytes()


def _send_snapshot(net: OurNet, sender: str, receiver: str, data: bytes, *, has_start: bool = True) -> None:
    core, transport = net.up[sender].core, net.up[sender].transport
    beat = {"type": "append_entries", "term": core.raftCurrentTerm, "commit_index": core.raftCommitIndex}
    for piece in (data, has_start, False), (b"", False, True):
        assert transport.send(Node(receiver), {**beat, "serialized": piece})
    net.step(), net.step()


def test_raft_repeated_snapshot_is_acknowledged_and_ignored(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, data = _with_snapshot(net)
        held = net.up[near].journal.last_index
        _send_snapshot(net, lead, near, data)
        assert net.counter(near, "snapshots_known") == 1
        assert net.up[near].journal.last_index == held
        assert len(net.values(near)) == 40


# ---- the dump is replaced before it is verified; what is wrong with it is swallowed -------------------------------------


@pytest.mark.parametrize(
    ("has_start", "spare_bytes", "counted"),
    [(True, 0, "snapshots_known"), (True, -1, "snapshot_chunks_out_of_order"), (False, 0, "snapshot_chunks_out_of_order")],
)
def test_raft_snapshot_without_its_start_or_above_the_size_limit_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_start: bool, spare_bytes: int, counted: str
) -> None:
    with our_net(tmp_path) as net:
        lead, near, data = _with_snapshot(net)
        monkeypatch.setattr(transport_module, "MAX_SNAPSHOT_BYTES", len(data) + spare_bytes)
        _send_snapshot(net, lead, near, data, has_start=has_start)
        assert net.counter(near, counted) == 1
        assert net.counter(near, "sessions ended: refused message") == (counted != "snapshots_known")


@pytest.mark.parametrize("what", ["zeros", "pickle", "shortened", "of a later term"])
def test_raft_damaged_snapshot_is_rejected_and_the_old_one_kept(tmp_path: Path, what: str) -> None:
    with our_net(tmp_path) as net:
        lead, near, data = _with_snapshot(net)
        compact(net, near)
        good, held = (tmp_path / near / "snapshot").read_bytes(), net.up[near].journal.last_index
        pickled = b"\x80\x04\x8c\x08builtins\x8c\x05print\x93\x8c\x08executed\x85R."
        last = (b"\0last", held + 9, net.up[lead].core.raftCurrentTerm + 1)
        later = encode_snapshot_file(replace(decode_snapshot_file(data), last=last))
        zeros = data[:20] + bytes(len(data) - 20)
        damaged = {"zeros": zeros, "pickle": pickled, "shortened": data[:-1], "of a later term": later}[what]
        _send_snapshot(net, lead, near, damaged)
        assert net.counter(near, "snapshots_rejected") == 1
        assert net.counter(near, "sessions ended: refused message") == 1
        assert (tmp_path / near / "snapshot").read_bytes() == good
        assert net.up[near].journal.last_index == held
        net.put(lead, b"goes on")
        assert net.run(lambda: b"goes on" in net.values(near))


def test_raft_restart_after_a_compaction_restores_all_entries(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        _, near, _ = _with_snapshot(net)
        compact(net, near)
        before = net.values(near)
        net.crash(near)
        net.start(near)
        assert net.run(lambda: net.values(near) == before)
