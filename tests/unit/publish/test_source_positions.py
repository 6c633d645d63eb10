"""Test the source positions of producers and the names that identify them."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass, field

import pytest

from liftpy.client.write_epoch import offset_in
from liftpy.core.publish.log_state import _new_batch_of
from liftpy.core.publish.producer_state import (
    STATE_BYTES,
    Claim,
    Finding,
    ProducerGrant,
    ProducerRegistry,
    ProducerRequest,
    Producers,
)
from liftpy.core.wire.batch import RecordBatch, parse_batch
from liftpy.core.wire.filters import keep_records as kept_of
from liftpy.core.wire.producer_note import ProducerNote, SourcePosition
from liftpy.errors import CorruptionError
from tests.batches import build_batch

P = 7


def at(offset: int, generation: int = 0, uid: str = "u", partition: int = 0) -> SourcePosition:
    return SourcePosition(uid, partition, offset, generation)


def a_batch(
    count: int = 1, *, base: int = 0, epoch: int = 0, sequence: int = 0, name: str = "", position: SourcePosition | None = None
) -> RecordBatch:
    note = ProducerNote(name, position)
    return parse_batch(
        build_batch(
            [b"v"] * count,
            keys=[b"%d" % n for n in range(count)],
            base_offset=base,
            producer_id=P,
            producer_epoch=epoch,
            base_sequence=sequence,
            note=note.encode() if any(note) else b"",
        )
    )


@dataclass
class Bench:
    producers: Producers = field(default_factory=lambda: Producers(0, 10))
    end: int = 0

    def __post_init__(self) -> None:
        self.registry = ProducerRegistry(self.producers)

    def publish(
        self,
        sequence: int,
        position: SourcePosition | None = None,
        *,
        epoch: int = 0,
        name: str = "",
        reset: bool = False,
    ) -> None:
        batch = a_batch(base=self.end, epoch=epoch, sequence=sequence, name=name, position=position)
        claim = Claim(P, epoch, sequence, 1, reset, None, 1, name, position)
        assert self.producers.check_batch(claim, batch.columns).finding is Finding.APPEND
        self.producers.add_batch(_new_batch_of(batch))
        self.end += 1

    @property
    def state(self) -> tuple[str, SourcePosition | None]:
        state = self.producers.state_of(P)
        assert state is not None
        return state.name, state.position


def test_producer_query_with_another_plan_for_a_stored_spark_round_gets_plan_changed() -> None:
    """[A19]"""

    def asked(producers: Producers, plan: int, generation: int = 5) -> ProducerGrant | Finding:
        position = at(offset_in(0, 0, plan), generation, partition=3)
        return ProducerRegistry(producers).ask(ProducerRequest(P + 1, 2, 0, "other", position))

    def again(producers: Producers, end_offset: int) -> Producers:
        made = Producers(0, 10)
        made.restore(b"".join(producers.snapshot()()), end_offset)
        return made

    bench = Bench()
    bench.publish(0, at(offset_in(2, 0, 7), 5))
    bench.producers.committed(0)
    assert asked(again(bench.producers, 1), 8) is Finding.PLAN_CHANGED
    assert isinstance(asked(again(bench.producers, 1), 7), ProducerGrant)
    bench.publish(0, at(offset_in(2, 0, 8), 6), epoch=1, reset=True)  # another round
    assert (asked(bench.producers, 7, 6), isinstance(asked(bench.producers, 8), ProducerGrant)) == (Finding.PLAN_CHANGED, True)
    bench.producers.truncate(1)
    assert isinstance(asked(bench.producers, 7, 6), ProducerGrant)
    assert asked(bench.producers, 8) is Finding.PLAN_CHANGED


def test_producer_names_and_source_positions_survive_checkpoint_truncation_and_compaction() -> None:
    bench = Bench()
    bench.publish(0, at(4, 1 << 40, "\u00fc" * 30, 99), name="me")
    bench.producers.committed(0)
    bench.publish(1, at(9, 1 << 40, "\u00fc" * 30, 99))
    again = Producers(0, 10)
    again.restore(b"".join(bench.producers.snapshot()()), 1)
    known = again.state_of(P)
    assert known is not None
    assert (known.name, known.position) == ("me", at(4, 1 << 40, "\u00fc" * 30, 99))
    assert bench.state == ("me", at(9, 1 << 40, "\u00fc" * 30, 99))
    bench.producers.truncate(1)
    assert bench.state == ("me", at(4, 1 << 40, "\u00fc" * 30, 99))
    kept = parse_batch(kept_of(batch := a_batch(3, name="me", position=at(4)), batch.offsets() == 1))
    assert kept.record_count == 1
    told = _new_batch_of(kept).sequences
    assert told is not None
    assert (told.name, told.position, told.columns) == ("me", at(4), None)


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"x", lambda d: d[:5], lambda d: d[:-2] + b"\xff\xff",
                                    lambda d: d[:4] + b"\x02" + d[5:], lambda d: d[:12] + b"\xff" * 8 + d[20:]])  # fmt: skip
def test_producer_note_decoder_of_invalid_bytes_raises_corruption_error(change: object) -> None:
    good = ProducerNote("me", at(5, 6, "uid", 7)).encode()
    assert ProducerNote.decode(good) == ProducerNote("me", at(5, 6, "uid", 7))
    with pytest.raises(CorruptionError, match="note"):
        ProducerNote.decode(change(good))  # type: ignore[operator]


def test_producer_state_size_counts_long_names_and_uids() -> None:
    """Names of 255 bytes and uids count against the limit."""
    count = 60
    producers = Producers(0, count + 1)
    for producer in range(count + 1):
        if producer == 1:  # what is made once, for all, and what others have left, is not counted
            gc.collect()
            tracemalloc.start()
        for n in range(6):
            note = ProducerNote(f"{producer:0255}" if not n else "", at(n, n, f"{producer:036}"))
            data = build_batch(
                [b"v"], base_offset=producer * 6 + n, producer_id=producer + 1, base_sequence=n, note=note.encode()
            )
            producers.add_batch(_new_batch_of(parse_batch(data)))
            producers.committed(producer * 6 + n)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    del producers
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (before - after) / count < STATE_BYTES
