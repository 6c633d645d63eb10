"""Test producers against a model that keeps every record, and digests that ignore the division into batches."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from itertools import pairwise

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.core.publish.digest import DIGEST_BYTES, RollingDigest
from liftpy.core.publish.log_state_part import NewBatch, ProducerSequences
from liftpy.core.publish.producer_state import (
    STATE_BYTES,
    BatchCheck,
    Claim,
    Finding,
    Producers,
    StoredBatch,
    distance,
    epoch_distance,
)
from liftpy.core.wire.batch import RecordBatch, build_batch, parse_batch
from liftpy.errors import ProtocolError
from tests.long import examples

Rec = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]
"""(value, key, headers)"""
SOME = [
    (b"a", None, ()),
    (b"", b"k", ()),
    (None, b"", (("n", b"1"),)),
    (b"bb", b"key", (("n", b""), ("m", b"22"))),
    (b"ab", b"k", (("nm", b"1"),)),
]


def a_batch(
    records: list[Rec], *, base: int = 0, producer: int = 7, epoch: int = 0, sequence: int = 0, time: int = 1
) -> RecordBatch:
    values, keys, headers = zip(*records, strict=True)
    data = build_batch(
        values,
        keys=keys,
        headers=headers,
        subjects=["s"] * len(records),
        base_offset=base,
        timestamp_ns=time,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return parse_batch(data)


def take(producers: Producers, batch: RecordBatch, *, whole: bool = True) -> None:
    """As ``LogState`` tells it; not ``whole``: compaction has dropped some of its records."""
    head = batch.header
    numbering = ProducerSequences(head.producer_id, head.producer_epoch, head.base_sequence, batch.columns if whole else None)
    told = NewBatch(head.base_offset, head.last_offset, head.timestamp_ns, head.record_count, {}, numbering)
    producers.add_batch(told)


def check_of(records: list[Rec]) -> int:
    return crc32c.crc32c(digest_of(records).encode())


def digest_of(records: list[Rec]) -> RollingDigest:
    return RollingDigest().over(a_batch(records).columns, 0, len(records)) if records else RollingDigest()


# ---- the digest --------------------------------------------------------------------------------------------------------------
@given(st.lists(st.sampled_from(SOME), min_size=1, max_size=12), st.lists(st.integers(1, 11)))
def test_rolling_digest_of_records_is_equal_for_any_batch_boundaries(records: list[Rec], cuts: list[int]) -> None:
    whole, bounds = digest_of(records), sorted({0, len(records), *(cut for cut in cuts if cut < len(records))})
    pieced = within = RollingDigest()
    columns = a_batch(records).columns
    for start, end in pairwise(bounds):
        pieced = pieced.over(a_batch(records[start:end]).columns, 0, end - start)
        within = within.over(columns, start, end)
    assert pieced == within == whole


def test_rolling_digest_changes_with_each_field_and_the_order() -> None:
    """Bytes that move between records, between name and value, or from empty to null change the digest."""
    different: list[list[Rec]] = [
        [(b"ab", None, ()), (b"c", None, ())],
        [(b"a", None, ()), (b"bc", None, ())],
        [(b"c", None, ()), (b"ab", None, ())],
        [(b"ab", b"", ()), (b"c", None, ())],
        [(b"ab", None, ()), (b"c", b"", ())],
        [(b"ab", b"x", ()), (b"c", b"y", ())],
        [(b"ab", b"xy", ()), (b"c", b"", ())],
        [(b"ab", None, (("n", b"v"),)), (b"c", None, ())],
        [(b"ab", None, ()), (b"c", None, (("n", b"v"),))],
        [(b"ab", None, (("nv", b""),)), (b"c", None, ())],
        [(b"ab", None, (("n", b"v"), ("n", b"v"))), (b"c", None, ())],
        [(b"ab", None, (("n", b"vn"), ("n", b""))), (b"c", None, ())],
        [(None, None, ()), (b"abc", None, ())],
        [(b"", None, ()), (b"abc", None, ())],
    ]
    assert len({digest_of(records) for records in different}) == len(different)


def test_rolling_digest_is_encoded_in_36_bytes() -> None:
    digest = digest_of(SOME)
    assert len(digest.encode()) == DIGEST_BYTES == 36
    assert RollingDigest.decode(digest.encode()) == digest
    assert RollingDigest().encode() == bytes(DIGEST_BYTES), "of nothing, on all versions"
    with pytest.raises(ProtocolError, match="36 bytes, not 35"):
        RollingDigest.decode(digest.encode()[:-1])


# ---- the rules ---------------------------------------------------------------------------------------------------------------
@dataclass
class Bench:
    """Producers over a log; every record that was appended, by producer."""

    producers: Producers = field(default_factory=lambda: Producers(0, 100))
    end: int = 0

    def publish(self, records: list[Rec], *, epoch: int = 0, sequence: int = 0, reset: bool = False, time: int = 1,
                said: list[Rec] | None = None, producer: int = 7) -> BatchCheck:  # fmt: skip
        columns = a_batch(records).columns
        digest = None if said is None else digest_of(said)
        ruling = self.producers.judge(Claim(producer, epoch, sequence, len(records), reset, digest), columns)
        if ruling.finding is Finding.APPEND:
            rest = records[ruling.known :]
            first = (sequence + ruling.known) % (1 << 32)
            batch = a_batch(rest, base=self.end, producer=producer, epoch=epoch, sequence=first, time=time)
            take(self.producers, batch)
            self.end += len(rest)
        return ruling


A, B, C, D, E = SOME


def test_producer_state_accepts_the_next_sequence_and_detects_duplicates_and_gaps() -> None:
    bench = Bench()
    assert bench.publish([A, B]) == BatchCheck(Finding.APPEND)
    assert bench.publish([C, D], sequence=2) == BatchCheck(Finding.APPEND, next_sequence=2)
    assert bench.publish([E], sequence=5) == BatchCheck(Finding.OUT_OF_ORDER, next_sequence=4)
    assert bench.publish([C, D], sequence=2) == BatchCheck(Finding.DUPLICATE, known=2, offset=2, next_sequence=4)
    assert bench.publish([B, C], sequence=1) == BatchCheck(Finding.DUPLICATE, known=2, offset=1, next_sequence=4)
    assert bench.publish([D, E], sequence=3) == BatchCheck(Finding.APPEND, known=1, offset=3, next_sequence=4)
    state = bench.producers.state_of(7)
    assert state is not None
    assert (state.epoch, state.next_sequence, state.digest) == (0, 5, digest_of([A, B, C, D, E]))
    assert state.batches == (
        StoredBatch(0, 2, 0, check_of([A, B])),
        StoredBatch(2, 2, 2, check_of([A, B, C, D])),
        StoredBatch(4, 1, 4, check_of([A, B, C, D, E])),
    )


def test_producer_state_of_an_unknown_producer_accepts_only_sequence_zero() -> None:
    bench = Bench()
    assert BatchCheck(Finding.OUT_OF_ORDER) == (Finding.OUT_OF_ORDER, 0, -1, 0)
    assert bench.publish([A], sequence=3) == BatchCheck(Finding.OUT_OF_ORDER)
    assert bench.publish([A], producer=8) == BatchCheck(Finding.APPEND)
    assert bench.producers.state_of(7) is None


def test_producer_state_accepts_a_reset_only_with_a_new_epoch_and_sequence_zero() -> None:
    bench = Bench()
    bench.publish([A, B], epoch=1)
    assert bench.publish([C], epoch=1, reset=True) == BatchCheck(Finding.DUPLICATE, known=1, offset=0, next_sequence=2)
    assert bench.publish([C], epoch=2, sequence=1, reset=True) == BatchCheck(Finding.OUT_OF_ORDER)
    assert bench.publish([C], epoch=2, reset=True) == BatchCheck(Finding.APPEND)
    state = bench.producers.state_of(7)
    assert state is not None
    assert (state.epoch, state.next_sequence, state.digest, state.batches) == (
        2,
        1,
        digest_of([C]),
        (StoredBatch(0, 1, 2, check_of([C])),),
    )


@pytest.mark.parametrize(
    ("records", "sequence", "said"),
    [([B, E, D], 1, [A]), ([B, C, D], 1, [E]), ([D], 3, [A, B, D]), ([C], 2, [A, A])],
    ids=["other records", "other ones before", "nothing repeated, others before", "a whole duplicate up to the end"],
)
def test_producer_state_repeated_sequence_with_other_records_is_diverged(
    records: list[Rec], sequence: int, said: list[Rec]
) -> None:
    bench = Bench()
    bench.publish([A, B, C], epoch=1)
    assert bench.publish(records, epoch=2, sequence=sequence, said=said) == BatchCheck(Finding.DIVERGED, next_sequence=3)
    assert bench.end == 3


def test_producer_state_detects_a_duplicate_of_an_old_batch_without_its_offset() -> None:
    bench = Bench()
    for sequence in range(7):
        bench.publish([A], sequence=sequence)
    assert bench.publish([A], sequence=1) == BatchCheck(Finding.DUPLICATE, 1, -1, 7)
    assert bench.publish([A], sequence=2) == BatchCheck(Finding.DUPLICATE, 1, 2, 7)
    assert bench.publish([A, A], sequence=2, epoch=1, said=[E, E]) == BatchCheck(Finding.DUPLICATE, 2, 2, 7), (
        "who repeats himself"
    )


def test_producer_state_repeated_batch_with_other_bounds_or_digest_is_diverged() -> None:
    """Two leaders gave one epoch to two processes. The batch of the second one is no duplicate of the first one's."""
    bench = Bench()
    for sequence in range(0, 14, 2):
        bench.publish([A, B], sequence=sequence)
    assert bench.publish([A, B], sequence=6, said=[A, B] * 3) == BatchCheck(Finding.DUPLICATE, 2, 6, 14)
    assert bench.publish([B], sequence=7, said=[A, B, A, B, A, B, A]) == BatchCheck(Finding.DUPLICATE, 1, 7, 14)
    for records, sequence, said in (([A, C], 6, [A, B] * 3), ([A], 6, [A, B] * 3), ([A, B], 2, [A, B])):
        assert bench.publish(records, sequence=sequence, said=said) == BatchCheck(Finding.DIVERGED, next_sequence=14)
    forgetful = Producers(0, 10)
    for base in (0, 2):
        batch = a_batch([A, B], base=base, sequence=base)
        take(forgetful, batch, whole=False)
    wrong = Claim(7, 0, 0, 1, False, digest_of([E]))
    assert forgetful.judge(wrong, a_batch([A]).columns).finding is Finding.DUPLICATE, "nobody can tell"


