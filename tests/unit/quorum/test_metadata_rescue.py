"""Test the rescue of cluster metadata: the newest log, skipped ids and epochs, atomic writes and rejections."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from liftpy.config import DefaultQuota, SessionTimes
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.codec import encode_snapshot, image_from_bytes, image_to_bytes
from liftpy.core.metadata.controller.cluster_events import RecentEvents
from liftpy.core.metadata.controller.feature_levels import begin_at
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.image import RESCUE_LEAP, ClusterImage
from liftpy.core.metadata.records import check_partition
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import ConfigError, CorruptionError, DataDirectoryLockedError, InvariantError, LiftError
from sidecar.cli.controllers import force_recover as command
from sidecar.disk.data_folder import DataDirectory, NodeIdentity
from sidecar.disk.files import sync_folder
from sidecar.metadata.member_log import MemberDirectory, MemberLog
from sidecar.quorum import rescue as module
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import check_library
from sidecar.quorum.rescue import BEFORE, Survivor, lock_directories, newest, read_survivor, rescue, rescued_image
from sidecar.quorum.snapshot_file import SnapshotFile, decode_snapshot_file, encode_snapshot_file
from tests.born import TIMES, born_fsm, registration
from tests.unit.metadata.cluster_driver import Driver

TERM = 4
NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def history() -> list[bytes]:
    """Return entries from 1 on: the level, registrations, streams, an election and a fence."""
    driver = Driver()
    driver.fsm = ClusterFsm(elections=True)
    driver.ask(setFeatureLevel=begin_at(SUPPORTED_LEVELS.most, driver.fsm.rules, TIMES).setFeatureLevel)
    for node in NODES:
        driver.register(node)
    driver.create("orders", partitions=2, replicationFactor=3)
    driver.create("clicks", replicationFactor=2)
    driver.restart("n1")
    driver.create("late")
    return driver.log


def image_of(entries: list[bytes]) -> ClusterImage:
    fsm = ClusterFsm(elections=True)
    for number, entry in enumerate(entries, 1):
        fsm.apply(entry, number)
    return fsm.image


def controller(folder: Path, node_id: str, entries: list[bytes], *, last_term: int = TERM, snapshot_at: int = 0) -> Path:
    """Create the data directory of a stopped controller. The snapshot contains entries up to ``snapshot_at``."""
    data = DataDirectory(folder / node_id)
    data.store_identity(NodeIdentity(node_id, 7, 7))
    data.raft.mkdir()
    journal = GroupJournal(data.raft / "journal")
    if snapshot_at:
        last, previous = (b"\0" + entries[snapshot_at - 1], snapshot_at, TERM), (b"\1", snapshot_at - 1, TERM)
        held = encode_snapshot(image_of(entries[:snapshot_at]))
        (data.raft / "snapshot").write_bytes(encode_snapshot_file(SnapshotFile(last, previous, NODES, held)))
    for number, entry in enumerate(entries, 1):
        if number >= snapshot_at - 1:
            journal.add(b"\0" + entry, number, TERM if number < len(entries) else last_term)
    journal.setCurrentTerm(last_term, None)
    journal.close()
    (data.raft / "member").write_text(node_id)
    data.close()
    return data.path


def read(*folders: Path) -> list[Survivor]:
    with lock_directories(list(folders)) as held:
        return [read_survivor(folder) for folder in held]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "lock"}


# ---- the image ---------------------------------------------------------------------------------------------------------------
def test_metadata_rescue_never_reuses_ids_or_epochs_of_lost_entries(history: list[bytes]) -> None:
    """The lost group appended entries after the end of the remaining log [C1, C2]."""
    whole = image_of(history)
    for length in range(1, len(history)):
        before = image_of(history[:length])
        after = rescued_image(before, ("n3", "n1"), 5)
        lost = [p for stream in whole.streams.values() for p in stream.partitions]
        counters = after.counters
        assert counters.next_leader_epoch > max([p.leader_epoch for p in lost], default=0)
        assert counters.next_epoch > max([p.epoch for p in lost], default=0)
        assert counters.next_incarnation > max(node.incarnation for node in whole.nodes.values())
        assert counters.next_stream_uid >= whole.counters.next_stream_uid
        given = [p for stream in after.streams.values() for p in stream.partitions]
        assert len({p.leader_epoch for p in given}) == len({p.epoch for p in given}) == len(given)
        for partition in given:
            check_partition(partition)
            assert partition.status is PartitionStatus.OFFLINE
            assert RESCUE_LEAP < partition.leader_epoch < counters.next_leader_epoch
            assert RESCUE_LEAP < partition.epoch < counters.next_epoch
        assert after.index == before.index + RESCUE_LEAP
        assert after.controllers.voters == ("n1", "n3")
        assert after.controllers.index == after.index
        assert all(node.fenced for node in after.nodes.values())
        assert image_from_bytes(image_to_bytes(after)) == after, "the derived maps are those of a new image"


def test_metadata_rescue_keeps_the_isr_and_ends_copies_in_progress(history: list[bytes]) -> None:
    before = image_of(history)
    after = rescued_image(before, ("n1",), 5)
    for name, stream in before.streams.items():
        now = after.streams[name]
        assert (now.uid, now.config) == (stream.uid, stream.config)
        assert [p.isr for p in now.partitions] == [p.isr for p in stream.partitions]
    assert not any(p.joining for stream in after.streams.values() for p in stream.partitions)


def test_metadata_rescue_keeps_the_default_quota_and_session_times_of_the_image(history: list[bytes]) -> None:
    quota, times = DefaultQuota(records_per_s=7, bytes_per_s=1 << 20), SessionTimes(session_ms=9000, lease_ms=4000, change=3)
    before = dataclasses.replace(image_of(history), default_quota=quota, session_times=times)
    after = rescued_image(before, ("n1",), 5)
    assert (after.default_quota, after.session_times) == (quota, times)
    changed = {"index", "time_ns", "nodes", "streams", "counters", "controllers", "reports"}
    derived = {"hosted", "replica_counts", "leader_counts", "answering", "waiting", "trail"}
    for field in dataclasses.fields(before):  # a field that is new is kept, or named here
        if field.name not in changed | derived:
            assert getattr(after, field.name) == getattr(before, field.name), field.name
    assert image_from_bytes(image_to_bytes(after)) == after


def test_metadata_rescue_allows_the_election_of_a_returning_node(history: list[bytes]) -> None:
    fsm = born_fsm(elections=True)
    fsm.image = rescued_image(image_of(history), ("n1",), 5)
    known = fsm.image.nodes["n2"]
    register = registration(nodeId="n2", previousIncarnation=known.incarnation, cleanStop=True)
    request = pb.ControlRequest(registerNode=register, operationId=bytes(16), timeNs=9)
    answer = pb.ControlResponse.FromString(fsm.apply(request.SerializeToString(), fsm.image.index + 1))
    assert answer.node.incarnation >= RESCUE_LEAP
    chosen = [p for p in fsm.image.streams["orders"].partitions if p.candidate == "n2" or p.leader == "n2"]
    assert chosen
    assert all(p.leader_epoch > RESCUE_LEAP for p in chosen)


# ---- which log ---------------------------------------------------------------------------------------------------------------
def test_metadata_rescue_uses_the_newest_log_of_several_controllers(history: list[bytes], tmp_path: Path) -> None:
    """The term is compared first. A longer log of an older term may contain uncommitted entries."""
    short = controller(tmp_path, "n1", history[:5])
    long = controller(tmp_path, "n2", history)
    later = controller(tmp_path, "n3", history[:6], last_term=TERM + 1)
    one, two, three = read(short, long, later)
    assert [(s.node_id, s.term, s.index) for s in (one, two, three)] == [
        ("n1", TERM, 5),
        ("n2", TERM, len(history)),
        ("n3", TERM + 1, 6),
    ]
    assert newest([one, two]) is two
    assert newest([one, two, three]) is three
    assert one.parts_from(two) == 0
    assert two.parts_from(three) == 6, "they hold different entries there"
    assert two.digest != one.digest
    assert two.image == image_of(history)


@pytest.mark.parametrize("at", [2, 5, 7])
def test_metadata_rescue_from_a_snapshot_and_journal_equals_the_rescue_from_a_whole_journal(
    history: list[bytes], tmp_path: Path, at: int
) -> None:
    (found,) = read(controller(tmp_path, "n1", history, snapshot_at=at))
    (plain,) = read(controller(tmp_path, "n2", history))
    assert (found.index, found.term, found.digest) == (plain.index, plain.term, plain.digest)


def test_metadata_rescue_check_changes_no_file(history: list[bytes], tmp_path: Path) -> None:
    folder = controller(tmp_path, "n1", history, snapshot_at=4)
    before = tree(folder)
    read(folder)
    assert tree(folder) == before


def test_metadata_rescue_of_two_different_logs_with_the_same_last_index_is_rejected(
    history: list[bytes], tmp_path: Path
) -> None:
    other = [*history[:-1], history[0]]
    one, two = read(controller(tmp_path, "n1", history), controller(tmp_path, "n2", other))
    with pytest.raises(InvariantError, match="different images"):
        newest([one, two])


def test_metadata_rescue_skips_a_damaged_journal_and_reports_its_path(history: list[bytes], tmp_path: Path) -> None:
    folder = controller(tmp_path, "n1", history)
    journal = GroupJournal(folder / "raft" / "journal")
    journal.add(b"\0more", len(history) + 1, TERM)
    journal.close()
    data = bytearray((folder / "raft" / "journal").read_bytes())
    data[60] ^= 1
    (folder / "raft" / "journal").write_bytes(data)
    with pytest.raises(CorruptionError, match="damaged"):
        read(folder)


def test_metadata_rescue_of_a_directory_without_a_usable_log_is_rejected(history: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the data directory of a node"):
        read(tmp_path / "nothing")
    ordinary = DataDirectory(tmp_path / "n9")
    ordinary.store_identity(NodeIdentity("n9"))
    with pytest.raises(DataDirectoryLockedError):
        read(tmp_path / "n9")
    ordinary.close()
    with pytest.raises(ConfigError, match="no journal"):
        read(tmp_path / "n9")
    lost = controller(tmp_path, "n1", history, snapshot_at=5)
    (lost / "raft" / "snapshot").unlink()
    with pytest.raises(CorruptionError, match="a snapshot is missing"):
        read(lost)


# ---- what is written ---------------------------------------------------------------------------------------------------------
def rescued(folders: list[Path], voters: tuple[str, ...], out: Path | None = None) -> dict[str, Path]:
    with lock_directories(folders) as held:
        survivors = [read_survivor(f) for f in held if (f.raft / "journal").is_file()]
        return rescue(newest(survivors), held, voters, out, 77)


def test_metadata_rescue_writes_one_directory_per_controller_with_an_event_about_the_loss(
    history: list[bytes], tmp_path: Path
) -> None:
    check_library()
    old, gone = controller(tmp_path, "n1", history), controller(tmp_path, "n2", history[:5])
    before = tree(gone)
    written = rescued([old, gone], ("n1", "n3"), tmp_path / "out")
    assert written == {"n1": old / "raft", "n3": tmp_path / "out" / "n3" / "raft"}
    for node, folder in written.items():
        trail = RecentEvents()
        log = MemberLog(MemberDirectory(node, ("n1", "n2"), folder), born_fsm(), FeedProducer(), lambda *_: None, events=trail)
        assert log.core.controllers.voters == ("n1", "n3")
        assert log.core.raftCurrentTerm == TERM + RESCUE_LEAP
        assert not log.core.on_probation, "it has a vote"
        log._load(str(folder / "snapshot"))
        assert [entry[1] for entry in log.journal] == [log.image.index - 1, log.image.index]
        assert log.image.index == len(history) + RESCUE_LEAP
        assert sorted(log.image.streams) == sorted(image_of(history).streams)
        (event,) = trail.events_after((0, 0), 0, 9)
        assert (event.kind, event.time_ns, event.index) == ("data_loss", 77, log.image.index)
        assert f"behind entry {len(history)} of term {TERM}" in event.detail
        log.journal.abandon()
    assert not (gone / "raft").exists(), "who is none any more comes back as an ordinary node"
    assert {f"raft/{name.partition('/')[2]}" if "/" in name else name for name in tree(gone)} == set(before)
    assert (old / BEFORE / "journal").is_file()
    with pytest.raises(ConfigError, match="earlier rescue"):
        rescued([old], ("n1",))


def test_metadata_rescue_over_the_files_of_an_earlier_one_changes_nothing(history: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "out" / "n3" / "raft").mkdir(parents=True)
    old = controller(tmp_path, "n1", history)
    (tmp_path / "out" / "n3" / "raft" / "journal").write_bytes(b"of a rescue that chose another log")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="n3/raft exists from an earlier rescue"):
        rescued([old], ("n1", "n3"), tmp_path / "out")
    assert tree(tmp_path) == before


def test_metadata_rescue_event_about_the_loss_is_read_from_a_later_snapshot(history: list[bytes], tmp_path: Path) -> None:
    folder = rescued([controller(tmp_path, "n1", history)], ("n1",))["n1"]
    later = decode_snapshot_file((folder / "snapshot").read_bytes())
    fsm = born_fsm()
    fsm.restore(later.image)
    request = pb.ControlRequest(registerNode=registration(nodeId="n5"), operationId=bytes(16), timeNs=9)
    fsm.apply(request.SerializeToString(), fsm.image.index + 1)
    last, previous = (b"\1", fsm.image.index, later.last[2]), later.last
    moved = SnapshotFile(last, previous, later.nodes, fsm.snapshot(), later.controllers)
    (folder / "snapshot").write_bytes(encode_snapshot_file(moved))
    trail = RecentEvents()
    log = MemberLog(MemberDirectory("n1", ("n1",), folder), born_fsm(), FeedProducer(), lambda *_: None, events=trail)
    log._load(str(folder / "snapshot"))
    assert log.image.index == fsm.image.index
    assert trail.events_after((0, 0), 0, 9) == []
    log.journal.abandon()


def test_metadata_rescue_killed_at_any_rename_leaves_the_old_or_the_new_log(
    history: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed rescue is then repeated."""
    source = controller(tmp_path / "source", "n1", history)
    for dies_at in range(2):
        folder = tmp_path / f"try{dies_at}" / "n1"
        shutil.copytree(source, folder)
        calls = 0
        rename = Path.rename

        def dying(self: Path, target: Any, rename: Callable[..., Path] = rename, dies_at: int = dies_at) -> Path:
            nonlocal calls
            if self.name.startswith("raft"):
                calls += 1
                if calls > dies_at:
                    raise KeyboardInterrupt
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", dying)
        with pytest.raises(KeyboardInterrupt):
            rescued([folder], ("n1",))
        monkeypatch.undo()
        if dies_at:
            with pytest.raises(ConfigError, match="a rescue has put one aside"):
                read(folder)
            (folder / BEFORE).rename(folder / "raft")
        assert read(folder)[0].index == len(history)
        assert rescued([folder], ("n1",)) == {"n1": folder / "raft"}


