"""Test the compaction of the Raft log into a snapshot, and a start from this snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.quorum import library
from sidecar.quorum.library import COMPACT_AFTER_BYTES, COMPACT_AT_ONCE_BYTES, LULL_S
from tests.unit.quorum.raft_network import OurNet, our_net

ENTRY = 4096


def put(net: OurNet, leader: str, size_bytes: int) -> None:
    """Append entries of the given total size. All members apply them."""
    first = net.up[leader].journal.last_index
    count = size_bytes // ENTRY + 1
    for number in range(count):
        net.put(leader, b"%d" % (first + number) + b"." * ENTRY)
    assert net.run(lambda: all(m.core.raftLastApplied >= first + count for m in net.up.values()), 6_000)


def idle(net: OurNet, seconds: float) -> None:
    until = net.now + seconds
    while net.now < until:
        net.step()


def sizes(net: OurNet) -> list[int]:
    return [len(member.journal) for member in net.up.values()]


def test_raft_log_above_the_size_limit_is_compacted_when_idle_and_loaded_from_the_snapshot(tmp_path: Path) -> None:
    with our_net(tmp_path) as net:
        lead, near, _ = net.elected()
        put(net, lead, COMPACT_AFTER_BYTES)
        assert min(sizes(net)) > COMPACT_AFTER_BYTES // ENTRY
        idle(net, LULL_S + 0.5)
        assert max(sizes(net)) < 10
        put(net, lead, 20 * ENTRY)
        idle(net, LULL_S + 0.5)
        assert min(sizes(net)) > 20, "one is enough"
        before = net.values(near)
        net.crash(near)
        net.start(near)
        net.tick(near)
        assert len(net.values(near)) >= len(before) - 21, "from the snapshot, before anything is heard of the others"


def test_raft_log_that_is_never_idle_is_compacted_at_a_larger_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPACT_AT_ONCE_BYTES > 4 * COMPACT_AFTER_BYTES
    monkeypatch.setattr(library, "COMPACT_AT_ONCE_BYTES", 2 * COMPACT_AFTER_BYTES)
    with our_net(tmp_path) as net:
        lead, *_ = net.elected()
        found = []
        for _ in range(16):
            put(net, lead, COMPACT_AFTER_BYTES // 4)
            found.append(max(sizes(net)))
        assert COMPACT_AFTER_BYTES // ENTRY < max(found) < 2.5 * COMPACT_AFTER_BYTES // ENTRY
        assert min(found[8:]) < found[0] + 1
