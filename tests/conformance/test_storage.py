"""Test each Storage implementation with the same cases, in memory and on files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage, Storage
from liftpy.errors import StorageError
from sidecar.disk.files import DirectoryStorage
from tests.unit.log.log_model import batch, content, fill

CONFIG = StreamConfig(segment_bytes=4096)
Make = Callable[[], Storage]


@pytest.fixture(params=["memory", "files"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else DirectoryStorage(tmp_path / "stream-1" / "0")


def test_storage_file_returns_the_appended_bytes(storage: Storage) -> None:
    file = storage.create("a.log")
    file.append([b"abc", memoryview(b"defg")])
    file.sync()
    assert (file.size_bytes, bytes(file.read(2, 3)), bytes(file.read(5, 100)), bytes(file.read(9, 1))) == (
        7,
        b"cde",
        b"fg",
        b"",
    )
    assert storage.open("a.log").size_bytes == 7


def test_storage_views_have_the_same_bytes_after_truncation_and_appends(storage: Storage) -> None:
    file = storage.create("a.log")
    file.append([b"abcdef"])
    file.sync()
    file.seal()
    view = file.read(0, 6)
    file.truncate(2)
    file.append([b"XYZ"])
    assert (bytes(view), bytes(file.read(0, 10))) == (b"abcdef", b"abXYZ")
    assert bytes(storage.open("a.log").read(0, 10)) == b"abXYZ"
    file.close()
    assert bytes(view) == b"abcdef"


def test_storage_file_has_the_same_bytes_after_a_rewrite(storage: Storage) -> None:
    file = storage.create("a.log")
    file.append([b"abcdef"])
    file.rewrite(2)
    file.append([b"gh"])
    file.rewrite(0)
    assert bytes(file.read(0, 10)) == bytes(storage.open("a.log").read(0, 10)) == b"abcdefgh"


def test_storage_log_open_after_a_kill_splits_the_segment_at_the_durable_end(storage: Storage) -> None:
    log, _ = Log.open(storage, CONFIG)
    fill(log, 3)
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    log.checkpoint()
    fill(log, 4)
    expected = content(log)
    log.close(clean=False)
    log, report = Log.open(storage, CONFIG)
    assert [segment.base_offset for segment in log.segments] == [0, 9]
    assert (content(log), report.rewritten_bytes > 0) == (expected, True)
    fill(log, 1)
    log.close(clean=False)
    assert Log.open(storage, CONFIG)[0].log_end_offset == 24
    assert not [name for name in storage.names() if name.endswith((".tmp", ".tail"))]


def test_storage_replaces_small_files_atomically(storage: Storage) -> None:
    assert storage.load("x") is None
    storage.replace("x", b"1")
    storage.replace("x", b"22")
    assert (storage.load("x"), storage.names()) == (b"22", ["x"])


def test_storage_renames_and_removes_files(storage: Storage) -> None:
    storage.create("a").append([b"1"])
    storage.create("b")
    storage.rename("a", "b")
    storage.remove("c")
    storage.sync_folder()
    assert (storage.names(), storage.load("b")) == (["b"], b"1")
    storage.remove("b")
    assert storage.names() == []


def test_storage_open_of_a_missing_file_raises_storage_error(storage: Storage) -> None:
    with pytest.raises(StorageError):
        storage.open("missing")


def test_storage_log_has_the_same_records_after_operations_and_reopening(storage: Storage) -> None:
    log, _ = Log.open(storage, CONFIG)
    fill(log, 60, size=120)
    log.flush()
    log.raise_high_watermark(100)
    expected = content(log)
    log.close()
    log, report = Log.open(storage, CONFIG)
    assert not report.must_leave_isr
    assert content(log) == expected
    assert log.high_watermark == 100
    assert log.truncate_to(111) == 111
    assert log.truncate_to(105) == 105
    log.append(batch(105, epoch=2))
    log.flush()
    log.drop_prefix(50)
    assert content(log) == [(o, v) for o, v in expected if log.log_start_offset <= o < 105] + [(105, b"2:105" + b"." * 10)]
    log.close()
    log, _ = Log.open(storage, CONFIG)
    assert log.epochs.entries == ((1, 48), (2, 105))
    log.reset(1000)
    assert content(log) == []
    log.close()
    assert Log.open(storage, CONFIG)[0].log_end_offset == 1000
