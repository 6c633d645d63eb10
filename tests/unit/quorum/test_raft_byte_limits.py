"""Test the limits in bytes of the Raft log, the journal, the inbox and the feed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.quorum import driver as driver_module
from sidecar.quorum import journal as journal_module
from sidecar.quorum import library
from sidecar.quorum.driver import GroupDriver
from sidecar.quorum.journal import GroupJournal
from tests.unit.quorum.raft_network import our_net

LARGE = 20_000
ENTRIES = 60
BOUND = 200_000


def test_raft_log_with_few_large_entries_is_compacted_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit in entries alone would keep 10,000 entries."""
    monkeypatch.setattr(library, "COMPACT_AFTER_BYTES", BOUND)
    monkeypatch.setattr(library, "COMPACT_AT_ONCE_BYTES", BOUND)
    with our_net(tmp_path) as net:
        leader, *_ = net.elected()
        most = {"held": 0, "stored": 0}
        for number in range(ENTRIES):
            value = b"%d " % number + b"x" * LARGE
            net.put(leader, value)
            assert net.run(lambda value=value: value in net.acknowledged())
            net.run(lambda: len({len(net.values(name)) for name in net.up}) == 1, 2)
            for name, member in net.up.items():
                most["held"] = max(most["held"], member.journal.entry_bytes)
                most["stored"] = max(most["stored"], (tmp_path / name / "journal").stat().st_size)
        assert BOUND / 2 < most["held"] <= BOUND + 6 * LARGE, most
        assert most["stored"] <= BOUND + 6 * LARGE, most
        assert all(member.core.compactions >= ENTRIES * LARGE // (2 * BOUND) for member in net.up.values())
        net.crash(*net.up)
        for name in net.members:
            net.start(name)
        leader, *_ = net.elected()
        net.put(leader, b"after")
        assert net.run(lambda: all(net.values(name)[-1:] == [b"after"] for name in net.up))


def test_raft_journal_of_commit_index_updates_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit index is written every second: 3 MB a day, and nothing to compact."""
    monkeypatch.setattr(journal_module, "MAX_SPENT_BYTES", 5_000)
    journal = GroupJournal(tmp_path / "journal", flush=False)
    journal.add(b"\x00command", 1, 1)
    for second in range(2_000):
        journal.setRaftCommitIndex(1)
        journal.setCurrentTerm(second, "n2")
        journal.onOneSecondTimer()
        journal.sync()
        size_bytes = (tmp_path / "journal").stat().st_size
        assert size_bytes == journal.file_bytes <= 5_000 + 200
    journal.close()
    again = GroupJournal(tmp_path / "journal", flush=False)
    assert (again.getCurrentTerm(), len(again), again.entry_bytes) == (1999, 1, 21 + 8)
    again.close()


async def test_raft_inbox_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "MAX_INBOX_BYTES", 1_000)
    unused: Any = SimpleNamespace(leads=False)
    driver = GroupDriver(unused, unused, unused, lambda *_: None, lambda: None, lambda _: None)
    driver.stopped = True
    for number in range(50):
        driver.frame_received("n2", bytes([number]) * 100)
        assert driver.inbox_bytes <= 1_000
    assert (len(driver._inbox), driver.frames_lost) == (10, 40)
    assert driver._inbox[-1][1][0] == 49, "the oldest is lost: its session sees a gap"
    driver.frame_received("n2", b"x" * 5_000)
    assert len(driver._inbox) == 1, "one always comes in"
