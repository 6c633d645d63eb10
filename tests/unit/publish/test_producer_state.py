"""Test producers against a model that keeps every record, and digests that ignore the division into batches."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from itertools import pairwise

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
    max_producers,
)
from liftpy.core.wire.batch import RecordBatch, parse_batch
from liftpy.errors import ProtocolError
from tests.batches import build_batch
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


def a_batch(records: list[Rec], *, base: int = 0, producer: int = 7, epoch: int = 0, sequence: int = 0) -> RecordBatch:
    values, keys, headers = zip(*records, strict=True)
    data = build_batch(
        values,
        keys=keys,
        headers=headers,
        subjects=["s"] * len(records),
        base_offset=base,
        timestamp_ns=1,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return parse_batch(data)


def take(producers: Producers, batch: RecordBatch, *, whole: bool = True) -> None:
    """As ``LogState`` tells it; not ``whole``: compaction has dropped some of its records."""
    head = batch.header
    sequences = ProducerSequences(head.producer_id, head.producer_epoch, head.base_sequence, batch.columns if whole else None)
    told = NewBatch(head.base_offset, head.last_offset, head.timestamp_ns, head.record_count, {}, sequences)
    producers.add_batch(told)


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

    def publish(self, records: list[Rec], *, epoch: int, sequence: int, reset: bool, producer: int) -> BatchCheck:
        result = self.producers.check_batch(Claim(producer, epoch, sequence, len(records), reset), a_batch(records).columns)
        if result.finding is Finding.APPEND:
            rest = records[result.known :]
            first = (sequence + result.known) % (1 << 32)
            batch = a_batch(rest, base=self.end, producer=producer, epoch=epoch, sequence=first)
            take(self.producers, batch)
            self.end += len(rest)
        return result


A, B, C, D, E = SOME


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
        assert producers.check_batch(Claim(7, 0, second + 1, 1, False, wrong), batch.columns).finding is Finding.APPEND
    producers = Producers(0, 10)
    for base in (0, 2):
        take(producers, a_batch([A, B], base=base, sequence=base), whole=False)
    duplicate = Claim(7, 0, 0, 1, False, digest_of([E]))
    assert producers.check_batch(duplicate, a_batch([A]).columns).finding is Finding.DUPLICATE, "nobody can tell"


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
            result = bench.publish(records, epoch=epoch, sequence=sequence, reset=reset, producer=producer)
            if result.finding is Finding.APPEND:
                rest = records[result.known :]
                first = sequence + result.known
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
    assert (max_producers(10 * STATE_BYTES), max_producers(1)) == (10, 1)