def test_producer_state_epoch_after_the_highest_is_zero_and_counts_as_newer() -> None:
    bench = Bench()
    bench.publish([A], epoch=65_535)
    assert bench.publish([B], epoch=0, sequence=1) == BatchCheck(Finding.APPEND, next_sequence=1)
    assert bench.publish([B], epoch=65_535, sequence=2) == BatchCheck(Finding.FENCED, next_sequence=2)
    assert bench.publish([C], epoch=1, reset=True) == BatchCheck(Finding.APPEND)
    assert (epoch_distance(0, 65_535), epoch_distance(65_535, 1)) == (1, -2)
    assert bench.producers._states[7].digest == digest_of([C])


def test_producer_state_sequence_after_the_highest_is_zero() -> None:
    producers = Producers(0, 10)
    last = (1 << 32) - 1
    first, then = a_batch([A, B], sequence=last - 3), a_batch([C, D], base=2, sequence=last - 1)
    take(producers, a_batch([E]))
    for batch in (first, then):
        take(producers, batch)
    state = producers.state_of(7)
    assert state is not None
    assert state.next_sequence == 0
    columns = a_batch([C]).columns
    assert producers.judge(Claim(7, 0, 0, 1), columns).finding is Finding.APPEND
    assert producers.judge(Claim(7, 0, last, 1), columns) == BatchCheck(Finding.DUPLICATE, 1, 3, 0)
    assert producers.judge(Claim(7, 0, 1, 1), columns).finding is Finding.OUT_OF_ORDER
    assert (distance(1, last), distance(last, 1), distance(5, 5)) == (2, -2, 0)


