"""Test the journal of promised leader epochs: a stored epoch survives a crash and a power cut at any call."""

from __future__ import annotations

import pytest

from liftpy.core.log.epoch_promises import PROMISES_NAME, PromiseJournal, decode_promises, encode_promises
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import NoSpaceError, StorageError, UnknownFormatError

KEYS = [f"orders-u1/{number}" for number in range(5)]


def held(storage: MemoryStorage) -> dict[str, int]:
    journal = PromiseJournal(storage)
    return {key: journal.epoch_of(key) for key in KEYS if journal.epoch_of(key)}


def test_leader_epoch_journal_returns_the_highest_stored_epoch_after_reopen() -> None:
    storage = MemoryStorage()
    journal = PromiseJournal(storage)
    journal.store({KEYS[0]: 3, KEYS[1]: 7})
    journal.store({KEYS[0]: 5})
    journal.store({KEYS[0]: 4})
    for power in (False, True):
        assert held(storage.crash(power=power)) == {KEYS[0]: 5, KEYS[1]: 7}


def test_leader_epoch_journal_stores_epochs_of_many_partitions_with_one_flush() -> None:
    storage = MemoryStorage()
    journal = PromiseJournal(storage)
    calls: list[str] = []
    storage.fault = calls.append
    journal.store(dict.fromkeys(KEYS, 9))
    assert calls == ["append", "sync"]


