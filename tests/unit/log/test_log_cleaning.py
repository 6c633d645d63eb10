"""Test which records compaction removes, against a naive model, and when a compaction is due."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.config import NS_PER_S, StreamConfig
from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import split_batches
from tests.batches import build_batch

Row = tuple[bytes | None, str, bool, bool]
"""Key, subject, whether it has headers, whether it is a delete marker."""


def state(*purges: Purge) -> PartitionState:
    return PartitionState(partition=0, replicas=("a",), isr=("a",), leader="a", leader_epoch=1, epoch=1, purges=purges)


def purge(number: int = 1, end_offset: int = 1 << 40, **what: Any) -> Purge:
    return Purge(number=number, end_offset=end_offset, **what)


def log_of(batches: list[list[Row]], **settings: Any) -> Log:
    """Each batch in a segment of its own, committed; batch n is stamped n seconds; the values are the offsets."""
    log, _ = Log.open(MemoryStorage(), StreamConfig(**({"dedup_window_s": 0.0} | settings)))
    for number, rows in enumerate(batches):
        base = log.log_end_offset
        batch = build_batch(
            [None if row[3] else b"%d" % (base + place) for place, row in enumerate(rows)],
            base_offset=base, leader_epoch=1, timestamp_ns=number * NS_PER_S,
            keys=[row[0] for row in rows], subjects=[row[1] for row in rows],
            headers=[[("h", b"1")] if row[2] else None for row in rows],
        )  # fmt: skip
        log.append(batch)
        log.roll()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def clean(log: Log, now_ns: int = 0, ratio: float = 0.0) -> int | None:
    """One run; how many records went, None: it was not worth it."""
    run = log.begin_compaction(now_ns, min_dirty_ratio=ratio)
    if run is None:
        return None
    run.run()
    return log.complete_compaction(run)


def held(log: Log) -> list[int]:
    """The offsets of the records that are there."""
    data = b"".join(log.read(log.log_start_offset, 1 << 30, end_offset=log.log_end_offset).chunks)
    return [offset for batch in split_batches(data) if not batch.header.control for offset in batch.offsets().tolist()]


ROWS = st.tuples(st.sampled_from([None, b"", b"a", b"b"]), st.sampled_from(["", "x", "x.y", "z"]), st.booleans(), st.booleans())


@dataclass(frozen=True)
class Rules:
    compaction: bool
    most: int
    window_s: int
    delete_retention_s: int
    now_s: int


def is_given_up(offset: int, row: Row, purges: list[Purge]) -> bool:
    key, subject = row[:2]
    return any(
        offset < p.end_offset
        and (not p.subjects or any(s == subject or (s == "x.>" and subject == "x.y") for s in p.subjects))
        and (not p.keys or key in p.keys)
        for p in purges
    )


def expected(batches: list[list[Row]], rules: Rules, purges: list[Purge]) -> list[int]:
    """The offsets that stay."""
    rows = [(row, number) for number, batch in enumerate(batches) for row in batch]
    of_subject: dict[str, list[int]] = defaultdict(list)
    of_key: dict[bytes, int] = {}
    for offset, (row, _) in enumerate(rows):
        of_subject[row[1]].append(offset)
        if row[0] is not None:
            of_key[row[0]] = offset
    goes, is_young = [], []
    for offset, (row, number) in enumerate(rows):
        key, subject, headers, is_delete = row
        is_keyed = rules.compaction and key is not None
        is_old = is_delete and number < rules.now_s - rules.delete_retention_s
        gone = is_keyed and (of_key[key] != offset or is_old)
        gone = gone or (bool(rules.most) and subject != "" and offset not in of_subject[subject][-rules.most :])
        goes.append(gone or is_given_up(offset, row, purges))
        since = max(rules.now_s, len(batches) - 1) - rules.window_s
        is_young.append(headers and rules.window_s > 0 and number > since)
    stays = []
    for offset, (row, number) in enumerate(rows):
        held = [o for o, (_, n) in enumerate(rows) if n <= number and goes[o] and is_young[o]]
        supersedes = row[0] is not None and row[0] in {rows[o][0][0] for o in held}
        supersedes = supersedes and ((rules.compaction and of_key[row[0]] == offset) or is_given_up(offset, row, purges))
        of_held_subject = row[1] != "" and row[1] in {rows[o][0][1] for o in held}
        supersedes = supersedes or (of_held_subject and is_given_up(offset, row, purges))
        if not goes[offset] or is_young[offset] or supersedes:
            stays.append(offset)
    return stays


@given(
    batches=st.lists(st.lists(ROWS, min_size=1, max_size=7), min_size=1, max_size=6),
    rules=st.builds(
        Rules, compaction=st.booleans(), most=st.sampled_from([0, 1, 2, 3]), window_s=st.sampled_from([0, 1, 2, 9]),
        delete_retention_s=st.sampled_from([0, 2, 100]), now_s=st.integers(0, 12),
    ),
    wishes=st.lists(
        st.tuples(
            st.sampled_from([(), ("x",), ("x.>", "z")]), st.sampled_from([(), (b"a",), (b"", b"b")]), st.integers(1, 30)
        ).filter(lambda wish: bool(wish[0] or wish[1])),
        max_size=2,
    ),
)  # fmt: skip
def test_log_cleaning_of_random_logs_retains_the_same_records_as_a_simple_model(
    batches: list[list[Row]], rules: Rules, wishes: list[tuple[tuple[str, ...], tuple[bytes, ...], int]]
) -> None:
    log = log_of(
        batches, compaction=rules.compaction, max_per_subject=rules.most, dedup_window_s=float(rules.window_s),
        delete_retention_s=float(rules.delete_retention_s),
    )  # fmt: skip
    end = log.log_end_offset
    purges = [purge(n + 1, min(e, end), subjects=s, keys=k) for n, (s, k, e) in enumerate(wishes)]
    log.apply_metadata(state(*purges))
    rows = [row for batch in batches for row in batch]
    clean(log, rules.now_s * NS_PER_S)
    stay = held(log)
    if rules.compaction or rules.most or purges:
        assert stay == expected(batches, rules, purges)
    for p in purges:
        taken = [o for o in stay if is_given_up(o, rows[o], [p])]
        assert (p.number in log.cleaning.purged) == (not taken), "a purge is done when nothing that it wants is left"
    if rules.compaction and not rules.most and not purges:
        for key in {row[0] for row in rows} - {None}:
            newest = max(offset for offset, row in enumerate(rows) if row[0] == key)
            left = [offset for offset in stay if rows[offset][0] == key]
            assert left[-1:] in ([newest], [] if rows[newest][3] else [newest]), "a delete takes all of its key along [D29]"
            assert newest in stay or log.horizon.deletes_end > newest, "and is told when it is gone [D30]"


def test_compaction_that_deletes_a_tombstone_raises_the_deletes_end_of_the_compaction_horizon() -> None:
    with_id, tombstone_of_it, other, tombstone_of_other = (
        (b"a", "", True, False), (b"a", "", False, True), (b"b", "", False, False), (b"b", "", False, True),
    )  # fmt: skip
    log = log_of([[with_id], [other], [tombstone_of_it], [tombstone_of_other]], compaction=True, dedup_window_s=9.0,
                 delete_retention_s=0.0)  # fmt: skip
    clean(log, 4 * NS_PER_S)
    assert held(log) == [0, 2], "the first record may be needed for its message id"
    before = log.horizon.deletes_end
    assert before > 3
    clean(log, 60 * NS_PER_S)
    assert held(log) == []
    assert log.horizon.deletes_end > before


X: Row = (None, "x", False, False)
Y: Row = (b"k", "y", False, False)


def test_log_cleaning_retains_the_newest_records_per_subject_and_every_record_without_a_subject() -> None:
    log = log_of([[X, X, Y, (None, "", False, False)], [X, (None, "", False, False)], [X]], max_per_subject=2)
    assert clean(log) == 2
    assert held(log) == [2, 3, 4, 5, 6]
    assert log.horizon.end_offset == 7
    assert log.may_have_gaps
    assert clean(log, ratio=0.5) is None, "nothing is new"


def test_purge_starts_when_its_offset_range_is_sealed_and_committed() -> None:
    log = log_of([[X, Y], [X]])
    assert not log.may_be_cleaned
    assert not log.may_give_up
    log.append(build_batch([b"3"], base_offset=3, leader_epoch=1, timestamp_ns=0, subjects=["x"]))
    wish = purge(5, 4, subjects=("x",))
    assert log.apply_metadata(state(wish))
    assert not log.apply_metadata(state(wish)), "no news"
    assert log.may_be_cleaned
    assert log.may_give_up
    assert clean(log) is None, "its end is in the active segment"
    log.apply_retention(0)
    assert len(log.segments) == 3, "and not committed: it is not sealed for that"
    log.raise_high_watermark(3)
    log.apply_retention(0)
    assert len(log.segments) == 4
    assert clean(log) is None, "not flushed"
    log.flush()
    assert clean(log) == 3
    assert held(log) == [1]
    assert log.cleaning.purged == {5}
    assert clean(log) is None
    log.apply_retention(0)
    assert len(log.segments) == 3 - 2 + 1 or log.segments[-1].size_bytes == 0, "what is done seals nothing"
    assert not log.apply_metadata(state())
    assert log.cleaning.purged == set()


def test_purge_rewrites_only_the_segments_below_its_end_offset() -> None:
    log = log_of([[X], [X], [Y], [X]])
    log.apply_metadata(state(purge(1, 2, subjects=("x",))))
    run = log.begin_compaction(0)
    assert run is not None
    assert [segment.base_offset for segment in run.inputs] == [0, 1]


def test_purge_leaves_files_without_matching_records_unchanged() -> None:
    log = log_of([[Y], [X], [Y]], segment_bytes=4096)
    log.config = StreamConfig(segment_bytes=4096, compaction=True, dedup_window_s=0.0)
    object.__setattr__(log.config, "segment_bytes", 1)  # so that neighbours don't fit one file together
    log.apply_metadata(state(purge(1, 3, subjects=("x",))))
    run = log.begin_compaction(0)
    assert run is not None
    run.run()
    assert [output.replaced for output in run.outputs] == [(0,), (1,)], "y at 0 is superseded, x is purged, the last stays"
    assert log.complete_compaction(run) == 2
    assert held(log) == [2]


def test_purge_of_records_with_message_ids_waits_until_the_dedup_window_has_passed() -> None:
    log = log_of([[(None, "x", True, False)]], dedup_window_s=100.0)
    log.apply_metadata(state(purge(1, 1, subjects=("x",))))
    assert clean(log, 50 * NS_PER_S) == 0
    assert (held(log), log.cleaning.purged) == ([0], set())
    assert clean(log, 99 * NS_PER_S) is None, "nothing is read before its time"
    assert clean(log, 100 * NS_PER_S) == 1
    assert (held(log), log.cleaning.purged) == ([], {1})


@pytest.mark.parametrize("afresh", [False, True])
def test_purge_is_pending_again_after_a_truncation_below_its_end(afresh: bool) -> None:
    log = log_of([[X], [Y], [X]])
    early, late = purge(1, 1, subjects=("x",)), purge(2, 3, subjects=("x",))
    log.apply_metadata(state(early, late))
    assert clean(log) == 2
    assert log.cleaning.purged == {1, 2}
    log.truncate_to(2)
    assert log.cleaning.purged == {1}
    if afresh:
        log.reset(2)
        assert log.cleaning.purged == set()
        log.apply_retention(0)
        assert log.cleaning.purged == {1}, "what it is about lies before the log"


def test_purge_of_a_range_deleted_by_retention_counts_as_completed() -> None:
    log = log_of([[X], [X], [Y]])
    log.apply_metadata(state(purge(1, 2, subjects=("x",)), purge(2, 3, subjects=("x",))))
    log.drop_prefix(2)
    assert log.cleaning.purged == set()
    log.apply_retention(0)
    assert log.cleaning.purged == {1}
