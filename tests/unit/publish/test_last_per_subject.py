"""Test the index of the last offset per subject: it is a function of the log, after any truncation and replay [A7]."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import Codec, StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish import last_per_subject
from liftpy.core.publish.last_per_subject import LastPerSubject, last_of_each
from liftpy.core.publish.log_state import LogState, headers_of
from liftpy.core.publish.log_state_part import NewBatch, NodeStateMemory
from liftpy.core.wire.batch import build_filler, parse_batch
from liftpy.core.wire.subjects import matcher
from liftpy.errors import CorruptionError
from tests.batches import build_batch
from tests.long import examples
from tests.unit.publish.unlogged import empty_log

ROOM = 1 << 20
ASKS = ("Nats-Expected-Last-Subject-Sequence", b"0")


def a_batch(base: int, subjects: list[str], *, asks: bool = False, value: bytes = b"v" * 100, **more: Any) -> bytes:
    headers = [[ASKS]] + [None] * (len(subjects) - 1) if asks else None
    return build_batch(
        [value] * len(subjects), subjects=subjects, headers=headers, base_offset=base, leader_epoch=1, timestamp_ns=1, **more
    )


def a_state(log: Log, room: int = ROOM, subject: str = "s.>") -> LogState:
    state = LogState(log, 1, 1 << 20, lambda: 0, subject=subject, partition_subject_index_bytes=room)
    state.first_read_bytes = 1
    return state


def a_log(**config: Any) -> Log:
    return Log.open(MemoryStorage(), StreamConfig(segment_bytes=4096, **config))[0]


def append(log: Log, state: LogState, subjects: list[str], **more: Any) -> None:
    batch = a_batch(log.log_end_offset, subjects, **more)
    log.append(batch)
    state.fetched([parse_batch(batch)])


def commit(log: Log, state: LogState, high_watermark: int) -> None:
    log.raise_high_watermark(high_watermark)
    state.committed(high_watermark)


def test_subject_index_of_the_documented_example_returns_the_documented_offsets() -> None:
    log = a_log()
    state = a_state(log)
    for subject in ("s.a", "s.b", "s.a"):
        append(log, state, [subject])
    commit(log, state, 1)
    assert (state.subjects.state, len(state.subjects)) == ("off", 0), "nobody has asked"
    assert [state.last_of(f"s.{name}") for name in "abc"] == [2, 1, -1]
    assert state.subjects.state == "ready"
    append(log, state, ["s.b"])
    assert state.last_of("s.b") == 3
    log.truncate_to(3)
    state.log_was_truncated()
    assert [state.last_of(f"s.{name}") for name in "abc"] == [2, 1, -1]
    log.truncate_to(2)
    state.log_was_truncated()
    assert state.subjects.state == "reading", "below where it was read backwards from"
    while not state.index_backwards():
        pass
    assert [state.last_of(f"s.{name}") for name in "abc"] == [0, 1, -1]


def test_subject_index_of_a_follower_starts_at_the_first_conditional_record() -> None:
    log = a_log()
    state = a_state(log)
    told = []
    state.on_lacking = lambda: told.append(1)
    append(log, state, ["s.a", "s.b"])
    append(log, state, ["s.c", "s.d"])
    assert state.subjects.state == "off"
    append(log, state, ["s.c", "s.d"], asks=True)
    assert (state.subjects.state, told) == ("reading", [1])
    assert state.index_backwards()
    assert [state.last_of(f"s.{name}") for name in "abcd"] == [0, 1, 4, 5]


def test_subject_index_of_a_stream_with_one_subject_stays_off() -> None:
    log = a_log()
    state = a_state(log, subject="s")
    assert state.last_of("s") == -1
    append(log, state, ["s", "s"], asks=True)
    assert (state.last_of("s"), state.last_of("t")) == (1, -1)
    assert state.last_of_matching("*") == 1
    assert state.last_of_matching("t.*") == -1
    assert (state.subjects.state, len(state.subjects)) == ("off", 0)
    log.reset(9)
    state.log_was_truncated()
    assert state.last_of("s") == -1, "the log is empty"


def test_subject_index_above_its_limit_is_full_until_retention_deletes_subjects() -> None:
    log = a_log()
    state = a_state(log, room=12_288)
    for number in range(60):
        append(log, state, [f"s.{number}"])
    commit(log, state, 59)
    state.last_of("s.0")
    while not state.index_backwards():
        pass
    assert state.subjects.state == "ready"
    for number in range(60, 100):
        append(log, state, [f"s.{number}"])
        commit(log, state, number)
    assert state.subjects.is_full
    assert (state.subjects.state, state.subjects.size_bytes, state.last_of("s.99")) == ("full", 0, None)
    log.drop_prefix(30)
    assert state.subjects.is_full, "half of them are still there"
    append(log, state, ["s.99"])
    assert state.subjects.size_bytes == 0
    log.drop_prefix(90)
    assert not state.subjects.is_full
    assert state.last_of("s.99") == 100
    while not state.index_backwards():
        pass
    assert (state.last_of("s.1"), state.last_of("s.99")) == (-1, 100)
    assert state.subjects.state == "ready"
    many = a_log()
    other = a_state(many, room=16_384)
    for number in range(1000):
        append(many, other, [f"s.{number}"])
    other.last_of("s.0")
    while not other.index_backwards():
        pass
    assert other.subjects.is_full, "met while reading backwards"
    swept = a_log()
    third = a_state(swept, room=16_384)
    third.last_of("s.0")
    for number in range(300):
        append(swept, third, [f"s.{number}"])
        commit(swept, third, number)
        swept.drop_prefix(number - 40)
        assert third.subjects.size_bytes <= 16_384
    assert third.subjects.state == "ready", "what retention has taken makes room"


def test_subject_index_without_subjects_is_full_while_the_node_has_no_memory() -> None:
    log = a_log()
    node = NodeStateMemory(bound_bytes=1000)
    state = LogState(log, 1, 1 << 20, lambda: 0, subject="s.>", node=node)
    assert state.last_of("s.a") == -1
    node.size_bytes += 1000  # of other partitions
    filler = build_filler(0, 9, 1, 1)
    log.append(filler)
    state.fetched([parse_batch(filler)])
    assert (state.subjects.state, state.subjects.size_bytes) == ("full", 0)
    node.size_bytes -= 1000
    assert state.last_of("s.a") == -1


def test_subject_index_requested_before_the_replay_becomes_ready_when_the_replay_starts() -> None:
    made = LastPerSubject(False, ROOM, empty_log())
    made.want(None)
    assert (made.state, made.lacks, made.find("s")) == ("reading", False, None)
    made.begin(0)
    assert (made.state, made.find("s")) == ("ready", -1)


def test_subject_index_backward_read_of_a_damaged_log_raises_corruption() -> None:
    log = a_log()
    state = a_state(log)
    for number in range(200):
        append(log, state, [f"s.{number}"])

    def damaged(*_: Any, **__: Any) -> Any:
        raise CorruptionError("x")

    log.read = damaged  # type: ignore[method-assign]
    assert state.last_of("s.0") is None
    with pytest.raises(CorruptionError):
        state.index_backwards()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_newest_offsets_of_a_batch_are_returned_per_subject(codec: Codec) -> None:
    batch = a_batch(5, ["s.a", "s.b", "s.a", "s.c"], codec=codec)
    assert last_of_each(batch) == last_of_each(parse_batch(batch)) == {"s.a": 7, "s.b": 6, "s.c": 8}
    assert last_of_each(a_batch(5, ["s.a"] * 3, codec=codec)) == {"s.a": 7}
    assert last_of_each(a_batch(5, ["s.a", "s.b", "s.a"], codec=codec, offset_deltas=[2, 5, 9])) == {"s.a": 14, "s.b": 10}
    assert last_of_each(a_batch(5, ["s.a", "s.a"], codec=codec, offset_deltas=[2, 5])) == {"s.a": 10}
    assert last_of_each(build_filler(0, 9, 1, 1)) == {}
    assert last_of_each(build_batch([b"v"], base_offset=0, leader_epoch=1, timestamp_ns=1)) == {}
    assert last_of_each(a_batch(0, ["s.\udcff"], codec=codec)) == {"s.\udcff": 0}
    assert headers_of(parse_batch(a_batch(0, ["s.a", "s.b"], asks=True, codec=codec))) == ({}, True)
    assert headers_of(parse_batch(batch)) == ({}, False)


@pytest.mark.parametrize(("per_batch", "size"), [(1, 4), (1, 60), (500, 40)])
def test_subject_index_size_bytes_are_at_least_the_memory_used(per_batch: int, size: int) -> None:
    count = 20_000 if per_batch > 1 else 1_500
    for committed in (True, False):
        made = LastPerSubject(False, 1 << 30, empty_log())
        made.begin(0)
        made.want(0)
        batches = []
        for base in range(0, count, per_batch):
            stored = a_batch(base, [f"{i:0{size}}" for i in range(base, base + per_batch)], value=b"")
            batches.append(NewBatch(base, base + per_batch - 1, 1, per_batch, {}, None, stored))
        tracemalloc.start()
        for batch in batches:
            made.add_batch(batch)
            if committed:
                made.committed(batch.last_offset)
        # Only what the module allocates: threads of other tests in this process allocate as well.
        of_module = tracemalloc.Filter(True, last_per_subject.__file__)
        used = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([of_module]).traces)
        tracemalloc.stop()
        assert used <= made.size_bytes <= 3 * used, (committed, used / count, made.size_bytes / count)


# ---- against a model that keeps everything -------------------------------------------------------------------------------

NAMES = ["s.a", "s.b", "s.c", "s.b.x"]
FILTERS = ["s.*", "s.b.*", "*.b.>", ">"]
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), st.booleans()),
    st.tuples(st.just("commit"), st.integers(0, 3)),
    st.tuples(st.just("cut"), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.integers(0, 3)),
    st.tuples(st.just("ask"), st.sampled_from(NAMES)),
    st.tuples(st.just("look")),
    st.tuples(st.just("reopen")),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_subject_index_after_random_operations_equals_a_scan_of_the_log(steps: list[tuple[object, ...]]) -> None:
    log = a_log()
    state, ends, stored = a_state(log), [0], list[str]()
    for step in steps:
        match step:
            case ("append", list(subjects), bool(asks)):
                append(log, state, subjects, asks=asks)
                stored += subjects
                ends.append(len(stored))
            case ("commit", int(back)) if len(ends) > 1:
                high_watermark = ends[max(len(ends) - 1 - back, 0)] - 1
                if high_watermark > log.high_watermark:
                    commit(log, state, high_watermark)
            case ("cut", int(back)) if len(ends) > 1:
                end = ends[max(len(ends) - 1 - back, 0)]
                if end > log.high_watermark and end > log.log_start_offset:
                    log.truncate_to(end)
                    state.log_was_truncated()
                    del ends[ends.index(end) + 1 :]
                    del stored[end:]
            case ("drop", int(back)) if len(ends) > 1:
                log.drop_prefix(min(ends[max(len(ends) - 1 - back, 0)], log.high_watermark + 1))
            case ("ask", str(name)):
                state.last_of(name)
            case ("look",):
                state.index_backwards(1)
            case ("reopen",):
                state = a_state(log)
            case _:
                continue
        while not state.is_complete:
            state.replay(1000)
        if state.subjects.wanted:
            for name in NAMES:
                true = max((i for i, s in enumerate(stored) if s == name and i >= log.log_start_offset), default=-1)
                known = state.last_of(name)
                assert known == true or (known is None and state.subjects.lacks), (name, known, true)
            for wanted in FILTERS:
                fitting = [state.last_of(name) for name in NAMES if matcher(wanted)(name)]
                last = None if state.subjects.lacks else max(offset for offset in fitting if offset is not None)
                assert state.last_of_matching(wanted) == last, wanted
