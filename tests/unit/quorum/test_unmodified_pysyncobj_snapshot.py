"""Test PySyncObj 0.3.17 unmodified, then the Raft driver: snapshots that commit or discard entries.

Point 5 of what the metadata group must not inherit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import CorruptionError
from sidecar.quorum.snapshot_file import SnapshotFile, decode_snapshot_file, encode_snapshot_file
from tests.unit.quorum.raft_network import OurNet, bare_member, our_net
from tests.unit.quorum.unmodified_pysyncobj import Node, ShippedNet, in_process


def compact(net: Any, name: str) -> None:
    node = getattr(net.up[name], "core", net.up[name])
    before = node._getRaftLogSize()
    node.forceLogCompaction()
    assert net.run(lambda: node._getRaftLogSize() < before)


# ---- the commit index is raised over a tail that matches nothing --------------------------------------------------------


def false_success(folder: Path) -> Any:
    net = ShippedNet()
    lead, near, far = net.elected()
    net.split(lead, near + far)
    for number in range(3):
        net.put(lead, f"tail {number}")
    assert net.run(lambda: len(net.leaders()) == 2)
    (new,) = set(net.leaders()) - {lead}
    for number in range(100):
        net.put(new, number)
    assert net.run(lambda: len(net.results) == 100)
    compact(net, new)
    net.results.clear()
    net.stalled = {(new, lead)}
    net.split(lead + near + far)
    wire = net.wires[new, lead]
    assert net.run(lambda: any(m.get("serialized") for m in wire))
    while not wire[0].get("serialized"):
        net.deliver(new, lead, 1)
    net.deliver(new, lead, 1)  # the first piece of the snapshot: nothing in it can be used yet
    net.step()
    return net.results, [value for value in net.up[new].values if str(value).startswith("tail")]


def test_unmodified_pysyncobj_snapshot_chunk_commits_entries_of_a_former_leader(tmp_path: Path) -> None:
    results, held_by_the_group = in_process(false_success, tmp_path, compact)
    assert results == [[f"tail {number}", "SUCCESS"] for number in range(3)]
    assert held_by_the_group == []


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


def older_snapshot(folder: Path) -> Any:
    net = ShippedNet()
    lead, near, _ = net.elected()
    leader, follower = net.up[lead], net.up[near]
    for number in range(20):
        net.put(lead, number)
    assert net.run(lambda: len(net.results) == 20 and net.logs_are_equal())
    compact(net, lead)
    data = leader._SyncObj__serializer._Serializer__inMemorySerializedData
    for number in range(20):
        net.put(lead, number)
    assert net.run(lambda: len(net.results) == 40 and net.applied_everywhere() and not any(net.wires.values()))
    held = follower.last_index
    beat = {"type": "append_entries", "term": leader.raftCurrentTerm, "commit_index": leader.raftCommitIndex}
    for piece in (data, True, False), (b"", False, True):
        net.receive(lead, near, {**beat, "serialized": piece})
    return held, follower.last_index, leader._SyncObj__raftMatchIndex[Node(near)]


def test_unmodified_pysyncobj_repeated_snapshot_discards_later_entries(tmp_path: Path) -> None:
    held, left, counted = in_process(older_snapshot, tmp_path, compact)
    assert left < held
    assert counted == held, "and the leader counts them as held"


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


def _send_snapshot(net: OurNet, sender: str, receiver: str, data: bytes) -> None:
    core, transport = net.up[sender].core, net.up[sender].transport
    beat = {"type": "append_entries", "term": core.raftCurrentTerm, "commit_index": core.raftCommitIndex}
    for piece in (data, True, False), (b"", False, True):
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


def unverified_dump(folder: Path) -> Any:
    net = ShippedNet(useFork=False)
    net.start("b", fullDumpFile=str(folder / "b"))
    net.forbid_elections("b", "c")
    lead, near, _ = net.elected()
    for number in range(20):
        net.put(lead, number)
    assert net.run(lambda: len(net.up[near].values) == 20)
    compact(net, near)
    good = (folder / near).read_bytes()
    net.lose = lambda _, receiver, __: receiver == near
    for number in range(20):
        net.put(lead, number)
    assert net.run(lambda: len(net.results) == 40)
    compact(net, lead)
    answers: list[bool] = []

    def damaged(sender: str, receiver: str, message: Any) -> bool:
        if message.get("serialized"):
            data, first, last = message["serialized"]
            message["serialized"] = data[:10] + bytes(len(data) - 10) if data else data, first, last
        if sender == near and message["type"] == "next_node_idx":
            answers.append(message["success"])
        return False

    net.lose = damaged
    assert net.run(lambda: (folder / near).read_bytes() != good)
    dump = (folder / near).read_bytes()
    return dump[10:] == bytes(len(dump) - 10), answers[-1], net.up[near].values


def test_unmodified_pysyncobj_damaged_snapshot_replaces_the_good_dump(tmp_path: Path) -> None:
    replaced, success, values = in_process(unverified_dump, tmp_path, compact)
    assert replaced
    assert success
    assert values == list(range(20)), "nothing was loaded"


@pytest.mark.parametrize("what", ["zeros", "pickle", "shortened"])
def test_raft_damaged_snapshot_is_rejected_and_the_old_one_kept(tmp_path: Path, what: str) -> None:
    with our_net(tmp_path) as net:
        lead, near, data = _with_snapshot(net)
        compact(net, near)
        good, held = (tmp_path / near / "snapshot").read_bytes(), net.up[near].journal.last_index
        pickled = b"\x80\x04\x8c\x08builtins\x8c\x05print\x93\x8c\x08executed\x85R."
        damaged = {"zeros": data[:20] + bytes(len(data) - 20), "pickle": pickled, "shortened": data[:-1]}[what]
        _send_snapshot(net, lead, near, damaged)
        assert net.counter(near, "snapshots_rejected") == 1
        assert net.counter(near, "sessions ended: refused message") == 1
        assert (tmp_path / near / "snapshot").read_bytes() == good
        assert net.up[near].journal.last_index == held
        net.put(lead, b"goes on")
        assert net.run(lambda: b"goes on" in net.values(near))


def restarts(folder: Path) -> Any:
    return [restarted_with(folder / kind, kind) for kind in ("whole", "damaged", "group needs its own journal")]


def restarted_with(folder: Path, kind: str) -> Any:
    folder.mkdir()
    conf = {"journalFile": str(folder / "journal"), "useFork": False}
    if kind != "group needs its own journal":
        conf["fullDumpFile"] = str(folder / "dump")
    net = ShippedNet("a", **conf)
    net.elected()
    for number in range(20):
        net.put("a", number)
    assert net.run(lambda: len(net.results) == 20)
    compact(net, "a")
    net.up["a"].destroy()
    if kind == "damaged":
        (folder / "dump").write_bytes(b"damaged")
    again = ShippedNet("a", **conf)
    again.run(again.leaders)
    again.put("a", "new")
    again.run(lambda: again.results, 5)
    return again.leaders(), again.up["a"].values


def test_unmodified_pysyncobj_starts_empty_with_a_lost_or_damaged_dump(tmp_path: Path) -> None:
    whole, damaged, journal_only = in_process(restarts, tmp_path, compact, restarted_with)
    assert whole == [["a"], [*range(20), "new"]]
    assert damaged == journal_only == [["a"], []], "it leads, and nothing is there"


def test_raft_restart_after_a_compaction_restores_all_entries(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        _, near, _ = _with_snapshot(net)
        compact(net, near)
        before = net.values(near)
        net.crash(near)
        net.start(near)
        assert net.run(lambda: net.values(near) == before)


async def test_raft_start_with_a_damaged_or_lost_snapshot_raises_corruption_error(tmp_path: Path) -> None:
    snapshot = encode_snapshot_file(SnapshotFile((b"\0last", 9, 2), (b"\0previous", 8, 2), ("a", "b", "c"), b""))
    assert decode_snapshot_file(snapshot).last[1] == 9
    with our_net(tmp_path) as net:
        _, near, _ = _with_snapshot(net)
        compact(net, near)
        net.crash(near)
    (tmp_path / near / "snapshot").write_bytes(snapshot[:-1])
    with pytest.raises(CorruptionError, match="damaged"):
        bare_member(tmp_path / near)
    (tmp_path / near / "snapshot").unlink()
    with pytest.raises(CorruptionError, match="lost its snapshot"):
        bare_member(tmp_path / near)
