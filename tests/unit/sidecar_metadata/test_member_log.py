"""Test how MemberLog reads a data directory, and what it passes on to the state machine and the feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from liftpy.core.metadata.controller_list import CONTROLLERS, ControllerList
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import CorruptionError
from sidecar.metadata.member_log import MemberDirectory, MemberLog
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import Node, check_library
from tests.born import born_fsm, registration
from tests.open_files import open_files


class Opened:
    def __init__(self, folder: Path) -> None:
        check_library()
        self.folder = folder
        self.feed = FeedProducer()
        self.log = MemberLog(MemberDirectory("a", ("a", "b", "c"), folder), born_fsm(), self.feed, lambda *_: None)

    def apply(self, index: int) -> bytes:
        register = registration(nodeId=f"d{index}")
        request = pb.ControlRequest(registerNode=register, operationId=index.to_bytes(16), timeNs=1)
        return self.log.apply(request.SerializeToString(), index)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    one = Opened(tmp_path / "raft")
    yield one
    one.log.journal.abandon()


def test_raft_member_log_snapshot_replaces_image_journal_and_feed(opened: Opened, tmp_path: Path) -> None:
    other = Opened(tmp_path / "other")
    for index in range(2, 10):
        other.apply(index)
    name = str(opened.folder / "snapshot")
    last, previous = (b"\0x", 9, 1), (b"\0x", 8, 1)
    other.log._save(name, (last, previous, {Node("a"), Node("b"), Node("c")}))
    opened.apply(2)
    opened.log.journal.clear()
    for index in range(1, 12):
        opened.log.journal.add(b"\0x", index, 1)
    told, before, nodes = opened.log._load(name)
    assert (told, before, sorted(node.id for node in nodes)) == (last, previous, ["a", "b", "c"])
    assert opened.log.image.index == opened.feed.index == 9
    assert sorted(opened.log.image.nodes) == [f"d{index}" for index in range(2, 10)]
    assert [entry[1] for entry in opened.log.journal] == [8, 9, 10, 11], "what the snapshot holds is not kept"
    assert opened.feed.answer(pb.FeedSnapshotRequest(afterIndex=2)) is None, "what was held before leads nowhere"
    other.log.journal.abandon()


def test_raft_member_log_of_a_new_directory_is_on_probation_and_has_no_stored_vote(opened: Opened) -> None:
    assert opened.log.core.on_probation
    assert not opened.log.probation.over
    journal = opened.log.journal
    journal.setCurrentTerm(9, "b")
    journal.close()
    again = Opened(opened.folder)
    assert again.log.journal.getCurrentTerm() == 0
    assert again.log.journal.getVotedForNodeId() is None
    again.log.journal.abandon()


def test_raft_member_log_damaged_snapshot_is_rejected(opened: Opened) -> None:
    opened.apply(2)
    name = opened.folder / "snapshot"
    opened.log._save(str(name), ((b"\0x", 2, 1), (b"\0x", 1, 1), {Node("a")}))
    opened.log.journal.close()
    data = bytearray(name.read_bytes())
    data[-1] ^= 1
    name.write_bytes(data)
    with pytest.raises(CorruptionError):
        Opened(opened.folder)
    assert open_files(opened.folder) == []


@pytest.mark.parametrize("lost", ["journal", "snapshot"])
def test_raft_member_log_with_lost_files_does_not_start(opened: Opened, lost: str) -> None:
    opened.log.journal.close()
    (opened.folder / "member").write_text("a\n")
    journal = opened.folder / "journal"
    journal.unlink()
    if lost == "snapshot":
        written = GroupJournal(journal)
        written.add(b"\0x", 5, 1)
        written.close()
    with pytest.raises(CorruptionError, match=f"lost its {lost}"):
        Opened(opened.folder)
    assert open_files(opened.folder) == []


def _told(opened: Opened, known: ControllerList, error: pb.ControlResponse.Error = pb.ControlResponse.OK, at: int = 0) -> bool:
    response = pb.ControlResponse(error=error, index=at)
    response.cluster.image.controllers.CopyFrom(CONTROLLERS.to_pb(known))
    return opened.log.process_leader_description(response)


@pytest.mark.parametrize(
    "known", [ControllerList(("d", "e"), learner="a", index=75), ControllerList(("a", "d", "e"), index=75)]
)
def test_raft_member_log_receiving_a_newer_controller_list_uses_the_members_of_this_list(
    opened: Opened, known: ControllerList
) -> None:
    """Seed 57 of ``tests.simulation.whole``: the member was removed and added, or all others were replaced, while it was down."""
    log = opened.log
    assert not _told(opened, known, pb.ControlResponse.UNAVAILABLE)
    assert log.core.controllers.voters == ("a", "b", "c")
    assert not _told(opened, known)
    assert log.core.controllers == known
    assert log.is_member
    assert {"d", "e"} <= {*log.peers}
    assert log.core.votes is ("a" in known.voters)
    assert not _told(opened, ControllerList(("a", "b", "c"), index=74)), "an older list says nothing"
    assert log.core.controllers == known
    assert _told(opened, ControllerList(("d", "e"), index=80))
    assert not log.is_member


def test_raft_member_log_with_an_uncommitted_list_learns_that_its_member_was_removed(opened: Opened) -> None:
    """A leader that was removed had appended one more change, which was lost with its leadership."""
    log = opened.log
    log.core.controllers = ControllerList(("a", "b", "c"), learner="d", leaving="a", index=32)
    removed = ControllerList(("b", "c", "e"), index=30)
    assert not _told(opened, removed, at=31), "the change at 32 may have been committed since"
    assert _told(opened, removed, at=40)
    assert not log.is_member
