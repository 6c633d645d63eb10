"""Test how a node and its raft member read their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crc32c
import pytest

from liftpy.core.metadata.controller_list import CONTROLLERS, ControllerList
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import ConfigError, CorruptionError
from sidecar.disk.data_folder import LAZY_FLUSH, UNREPORTED_DAMAGE, DataDirectory, NodeIdentity
from sidecar.metadata.identity import NodeFile, PreviousProcess, unknown_folders
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
    """The member was removed and added, or all others were replaced, while it was down."""
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


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataDirectory]:
    held = DataDirectory(tmp_path)
    yield held
    held.close()


def stored(folder: DataDirectory) -> NodeIdentity:
    found = folder.load_identity()
    assert found is not None
    return found


def test_node_file_count_start_stores_the_start_before_it_returns(folder: DataDirectory) -> None:
    starts = NodeFile(folder, "a").count_start()
    assert stored(folder).starts == starts
    assert (starts.starts, starts.earlier, starts.registered) == (1, (), 0)
    assert starts.folder_id


def test_node_file_gives_each_process_a_nonce_and_stores_earlier_nonces(folder: DataDirectory) -> None:
    drawn = []
    for number in range(1, 6):
        identity = NodeFile(folder, "a")
        starts = identity.count_start()
        assert (starts.starts, list(starts.earlier)) == (number, drawn)
        drawn.append(starts.nonce)
        identity.begin(number)
        assert stored(folder).starts.registered == starts.nonce
    assert len(set(drawn)) == 5


def test_node_file_clean_stop_marker_is_removed_when_the_next_process_registers(folder: DataDirectory) -> None:
    """[S9]"""
    first = NodeFile(folder, "a")
    first.count_start()
    first.begin(1)
    first.end_cleanly()
    second = NodeFile(folder, "a")
    assert second.previous.clean_stop
    second.count_start()
    assert NodeFile(folder, "a").previous.clean_stop, "it may still die without having been registered"
    second.begin(2)
    assert not NodeFile(folder, "a").previous.clean_stop


@pytest.mark.parametrize("was_lazy", [False, True])
def test_node_file_reports_no_clean_stop_from_damage_until_the_registration(folder: DataDirectory, was_lazy: bool) -> None:
    first = NodeFile(folder, "a")
    first.count_start()
    first.begin(1)
    first.end_cleanly()
    if was_lazy:
        folder.set_mark(LAZY_FLUSH)
    folder.set_mark(UNREPORTED_DAMAGE)
    folder.set_mark(UNREPORTED_DAMAGE)
    second = NodeFile(folder, "a")
    assert second.previous == PreviousProcess(1, False, False)
    second.count_start()
    assert NodeFile(folder, "a").previous == second.previous, "the metadata group may not know of the damage"
    second.begin(2)
    assert NodeFile(folder, "a").previous == PreviousProcess(2, False, not was_lazy)


@pytest.mark.parametrize("names", [{"folder_id": "f", "starts": 4}, {"folder_id": "", "starts": 0}])
def test_node_file_of_an_older_version_is_read(folder: DataDirectory, names: dict[str, Any]) -> None:
    """Commit 6ef61ecd wrote all fields, some of them empty."""
    said = {"format": 1, "node_id": "a", "incarnation": 7, "clean_incarnation": 7, "nonce": 0, "registered": 0, "earlier": []}
    body = json.dumps(said | names).encode()
    (folder.path / "node").write_bytes(f"{crc32c.crc32c(body):08x}\n".encode() + body)
    identity = NodeFile(folder, "a")
    assert (identity.previous.incarnation, identity.previous.clean_stop) == (7, True)
    starts = identity.count_start()
    assert (starts.folder_id, starts.starts) == (names["folder_id"] or starts.folder_id, 1 + names["starts"])
    assert starts.folder_id
    assert starts.earlier == ()
    assert stored(folder).starts == starts


def test_unknown_folders_returns_stream_directories_missing_in_the_image(folder: DataDirectory) -> None:
    for name in ("orders-u1", "orders-u2", "gone-u3"):
        (folder.path / "streams" / name / "0").mkdir(parents=True)
    known: Any = SimpleNamespace(streams={"orders": SimpleNamespace(name="orders", uid="u2")})
    assert unknown_folders(folder, known) == ["gone-u3", "orders-u1"]
    assert unknown_folders(folder, ClusterImage()) == ["gone-u3", "orders-u1", "orders-u2"]


def test_node_file_of_another_node_is_rejected(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    identity = NodeFile(folder, "a")
    starts = identity.count_start()
    assert 0 < starts.nonce < 1 << 64
    assert len(starts.folder_id) == 16
    identity.begin(1)
    assert NodeFile(folder, "a")._stored.starts.folder_id == starts.folder_id
    with pytest.raises(ConfigError, match="belongs to node 'a', not to 'b'"):
        NodeFile(folder, "b")
    folder.close()


def test_node_file_of_a_process_that_flushed_all_logs_shows_no_lost_records_and_no_clean_stop(folder: DataDirectory) -> None:
    identity = NodeFile(folder, "a")
    identity.count_start()
    folder.set_mark(LAZY_FLUSH)
    identity.begin(3)
    identity.end_flushed()
    assert NodeFile(folder, "a").previous == PreviousProcess(3, False, True)
    folder.set_mark(LAZY_FLUSH)
    assert NodeFile(folder, "a").previous == PreviousProcess(3, False, False), "the next process is lazy again"


def test_node_file_marks_lazy_flush_until_a_clean_stop(tmp_path: Path) -> None:
    folder = DataDirectory(tmp_path)
    identity = NodeFile(folder, "a")
    assert identity.previous.flushed_always
    folder.set_mark(LAZY_FLUSH)
    folder.set_mark(LAZY_FLUSH)
    assert not NodeFile(folder, "a").previous.flushed_always
    identity.begin(3)
    identity.end_cleanly()
    previous = NodeFile(folder, "a").previous
    assert (previous.incarnation, previous.clean_stop, previous.flushed_always) == (3, True, True)
    folder.close()