def test_metadata_rescue_command_without_the_cluster_name_is_rejected(history: list[bytes], tmp_path: Path) -> None:
    one, two = controller(tmp_path, "n1", history), controller(tmp_path, "n2", history[:3])
    before = tree(tmp_path)

    def run(*words: str, typed: str = "") -> Any:
        given = ["--data", str(one), "--data", str(two), *words]
        return CliRunner().invoke(command, given, input=typed, standalone_mode=False)

    looked = run("--json")
    rows = json.loads(looked.output)["survivors"]
    assert [(row["node"], row["index"], row["taken"]) for row in rows] == [("n1", len(history), True), ("n2", 3, False)]
    assert "is a prefix of that log" in run().output
    for words, typed in (
        (("--new-controllers", "n1"), "other\n"),
        (("--new-controllers", "n1", "--confirm", "other"), ""),
        (("--new-controllers", "n1,n3", "--confirm", "liftpy"), ""),
    ):
        refused = run(*words, typed=typed)
        assert isinstance(refused.exception, LiftError), refused
    assert tree(tmp_path) == before, "nothing was changed"
    done = run("--new-controllers", "n1,n3", "--output", str(tmp_path / "out"), typed="liftpy\n")
    assert done.exception is None
    assert "copy it into the data directory of n3" in done.output
    assert (tmp_path / "out" / "n3" / "raft" / "journal").is_file()


