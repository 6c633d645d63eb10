"""Test the reports and the contents after opening, listing and reading a log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log import recovery, small_files
from liftpy.core.log.inspect import inspect
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import Damage, OpenReport, recover
from liftpy.core.log.scrub import Scan, freshly_sealed
from liftpy.core.log.segment import index_name, log_name
from liftpy.core.log.small_files import CHECKPOINT_NAME, EPOCHS_NAME, Checkpoint, encode_checkpoint
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import SIGNATURE
from liftpy.errors import CorruptionError
from tests.batches import build_batch
from tests.unit.log.log_model import SMALL, batch, content
from tests.unit.log.small_logs import a_log, add, filled

CRC = "its CRC-32C does not match"


def right(base: int, storage: MemoryStorage) -> int:
    """Size of the file."""
    return storage.files[log_name(base)].size_bytes


def flip(storage: MemoryStorage, name: str, position: int) -> None:
    storage.files[name].data[position] ^= 1


def closed(**how: int) -> MemoryStorage:
    """Nine batches of two records in three segments, committed, closed."""
    storage = MemoryStorage()
    filled(storage=storage, **how).close()
    return storage


# ---- opening -------------------------------------------------------------------------------------------------------------
def test_log_open_of_an_intact_directory_writes_no_file() -> None:
    storage = closed()
    log, report = Log.open(storage, SMALL, clean=True)
    assert report == OpenReport(walked_bytes=right(12, storage))
    assert [(s.base_offset, s.next_offset, s.sealed, s.awaits_scrub) for s in log.segments] == [
        (0, 6, True, False), (6, 12, True, False), (12, 18, False, False),
    ]  # fmt: skip
    assert freshly_sealed(log) is None, "what another process has sealed is read back in its turn"
    log.roll()
    log.flush()
    assert freshly_sealed(log) is log.segments[2]


@pytest.mark.parametrize("piece", [7, 100, 8 << 20])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_log_open_leaves_valid_batches_of_a_damaged_segment_unchanged(
    damaged: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_COPY_BYTES", piece)
    storage = closed()
    whole = bytes(storage.files[log_name(6)].data)
    before = content(Log.open(storage, SMALL, clean=True)[0])
    size = len(whole) // 3
    flip(storage, log_name(6), damaged * size + 70)
    spoilt = bytes(storage.files[log_name(6)].data)
    storage.remove(index_name(6))
    log, report = Log.open(storage, SMALL, clean=True)
    end = 6 + 2 * damaged
    (damage,) = report.damage
    assert damage == Damage(log_name(6), end, damaged * size, damage.fault, is_confined=True)
    assert CRC in damage.fault
    assert report == OpenReport(
        walked_bytes=len(whole),
        rebuilt_indexes=1,
        damage=(damage,),
        quarantined_files=(f"{log_name(6)}.damaged-0", f"{log_name(12)}.behind-0"),
        lost_committed=True,
    )
    assert report.must_leave_isr
    assert (log.log_end_offset, content(log)) == (end, before[:end])
    assert bytes(storage.files[log_name(6)].data if damaged else b"") == whole[: damaged * size]
    assert bytes(storage.files[f"{log_name(6)}.damaged-0"].data) == spoilt
    assert not [name for name in storage.names() if name.endswith(".tmp")]
    log.close()
    assert content(Log.open(storage.crash(), SMALL)[0]) == before[:end], "it is on the disk"


@pytest.mark.parametrize(
    ("log_start", "kept"), [(5, [0, 6, 12]), (6, [6, 12]), (7, [6, 12]), (12, [12]), (17, [12]), (18, [12])]
)
def test_log_open_deletes_segments_before_the_log_start(log_start: int, kept: list[int]) -> None:
    storage = closed()
    storage.replace(CHECKPOINT_NAME, encode_checkpoint(Checkpoint(high_watermark=17, log_start_offset=log_start)))
    found = recover(storage, clean=True)
    assert [segment.base_offset for segment in found.segments] == kept
    assert [name for name in storage.names() if name.endswith(".log")] == [log_name(base) for base in kept]
    assert (found.report.damage, found.report.lost_committed) == ((), False)


def test_log_open_of_a_log_that_ends_before_its_log_start_is_empty_at_the_log_start() -> None:
    storage = closed()
    storage.replace(CHECKPOINT_NAME, encode_checkpoint(Checkpoint(high_watermark=18, log_start_offset=19)))
    found = recover(storage, clean=True)
    assert (found.segments, [name for name in storage.names() if name.endswith((".log", ".index"))]) == ([], [])
    assert not found.is_complete
    log, report = Log.open(storage, SMALL, clean=True)
    assert (log.log_start_offset, log.log_end_offset, report.damage) == (19, 19, ())


@pytest.mark.parametrize("flipped", [False, True])
def test_log_open_with_a_gap_between_segments_reports_damage_and_quarantines_the_rest(flipped: bool) -> None:
    storage = closed()
    for name in (log_name(6), index_name(6)):
        storage.remove(name)
    if flipped:
        flip(storage, log_name(12), len(storage.files[log_name(12)].data) - 20)
    log, report = Log.open(storage, SMALL, clean=True)
    assert report.damage == (Damage(log_name(12), 6, 0, "the segment before it ends at offset 6"),)
    assert report.quarantined_files == (f"{log_name(12)}.behind-0",)
    assert (log.log_end_offset, len(log.segments)) == (6, 2)


# ---- looking into a folder -----------------------------------------------------------------------------------------------


def gone(storage: MemoryStorage) -> None:
    for name in (log_name(6), index_name(6)):
        storage.remove(name)


@pytest.mark.parametrize(
    ("spoil", "faults"),
    [
        (gone, [f"{log_name(12)}: begins at offset 12, the segment before it ends at 6"]),
        (lambda s: flip(s, index_name(6), 9), [f"{index_name(6)}: damaged (a cache: rebuilt when the log is opened)"]),
        (
            lambda s: s.replace(index_name(6), s.load(index_name(0)) or b""),
            [f"{index_name(6)}: wrong (a cache: rebuilt when the log is opened)"],
        ),
        (lambda s: s.replace(CHECKPOINT_NAME, b"x"), [f"{CHECKPOINT_NAME}: damaged (rebuilt when the log is opened)"]),
        (lambda s: s.replace(EPOCHS_NAME, b"x"), [f"{EPOCHS_NAME}: damaged (rebuilt when the log is opened)"]),
        (lambda s: s.replace("notes", b"x"), []),
        (
            lambda s: s.replace(CHECKPOINT_NAME, encode_checkpoint(Checkpoint(high_watermark=18))),
            ["committed records are missing: HW 18, the log ends before 18"],
        ),
    ],
)
def test_inspect_command_lists_each_fault_of_a_directory(spoil: Callable[[MemoryStorage], object], faults: list[str]) -> None:
    storage = closed()
    spoil(storage)
    before = {name: bytes(file.data) for name, file in storage.files.items()}
    report = inspect(storage)
    assert list(report.faults) == faults
    assert report.other_files == (("notes",) if "notes" in before else ())
    assert report.checkpoint_found
    assert {name: bytes(file.data) for name, file in storage.files.items()} == before


@pytest.mark.parametrize(("base", "batch_number", "torn"), [(12, 2, True), (12, 2, False), (12, 1, False), (6, 2, False)])
def test_inspect_command_reports_a_torn_tail_only_at_the_end_of_the_last_segment(
    base: int, batch_number: int, torn: bool
) -> None:
    storage = closed()
    at = batch_number * (right(base, storage) // 3)
    if torn:
        del storage.files[log_name(base)].data[-3:]
    else:
        flip(storage, log_name(base), at + 70)
    report = inspect(storage)
    (bad,) = [segment for segment in report.segments if segment.fault]
    assert (bad.name, bad.fault_position, bad.torn_tail, bad.summary.next_offset) == (
        log_name(base), at, torn, base + 2 * batch_number,
    )  # fmt: skip
    assert report.faults[0].startswith(f"{log_name(base)}: {'torn tail' if torn else 'damage'} at position {at}: ")
    assert torn or CRC in report.faults[0]


def zero_last_sector(data: bytearray) -> None:
    start = (len(data) - 1) // 512 * 512
    data[start:] = bytes(len(data) - start)


def zero_sector(data: bytearray) -> None:
    data[1536:2048] = bytes(512)


@pytest.mark.parametrize(
    ("spoil", "torn"),
    [
        (lambda data: data.__setitem__(1700, data[1700] ^ 1), False),
        (lambda data: data.pop(), True),
        (zero_sector, True),
        (zero_last_sector, True),
        (lambda data: (data.__setitem__(1700, data[1700] ^ 1), data.extend(b"the next, torn")), False),
        (lambda data: (data.__setitem__(1700, data[1700] ^ 1), data.extend(bytes(900))), False),
        (lambda data: data.__setitem__(data.rfind(SIGNATURE), 0), False),
    ],
    ids=[
        "flipped bit",
        "one byte less",
        "a sector of zeros",
        "zeros at the end",
        "flipped before a torn batch",
        "flipped before zeros",
        "flipped magic number",
    ],
)
def test_log_open_takes_a_complete_last_batch_with_a_fault_for_damage(spoil: Callable[[bytearray], object], torn: bool) -> None:
    """A disk writes a sector completely or not at all. So a batch without a missing sector was not torn."""
    storage = MemoryStorage()
    log, _ = Log.open(storage, StreamConfig())
    for number in range(2):
        log.append(build_batch([b"v" * 1200], base_offset=number))
    log.flush()
    spoil(storage.files[log_name(0)].data)
    log, report = Log.open(storage.crash(power=False), StreamConfig())
    assert log.log_end_offset == 1
    assert report.must_leave_isr is not torn


# ---- reading it back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_offset", "epoch", "follows"), [(2, 3, True), (2, 4, True), (2, 2, False), (3, 3, False), (1, 3, False)]
)
def test_scrub_scan_of_a_valid_batch_with_wrong_offset_or_epoch_raises(base_offset: int, epoch: int, follows: bool) -> None:
    file = MemoryStorage().create("x")
    file.append([batch(0, 2, 3), batch(base_offset, 1, epoch)])
    scan = Scan(0, file.size_bytes)
    if follows:
        assert (scan.step(file, 1 << 20), scan.next_offset, scan.leader_epoch) == (file.size_bytes, 3, epoch)
        return
    with pytest.raises(CorruptionError, match=f"{log_name(0)} is damaged: found offset {base_offset} instead of 2"):
        scan.step(file, 1 << 20)


# ---- after a clean stop, a kill and a power cut ----------------------------------------------------------------------------
@pytest.mark.parametrize(("hw", "lost"), [(16, False), (17, False), (18, True)])
def test_log_open_with_checkpoint_above_the_log_reports_lost_committed_records(hw: int, lost: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.replace(CHECKPOINT_NAME, small_files.encode_checkpoint(Checkpoint(hw, 0, 0)))
    log, report = Log.open(storage, StreamConfig(), clean=True)
    assert report.lost_committed is lost
    assert report.must_leave_isr is lost
    assert log.high_watermark == min(hw, 17)


def test_log_open_high_watermark_is_never_below_the_log_start() -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    log.drop_prefix(12)
    log.close()
    storage.remove(CHECKPOINT_NAME)
    again, report = Log.open(storage, StreamConfig(), clean=True)
    assert not report.checkpoint_found
    assert again.log_start_offset == 12
    assert again.high_watermark >= again.log_start_offset - 1


@pytest.mark.parametrize("clean", [True, False])
def test_log_open_with_a_torn_tail_after_a_clean_stop_reports_lost_flushed_data(clean: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.files[log_name(12)].data += b"torn"
    _, report = Log.open(storage, StreamConfig(), clean=clean)
    assert report.cut_bytes == 4
    assert report.lost_flushed is clean
    assert report.must_leave_isr is clean


@pytest.mark.parametrize("clean", [True, False])
def test_log_open_without_the_first_segment_after_a_clean_stop_reports_lost_flushed_data(clean: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.remove(log_name(0))
    lost: list[bool] = []
    recovered = recover(storage, clean=clean, before_loss=lambda: lost.append(True))
    assert recovered.log_start_offset > 0
    assert (recovered.report.must_leave_isr, bool(lost)) == (clean, clean), "only a full disk deletes without a checkpoint"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("log_start", [0, 12])
def test_log_open_without_its_last_segment_after_a_clean_stop_reports_lost_flushed_data(log_start: int, clean: bool) -> None:
    storage = MemoryStorage()
    log = a_log(storage)
    for _ in range(3):
        log.roll()
        add(log, 6)
    log.raise_high_watermark(11)  # the leader of this follower may have committed the later records
    log.drop_prefix(log_start)
    log.close()
    storage.remove(log_name(12))
    lost: list[bool] = []
    report = recover(storage, clean=clean, before_loss=lambda: lost.append(True)).report
    assert (report.lost_flushed, report.must_leave_isr, bool(lost)) == (clean, clean, clean)


def test_log_open_after_a_clean_stop_ignores_the_index_that_an_interrupted_truncation_left() -> None:
    storage = closed()
    storage.remove(log_name(12))  # the truncation ended before it removed the index of the segment before
    log, _ = Log.open(storage, SMALL)
    log.close()
    assert not recover(storage, clean=True).report.must_leave_isr


@pytest.mark.parametrize("wrong", ["longer", "shorter", "another base"])
def test_log_open_ignores_an_index_that_does_not_match_its_segment(wrong: str) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    if wrong == "longer":
        storage.files[log_name(0)].data += b"more"
    elif wrong == "shorter":
        del storage.files[log_name(0)].data[-1:]
    else:
        storage.files[index_name(0)] = storage.files[index_name(6)]
    report = recover(storage, clean=True).report
    assert report.walked_bytes > 0
    assert report.rebuilt_indexes + len(report.damage) > 0