@pytest.mark.parametrize("bound", [64 * 1024, 100])
def test_leader_epoch_journal_after_a_crash_at_any_call_returns_the_stored_epochs(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftpy.core.log.epoch_promises._LEAST_BYTES", bound)
    monkeypatch.setattr("liftpy.core.log.epoch_promises._GROWTH", 1)
    for calls in range(60):
        storage = MemoryStorage()
        storage.fail_after(calls)
        done: dict[str, int] = {}
        asked: dict[str, int] = {}
        try:
            journal = PromiseJournal(storage)
            for number in range(12):
                asked = {KEYS[number % 5]: number + 1, KEYS[(number + 1) % 5]: number + 1}
                journal.store(asked)
                done |= asked
        except StorageError:
            pass
        for power in (False, True):
            for kept in (None, lambda name, synced, written: (synced + written) // 2, lambda name, synced, written: written):
                after = held(storage.crash(power=power, keep=kept))
                assert after.items() >= done.items() or after == done | asked, (calls, power, after, done)


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_leader_epoch_journal_opened_after_damage_ignores_the_damaged_entry_and_stores_new_ones(damage: str) -> None:
    storage = MemoryStorage()
    journal = PromiseJournal(storage)
    journal.store({KEYS[0]: 3})
    good = storage.files[PROMISES_NAME].size_bytes
    journal.store({KEYS[1]: 4})
    whole = bytes(storage.files[PROMISES_NAME].data)
    for position in range(good, len(whole)):
        data = bytearray(whole[:position] if damage == "cut" else whole)
        if damage == "flip":
            data[position] ^= 0x10
        after = MemoryStorage()
        after.replace(PROMISES_NAME, bytes(data))
        again = PromiseJournal(after)
        assert (again.epoch_of(KEYS[0]), again.epoch_of(KEYS[1])) == (3, 0)
        again.store({KEYS[2]: 8})
        assert held(after.crash()) == {KEYS[0]: 3, KEYS[2]: 8}


def test_leader_epoch_journal_decoder_of_any_bytes_raises_no_error() -> None:
    for data in (None, b"", b"LFPJ", b"LFPJ\x01\0\0\0", b"no journal at all", b"LFPJ\x01\0\0\0" + b"\xff" * 40):
        assert decode_promises(data) == {}


def test_leader_epoch_journal_of_another_version_is_rejected() -> None:
    storage = MemoryStorage()
    storage.replace(PROMISES_NAME, b"LFPJ\x02\0\0\0" + encode_promises({KEYS[0]: 1}))
    with pytest.raises(UnknownFormatError):
        PromiseJournal(storage)


def test_leader_epoch_journal_after_a_flush_failure_raises_until_reopened() -> None:
    storage = MemoryStorage()
    journal = PromiseJournal(storage)
    journal.store({KEYS[0]: 3})

    def fails(what: str) -> None:
        if what == "sync":
            raise StorageError("simulated")

    storage.fault = fails
    with pytest.raises(StorageError):
        journal.store({KEYS[1]: 4})
    storage.fault = None
    with pytest.raises(StorageError):
        journal.store({KEYS[1]: 5})
    assert journal.epoch_of(KEYS[1]) == 0
    after = storage.crash(power=False)
    again = PromiseJournal(after)
    again.store({KEYS[1]: 6})
    assert held(after.crash(power=True)) == {KEYS[0]: 3, KEYS[1]: 6}, "the pages that count as clean are not the file any more"


def test_leader_epoch_journal_on_a_full_disk_raises_no_space_until_space_is_free() -> None:
    storage = MemoryStorage()
    journal = PromiseJournal(storage)
    journal.store({KEYS[0]: 3})
    storage.capacity_bytes = storage.used_bytes()
    with pytest.raises(NoSpaceError):
        journal.store({KEYS[1]: 4})
    full = storage.crash(power=False)
    full.capacity_bytes = 0
    again = PromiseJournal(full)
    assert again.epoch_of(KEYS[0]) == 3
    with pytest.raises(NoSpaceError):
        again.store({KEYS[1]: 4})
    full.capacity_bytes = 1 << 20
    again.store({KEYS[1]: 4})
    assert held(full.crash()) == {KEYS[0]: 3, KEYS[1]: 4}


def test_leader_epoch_journal_after_a_flush_without_space_keeps_later_epochs_over_a_power_loss() -> None:
    storage = MemoryStorage()
    journal = PromiseJournal(storage)
    journal.store({KEYS[0]: 3})

    def has_no_space(what: str) -> None:
        if what == "sync":
            raise NoSpaceError("simulated")

    storage.fault = has_no_space
    with pytest.raises(NoSpaceError):
        journal.store({KEYS[1]: 4})
    storage.fault = None
    journal.store({KEYS[2]: 5})
    assert held(storage.crash()) == {KEYS[0]: 3, KEYS[2]: 5}


def test_leader_epoch_journal_at_its_size_limit_is_rewritten_without_deleted_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liftpy.core.log.epoch_promises._LEAST_BYTES", 1000)
    storage = MemoryStorage()
    journal = PromiseJournal(storage)
    for epoch in range(1, 2000):
        journal.store({KEYS[epoch % 5]: epoch})
        assert storage.used_bytes() <= 1000
    journal.forget(KEYS[0])
    assert journal.epoch_of(KEYS[0]) == 0
    again = PromiseJournal(storage, lambda key: key in KEYS[:2])
    assert [again.epoch_of(key) for key in KEYS[1:]] == [1996, 0, 0, 0]


def test_leader_epoch_journal_bytes_on_disk_are_those_of_earlier_versions() -> None:
    storage = MemoryStorage()
    journal = PromiseJournal(storage)
    journal.store({"orders-u1/0": 7, "orders-u1/1": 1 << 40})
    journal.store({"orders-u1/0": 9})
    expected = (
        "4c46504a01000000c74b674800000000"
        "9827d7f42a00000007000000000000000b006f72646572732d75312f3000000000000100000b006f72646572732d75312f31"
        "b73f5a201500000009000000000000000b006f72646572732d75312f30"
    )
    assert bytes(storage.files[PROMISES_NAME].data).hex() == expected
    earlier = MemoryStorage()
    earlier.replace(PROMISES_NAME, bytes.fromhex(expected))
    assert held(earlier) == {KEYS[0]: 9, KEYS[1]: 1 << 40}