def test_metadata_rescue_replaces_logs_only_after_all_new_logs_are_flushed(
    history: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [controller(tmp_path, node, history) for node in NODES]
    before = tree(tmp_path)
    write = module._write
    done: list[str] = []

    def writes(folder: Path, node_id: str, *more: Any) -> None:
        if node_id == "n2":
            raise OSError(28, "no space")
        write(folder, node_id, *more)

    monkeypatch.setattr(module, "_write", writes)
    with pytest.raises(OSError, match="no space"):
        rescued(folders, ("n1", "n2"))
    assert {name: data for name, data in tree(tmp_path).items() if "/raft-rescued/" not in name} == before
    monkeypatch.undo()

    def folder(path: Path) -> None:
        done.append(path.name)
        sync_folder(path)

    monkeypatch.setattr(module, "sync_folder", folder)
    rescued(folders, ("n1", "n2"))
    assert done[-5:] == ["n1", "n1", "n2", "n2", "n3"], "aside, in its place; and whose log is not wanted any more"


def test_metadata_rescue_in_progress_prevents_a_node_start_in_the_data_directory(history: list[bytes], tmp_path: Path) -> None:
    path = controller(tmp_path, "n1", history)
    with lock_directories([path]), pytest.raises(DataDirectoryLockedError):
        DataDirectory(path)
    DataDirectory(path).close()


def test_metadata_rescue_with_more_controllers_than_allowed_changes_nothing(history: list[bytes], tmp_path: Path) -> None:
    old = controller(tmp_path, "n1", history)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="8 new controllers are too many, the maximum is 7"):
        rescued([old], tuple(f"n{number}" for number in range(1, 9)), tmp_path / "out")
    assert tree(tmp_path) == before


def test_metadata_rescue_with_a_controller_that_the_cluster_does_not_know_changes_nothing(
    history: list[bytes], tmp_path: Path
) -> None:
    """A group with a misspelled controller would have no majority."""
    old = controller(tmp_path, "n1", history)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=r"has no node n33, x .*Its nodes are n1, n2, n3"):
        rescued([old], ("n1", "n33", "x"), tmp_path / "out")
    assert tree(tmp_path) == before


def test_metadata_rescue_uses_the_data_directory_of_a_node_that_the_old_log_does_not_know(
    history: list[bytes], tmp_path: Path
) -> None:
    old, newer = controller(tmp_path, "n1", history), DataDirectory(tmp_path / "n9")
    newer.store_identity(NodeIdentity("n9", 7, 7))
    newer.close()
    written = rescued([old, newer.path], ("n1", "n9"))
    assert written == {"n1": old / "raft", "n9": newer.path / "raft"}
