"""Test the `node` file over several starts of a node: the file is durable before the group hears of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crc32c
import pytest

from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import ConfigError
from sidecar.disk.data_folder import LAZY_FLUSH, UNREPORTED_DAMAGE, DataDirectory, NodeIdentity
from sidecar.metadata.identity import NodeFile, PreviousProcess, unknown_folders


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