def test_producer_state_digest_continues_across_a_sequence_wraparound() -> None:
    producers, before = Producers(0, 10), a_batch([A], sequence=0)
    take(producers, before)
    states = producers._states
    states[7] = states[7]._replace(next_sequence=0)  # two to the 32 records later
    behind = a_batch([B], base=1, sequence=0)
    take(producers, behind)
    assert states[7].digest == digest_of([A, B])
    assert len(states[7].batches) == 2


def test_producer_state_returns_the_offset_of_a_duplicate_between_other_producers() -> None:
    bench = Bench()
    bench.publish([A, B])
    bench.publish([E], producer=8)
    bench.publish([C], sequence=2)
    assert [bench.publish([A], sequence=sequence).offset for sequence in range(3)] == [0, 1, 3]


def test_producer_state_truncation_resets_the_log_time_used_for_expiry() -> None:
    bench = Bench(Producers(100, 9))
    bench.publish([A], time=1000)
    bench.producers.committed(0)
    bench.publish([A], time=1090, producer=8)
    bench.publish([A], time=5000, producer=9)
    bench.producers.truncate(2)
    bench.end = 2
    bench.publish([B], time=1050, producer=10)
    bench.producers.committed(2)
    assert sorted(bench.producers._states) == [7, 8, 10]
    bench.publish([C], time=9999, producer=11)
    bench.producers.truncate(3)
    bench.publish([C], time=1, producer=10, sequence=1)
    assert bench.producers._states[10].time_ns == 1090


