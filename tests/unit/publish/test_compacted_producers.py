"""Test that a compacted log still tells the epoch and the sequence number of each producer [A4]."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.client.batch_view import BatchSlice
from liftpy.config import NS_PER_S, ReplicationConfig, StreamConfig
from liftpy.core.log.arrow import to_arrow
from liftpy.core.log.compaction_point import HORIZON_NAME
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.publish.log_state import LogState, create_log_state
from liftpy.core.publish.producer_state import Claim, Finding, ProducerState
from liftpy.core.wire.batch import RecordBatch, parse_batch, split_batches
from liftpy.core.wire.producer_note import ProducerNote, SourcePosition
from tests.batches import build_batch

STREAM = StreamConfig(segment_bytes=4096, compaction=True, dedup_window_s=0.0)
NODE = ReplicationConfig(producer_expiry_s=100.0)
P, Q = 77, 78


def a_log() -> Log:
    return Log.open(MemoryStorage(), STREAM)[0]


def state_of(log: Log, node: ReplicationConfig = NODE) -> LogState:
    """As whoever opens the log and has no file knows it."""
    log_state = create_log_state(log, "s", STREAM, node, lambda: 0)
    while not log_state.replay():
        pass
    return log_state


def put(
    log: Log,
    keys: list[bytes] | list[None],
    producer: int = 0,
    sequence: int = 0,
    *,
    epoch: int = 3,
    at_s: float = 1,
    note: bytes = b"",
) -> None:
    """A batch of ``producer`` (0: of none), a record for each key; it fills a quarter of a segment."""
    data = build_batch(
        [b"." * (1000 // len(keys))] * len(keys),
        keys=keys,
        base_offset=log.log_end_offset,
        leader_epoch=1,
        timestamp_ns=round(at_s * NS_PER_S),
        producer_id=producer,
        producer_epoch=epoch if producer else 0,
        base_sequence=sequence,
        note=note,
    )
    log.append(data)


def compacted(log: Log) -> int:
    """Whatever can be, is; how many records that dropped. Opened again where it lies: nothing is known but what is stored."""
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    compaction = log.begin_compaction(0)
    assert compaction is not None
    compaction.run()
    return log.complete_compaction(compaction)


def supersede(log: Log, keys: list[bytes], at_s: float = 1) -> None:
    """All of ``keys`` again, of no producer, and as much more as seals them."""
    put(log, keys, at_s=at_s)
    for _ in range(5):
        put(log, [None], at_s=at_s)  # keyless: it stays


def batches_of(log: Log) -> list[RecordBatch]:
    return [batch for chunk in log.read(0, 1 << 20).chunks for batch in split_batches(chunk)]


def said(state: ProducerState | None) -> object:
    return state and (state.epoch, state.next_sequence, state.time_ns, state.name, state.position)


NAMED = ProducerNote("orders", SourcePosition("uid", 2, 41, 6)).encode()


@pytest.mark.parametrize(("keys", "note"), [([b"a", b"b"], NAMED), ([b"a"], NAMED), ([b"a", b"b", b"c"], b""), ([b"a"], b"")])
def test_producer_whose_records_were_all_compacted_away_continues_at_its_next_sequence(keys: list[bytes], note: bytes) -> None:
    log = a_log()
    put(log, keys, P, 40, note=note)
    supersede(log, keys)
    before = state_of(log).producers.state_of(P)
    assert compacted(log) >= len(keys)
    producers = state_of(Log.open(log.storage, STREAM)[0]).producers
    after = producers.state_of(P)
    assert before is not None
    assert after is not None
    due = 40 + len(keys)
    assert said(after) == said(before)
    assert (after.epoch, after.next_sequence, after.digest) == (3, due, None)
    position = after.position and after.position._replace(offset=42)
    columns = parse_batch(build_batch([b"x"] * len(keys))).columns
    claim = Claim(P, 4, due, len(keys), name="orders" if note else "", position=position)
    assert producers.check_batch(claim, columns).finding is Finding.APPEND
    again = claim._replace(base_sequence=40, position=after.position)
    assert producers.check_batch(again, columns).finding is Finding.DUPLICATE
    assert producers.check_batch(claim._replace(epoch=2), columns).finding is Finding.FENCED
    assert producers.check_batch(claim._replace(base_sequence=due + 1), columns).finding is Finding.OUT_OF_ORDER


def test_remains_batch_that_compaction_leaves_for_a_producer_has_no_records() -> None:
    log = a_log()
    put(log, [b"a"], P, 0, note=NAMED)
    supersede(log, [b"a"])
    compacted(log)
    left = batches_of(log)[0]
    assert (left.base_offset, left.next_offset, left.header.producer_id, left.header.base_sequence) == (0, 1, P, 0)
    assert (left.header.is_remains, left.header.is_compacted, left.header.size_bytes < 200) == (True, True, True)
    assert left.columns.keys is None
    assert BatchSlice.between(left, 0, None) is None
    assert to_arrow([left]).num_rows == 0
    assert sum(segment.record_count for segment in log.segments) == log.log_end_offset - 1
    log.storage.remove(HORIZON_NAME)
    assert Log.open(log.storage, STREAM)[0].horizon.end_offset > 0, "a batch of one record that is gone is a trace"


def test_compaction_deletes_the_control_batch_of_a_producer_that_has_newer_batches() -> None:
    log = a_log()
    put(log, [b"a"], P, 0)
    supersede(log, [b"a"])
    compacted(log)
    put(log, [b"b"], P, 1)
    supersede(log, [b"b"])
    compacted(log)
    assert [batch.header.base_sequence for batch in batches_of(log) if batch.header.producer_id] == [1]
    put(log, [b"c"], P, 2)
    supersede(log, [b"z"])
    compacted(log)
    left = [(batch.header.is_remains, batch.header.base_sequence) for batch in batches_of(log) if batch.header.producer_id]
    assert left == [(False, 2)], "who has records needs no remains"


def test_compaction_leaves_an_existing_control_batch_of_a_producer_unchanged() -> None:
    log = a_log()
    put(log, [b"a"], P, 0, note=NAMED)
    supersede(log, [b"a"])
    compacted(log)
    first, bytes_of_it = batches_of(log)[0], bytes(batches_of(log)[0].view)
    assert [compacted(log) for _ in range(3)] == [0, 0, 0]
    assert bytes(batches_of(log)[0].view) == bytes_of_it
    assert first.header.is_remains


def test_compaction_leaves_no_control_batch_for_an_expired_producer() -> None:
    for at_s, stays in ((101.5, False), (100.5, True)):
        log = a_log()
        log.producer_expiry_ns = round(NODE.producer_expiry_s * NS_PER_S)
        put(log, [b"a"], P, 0)
        supersede(log, [b"a"], at_s)
        compacted(log)
        assert (P in [batch.header.producer_id for batch in batches_of(log)]) is stays
        assert (state_of(log).producers.state_of(P) is not None) is stays


def test_compaction_control_batch_does_not_change_the_last_message_id() -> None:
    log = a_log()
    log.append(build_batch([b"v"], keys=[b"k"], headers=[(("Nats-Msg-Id", b"id"),)], leader_epoch=1, timestamp_ns=1))
    put(log, [b"a"], P, 0, note=NAMED)
    supersede(log, [b"a"])
    compacted(log)
    end = batches_of(log)[1].next_offset
    short, _ = Log.open(MemoryStorage(), STREAM)
    short.append_batches(b"".join(batch.view for batch in batches_of(log)[:2]), batches_of(log)[:2])
    short.raise_high_watermark(end - 1)
    log_state = state_of(short)
    assert log_state.ids.last_id == b"id"


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([0, P, Q]), st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=40))
def test_producer_state_rebuilt_from_a_compacted_log_equals_the_original(steps: list[tuple[int, int, int, bool]]) -> None:
    """A follower that fetches the compacted log gets the same state, too."""
    log, due = a_log(), {P: 0, Q: 0}
    for producer, count, key, compacts in steps:
        note = ProducerNote("n", SourcePosition("u", 0, due[P])).encode() if producer == P else b""
        put(log, [b"%d" % ((key + i) % 4) for i in range(count)], producer, due.get(producer, 0), note=note)
        if producer:
            due[producer] += count
        if compacts and len(log.segments) > 1:
            before = [said(state_of(log).producers.state_of(who)) for who in (P, Q)]
            compacted(log)
            assert [said(state_of(log).producers.state_of(who)) for who in (P, Q)] == before
    log.raise_high_watermark(log.newest_offset)
    follower = a_log()
    while follower.log_end_offset < log.log_end_offset:
        for chunk in log.read(follower.log_end_offset, 5000).chunks:
            follower.append_batches(chunk, split_batches(chunk))
    for who in (P, Q):
        assert said(state_of(follower).producers.state_of(who)) == said(state_of(log).producers.state_of(who))


def test_producer_digest_after_compaction_dropped_records_is_none() -> None:
    log = a_log()
    put(log, [b"a"], P, 0)
    whole = state_of(log).producers.state_of(P)
    assert whole is not None
    assert isinstance(whole.digest, RollingDigest)
    supersede(log, [b"a"])
    compacted(log)
    left = state_of(log).producers.state_of(P)
    assert left is not None
    assert left.digest is None
    assert np.array_equal(batches_of(log)[0].offsets(), [0])
