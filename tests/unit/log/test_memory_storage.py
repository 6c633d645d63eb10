"""Test the storage of the simulators: what it counts and rejects, and what remains after a kill or a power cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liftpy.core.log.storage import MemoryFile, MemoryStorage
from liftpy.errors import NoSpaceError, StorageError
from tests.each import each


def with_a_file(written: bytes = b"abcdef", synced: int | None = None) -> tuple[MemoryStorage, MemoryFile]:
    """``a``, whose name is durable, with so many bytes of it synced."""
    storage = MemoryStorage()
    file = storage.create("a")
    storage.sync_folder()
    file.append([written[:synced]])
    file.sync()
    file.append([written[len(written) if synced is None else synced :]])
    return storage, file


CHANGES: dict[str, Callable[[MemoryStorage, MemoryFile], object]] = {
    "append": lambda storage, file: file.append([b"x"]),
    "sync": lambda storage, file: file.sync(),
    "truncate": lambda storage, file: file.truncate(1),
    "rewrite": lambda storage, file: file.rewrite(0),
    "create": lambda storage, file: storage.create("b"),
    "replace": lambda storage, file: storage.replace("a", b"y"),
    "rename": lambda storage, file: storage.rename("a", "c"),
    "remove": lambda storage, file: storage.remove("a"),
    "sync_folder": lambda storage, file: storage.sync_folder(),
}


@each("what", CHANGES)
def test_memory_storage_call_with_an_injected_failure_raises_and_changes_nothing(what: str) -> None:
    storage, file = with_a_file()
    before, calls = storage.calls, []
    storage.fault = calls.append
    CHANGES[what](storage, file)
    assert (calls, storage.calls - before) == ([what], 1)

    storage, file = with_a_file()
    storage.fail_after(0)
    with pytest.raises(StorageError, match=rf"\(fail_after\): {what}"):
        CHANGES[what](storage, file)
    assert {name: bytes(held.data) for name, held in storage.files.items()} == {"a": b"abcdef"}


def test_memory_storage_append_above_its_capacity_raises_no_space() -> None:
    storage = MemoryStorage(capacity_bytes=10)
    storage.replace("small", b"1234")
    file = storage.create("a")
    file.append([b"567", b"890"])
    assert storage.used_bytes() == 10
    for more in (lambda: file.append([b"x"]), lambda: storage.replace("other", b"x")):
        with pytest.raises(NoSpaceError, match="The memory storage is full"):
            more()
    assert (bytes(file.data), storage.names()) == (b"567890", ["a", "small"])
    storage.remove("small")
    storage.replace("other", b"4444")
    assert (storage.used_bytes(), storage.crash().capacity_bytes) == (10, 10)


def test_memory_storage_after_a_power_cut_has_only_the_synced_data() -> None:
    storage, file = with_a_file(synced=4)
    assert bytes(storage.crash(power=False).files["a"].data) == b"abcdef"
    assert bytes(storage.crash().files["a"].data) == b"abcd"
    asked: list[tuple[str, int, int]] = []
    kept = storage.crash(keep=lambda name, synced, written: asked.append((name, synced, written)) or 5)
    assert (asked, bytes(kept.files["a"].data)) == ([("a", 4, 6)], b"abcde")
    assert storage.crash(keep=lambda name, synced, written: 99).files["a"].size_bytes == 6
    assert bytes(file.data) == b"abcdef", "the one that is gone is not touched"


def test_memory_storage_data_that_survived_a_power_cut_survives_the_next_one() -> None:
    storage, _ = with_a_file(synced=4)
    assert storage.crash(keep=lambda name, synced, written: 6).crash().files["a"].size_bytes == 6
    killed = storage.crash(power=False)
    assert (killed.files["a"].synced, killed.crash().files["a"].size_bytes) == (4, 4)
    killed.files["a"].sync()
    assert killed.crash().files["a"].size_bytes == 6


def test_memory_storage_file_names_are_durable_only_after_a_directory_sync() -> None:
    storage, _ = with_a_file()
    storage.rename("a", "b")
    storage.create("c")
    assert (storage.crash(power=False).names(), storage.crash().names()) == (["b", "c"], ["a"])
    assert storage.crash(power=False).crash().names() == ["a"], "a kill makes no name durable"
    storage.sync_folder()
    assert storage.crash().names() == ["b", "c"]
    storage.remove("c")
    assert storage.crash().names() == ["b", "c"]
    storage.replace("d", b"1")
    assert storage.crash().names() == ["b", "c", "d"], "atomic and durable, and of no other name"


def a_failed_sync(file: MemoryFile, storage: MemoryStorage) -> None:
    def fault(what: str) -> None:
        if what == "sync":
            raise StorageError("broken")

    storage.fault = fault
    with pytest.raises(StorageError):
        file.sync()
    storage.fault = None


def test_memory_storage_data_of_a_failed_sync_is_never_durable() -> None:
    storage, file = with_a_file(synced=4)
    a_failed_sync(file, storage)
    file.append([b"gh"])
    a_failed_sync(file, storage)
    file.sync()
    assert file.synced == 4, "it says yes, and has written nothing"
    assert bytes(storage.crash().files["a"].data) == b"abcd"
    assert storage.crash(keep=lambda name, synced, written: 8).files["a"].size_bytes == 4
    killed = storage.crash(power=False)
    assert bytes(killed.files["a"].data) == b"abcdefgh", "the page cache has it"
    killed.files["a"].sync()
    assert killed.crash().files["a"].size_bytes == 4, "and goes on to think that it is clean"


@pytest.mark.parametrize(("cut", "synced"), [(5, 4), (4, 6), (3, 5)])
def test_memory_storage_data_truncated_and_rewritten_after_a_failed_sync_can_be_synced(cut: int, synced: int) -> None:
    storage, file = with_a_file(synced=4)
    a_failed_sync(file, storage)
    file.truncate(cut)
    assert file.synced == min(cut, 4)
    file.append([b"xy"])
    file.sync()
    assert file.synced == synced