def test_producer_state_truncation_restores_the_state_at_the_truncation_offset() -> None:
    """The order of eviction is restored, too."""
    bench = Bench(Producers(0, 3))
    steps: list[tuple[list[Rec], int, int, int]] = [
        ([A, B], 7, 0, 0), ([C], 8, 0, 0), ([D], 9, 0, 0), ([C], 7, 0, 2), ([E, D], 8, 1, 1), ([E], 7, 1, 3),
    ]  # fmt: skip
    known = [(0, [])]
    for records, producer, epoch, sequence in steps:
        assert bench.publish(records, producer=producer, epoch=epoch, sequence=sequence).finding is Finding.APPEND
        known.append((bench.end, list(bench.producers._states.items())))
    for end, states in reversed(known[3:]):
        bench.producers.truncate(end)
        assert list(bench.producers._states.items()) == states
    bench.end = known[3][0]
    assert bench.publish([C], sequence=2) == BatchCheck(Finding.APPEND, next_sequence=2)
    assert bench.publish([B], sequence=1) == BatchCheck(Finding.DUPLICATE, 1, 1, 3)
    bench.producers.truncate(known[3][0])
    bench.end = known[3][0]
    assert bench.publish([A], producer=10).finding is Finding.APPEND
    assert sorted(bench.producers._states) == [8, 9, 10], "7 was heard first"
    bench.producers.committed(bench.end)
    file = bench.producers.snapshot()
    bench.producers._states = dict(reversed(bench.producers._states.items()))
    for data in (b"".join(file()), b"".join(bench.producers.snapshot()())):
        again = Producers(0, 3)
        again.restore(data, bench.end)
        assert list(again._states) == [8, 9, 10]


def test_producer_state_of_an_incomplete_log_has_no_digest() -> None:
    for first, second in (((0, None), 1), ((3, True), 4), ((0, True), 2)):
        sequence, columns = first
        producers = Producers(0, 10)
        batch = a_batch([A], sequence=sequence)
        take(producers, batch, whole=bool(columns))
        later = a_batch([B], base=1, sequence=second)
        take(producers, later)
        state = producers.state_of(7)
        assert state is not None
        assert state.digest is None
        wrong = digest_of([E])
        assert producers.judge(Claim(7, 0, second + 1, 1, False, wrong), batch.columns).finding is Finding.APPEND


def test_producer_state_expires_by_committed_time_and_evicts_the_least_recently_used() -> None:
    bench = Bench(Producers(100, 2))
    bench.publish([A], time=1000)
    bench.publish([B], time=1100, producer=8)
    assert bench.producers.state_of(7) is not None, "what is above HW may be cut"
    bench.producers.committed(0)
    assert bench.producers.state_of(7) is not None
    bench.producers.committed(1)
    assert (bench.producers.state_of(7), bench.producers.evicted_count) == (None, 0)
    bench.publish([A], time=1100, producer=9)
    bench.publish([B], time=1100, producer=8, sequence=1)
    bench.publish([A], time=1100, producer=10)
    assert (len(bench.producers), bench.producers.evicted_count) == (2, 1)
    assert bench.producers.state_of(9) is None, "8 was heard of after it"


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.tuples(st.integers(7, 8), st.integers(0, 2), st.integers(0, 6), st.integers(1, 3), st.booleans(), st.integers(0, 9)),
        max_size=25,
    )
)
def test_producer_state_after_random_operations_equals_a_rebuild_from_the_log(
    steps: list[tuple[int, int, int, int, bool, int]],
) -> None:
    bench, log, high_watermark = Bench(), list[RecordBatch](), -1
    for producer, epoch, sequence, count, reset, what in steps:
        if what == 0:
            end = max(high_watermark + 1, bench.end - count)
            end = next((b.base_offset for b in log if b.base_offset <= end <= b.last_offset), end)
            log = [batch for batch in log if batch.base_offset < end]
            bench.producers.truncate(end)
            bench.end = end
        elif what == 1 and log:
            high_watermark = max(high_watermark, log[min(count, len(log)) - 1].last_offset)
            bench.producers.committed(high_watermark)
        else:
            records = [SOME[(sequence + i) % len(SOME)] for i in range(count)]
            start = bench.end
            ruling = bench.publish(records, epoch=epoch, sequence=sequence, reset=reset, producer=producer)
            if ruling.finding is Finding.APPEND:
                rest = records[ruling.known :]
                first = sequence + ruling.known
                log.append(a_batch(rest, base=start, producer=producer, epoch=epoch, sequence=first))
        anew = Producers(0, 100)
        for batch in log:
            take(anew, batch)
        for known in (7, 8):
            assert bench.producers.state_of(known) == anew.state_of(known)
            assert list(bench.producers._states) == list(anew._states)
            epochs = [b.header.producer_epoch for b in log if b.header.producer_id == known]
            assert epochs == sorted(epochs)


def test_producer_state_size_bytes_match_the_memory_used() -> None:
    producers, count = Producers(0, 1000), 300
    batches = [a_batch([A], base=n, producer=n % count + 1, sequence=n // count) for n in range(count * 6)]
    assert all(batch.columns.values for batch in batches)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for batch in batches:
        take(producers, batch)
        producers.committed(batch.last_offset)
    taken = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    assert STATE_BYTES / 3 < taken < STATE_BYTES * 1.5
    assert producers.size_bytes == STATE_BYTES * count
