"""Test each disk operation with a power cut after any system call, and that the check detects a missing flush.

Shows S1, S5, S7, S12, M2, M8.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.disk.files import DirectoryStorage, DiskFile, replace_file
from tests.unit.disk.primitives import PRIMITIVES, Primitive
from tests.unit.disk.recording import FOLDER, Recorder, cuts, put_down


def record(primitive: Primitive, folder: Path, ignored: frozenset[str] = frozenset()) -> Recorder:
    folder.mkdir()
    recorder = Recorder(folder, ignored)
    with recorder.recording():
        primitive.play(recorder, folder)
    return recorder


def broken(primitive: Primitive, recorder: Recorder, folder: Path) -> str:
    """The first cut after which a promise does not hold, '' if there is none."""
    for made, kind, left in cuts(recorder.calls):
        promised = [promise.what for promise in recorder.promises if promise.calls <= made]
        put_down(left, folder)
        try:
            primitive.holds(folder, promised)
        except Exception as error:
            last = recorder.calls[made - 1] if made else "nothing"
            return f"cut after call {made} ({last}), {kind}: {type(error).__name__}: {error}; promised {promised[-2:]}"
    return ""


@pytest.mark.parametrize("name", PRIMITIVES)
def test_disk_operation_interrupted_by_any_power_cut_leaves_the_old_or_the_new_data(name: str, tmp_path: Path) -> None:
    recorder = record(PRIMITIVES[name], tmp_path / "live")
    assert len(recorder.promises) > 1
    assert broken(PRIMITIVES[name], recorder, tmp_path / "left") == ""


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, p in PRIMITIVES.items() for kind in sorted(p.needs)])
def test_power_cut_check_fails_for_a_disk_operation_whose_flush_was_removed(name: str, kind: str, tmp_path: Path) -> None:
    recorder = record(PRIMITIVES[name], tmp_path / "live", frozenset({kind}))
    assert broken(PRIMITIVES[name], recorder, tmp_path / "left"), f"without any flush of a {kind} nothing is missed"


def kinds(recorder: Recorder) -> list[str]:
    return [str(call) for call in recorder.calls]


def test_replace_file_flushes_content_before_rename_and_directory_afterwards(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    with recorder.recording():
        replace_file(tmp_path / "small", b"one")
    assert kinds(recorder) == [
        "create small.tmp",
        "write small.tmp",
        "flush file small.tmp",
        "rename small.tmp -> small",
        "flush folder .",
    ]


def test_disk_file_truncate_of_a_sealed_file_flushes_a_copy_first(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "log", create=True)
    file.append([b"0123456789"])
    file.seal()
    recorder = Recorder(tmp_path)
    with recorder.recording():
        file.truncate(4)
    order = kinds(recorder)
    assert order.index("flush file log.tmp") < order.index("rename log.tmp -> log") < order.index("flush folder .")
    assert bytes(file.read(0, 10)) == b"0123"
    file.close()


def test_disk_file_truncate_and_rewrite_flush_the_file_last(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "log", create=True)
    file.append([b"0123456789"])
    for change in (lambda: file.truncate(8), lambda: file.rewrite(2), file.sync):
        recorder = Recorder(tmp_path)
        with recorder.recording():
            change()
        assert kinds(recorder)[-1] == "flush file log"
    file.close()


def test_folder_storage_sync_folder_flushes_created_renamed_and_removed_names(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    for change in (lambda: storage.create("a").close(), lambda: storage.rename("a", "b"), lambda: storage.remove("b")):
        recorder = Recorder(tmp_path)
        with recorder.recording():
            change()
            assert FOLDER not in "".join(kinds(recorder))
            storage.sync_folder()
        assert kinds(recorder)[-1] == "flush folder ."
