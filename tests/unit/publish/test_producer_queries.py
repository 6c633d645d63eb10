"""Test which producer gets which epoch, and which one is fenced."""

from __future__ import annotations

from liftpy.core.publish.digest import RollingDigest
from liftpy.core.publish.log_state_part import NewBatch, ProducerSequences
from liftpy.core.publish.producer_state import (
    STATE_BYTES,
    BatchCheck,
    Claim,
    Finding,
    ProducerGrant,
    ProducerRegistry,
    ProducerRequest,
    Producers,
    max_producers,
)
from liftpy.core.wire.batch import build_batch, parse_batch
from liftpy.core.wire.batch_columns import ColumnSet

P, OLD, NEW = 7, 1001, 1002
NOTHING = RollingDigest()


def columns_of(count: int = 1, value: bytes = b"v") -> ColumnSet:
    return parse_batch(build_batch([value] * count)).columns


class Bench:
    """A log of one value; ``send`` is a producer's batch with what its process says of those before it."""

    def __init__(self, max_count: int = 10) -> None:
        self.producers = Producers(0, max_count)
        self.registry = ProducerRegistry(self.producers)
        self.end = 0

    def send(self, epoch: int, sequence: int, instance: int, count: int = 1, producer: int = P, value: bytes = b"v") -> Finding:
        columns = columns_of(count, value)
        before = NOTHING.over(columns_of(sequence, value), 0, sequence) if sequence else NOTHING
        ruling = self.registry.judge(Claim(producer, epoch, sequence, count, False, before, instance), columns)
        if ruling.finding is Finding.APPEND:
            stamp = ProducerSequences(producer, epoch, sequence + ruling.known, columns, ruling.known)
            last = self.end + count - ruling.known - 1
            self.producers.add_batch(NewBatch(self.end, last, 1, last + 1 - self.end, {}, stamp))
            self.end = last + 1
        return ruling.finding

    def another_leader(self) -> None:
        self.registry = ProducerRegistry(self.producers)


def test_producer_that_has_not_queried_its_epoch_is_rejected_as_unknown() -> None:
    bench = Bench()
    assert bench.send(0, 0, OLD) is Finding.UNKNOWN
    assert bench.registry.ask(ProducerRequest(P, OLD)) == ProducerGrant(0, 0, NOTHING, False, -1)
    assert bench.send(0, 0, OLD) is Finding.APPEND
    assert bench.send(1, 1, NEW) is Finding.FENCED, "given to nobody, and another has asked since"
    bench.another_leader()
    assert bench.send(0, 1, OLD) is Finding.APPEND, "the log knows its epoch"
    assert bench.send(1, 2, NEW) is Finding.UNKNOWN


def test_producer_query_returns_the_stored_state_and_fences_the_old_instance() -> None:
    bench = Bench()
    bench.registry.ask(ProducerRequest(P, OLD))
    bench.send(0, 0, OLD, 3)
    digest = NOTHING.over(columns_of(3), 0, 3)
    assert bench.registry.ask(ProducerRequest(P, NEW)) == ProducerGrant(1, 3, digest, True, 2)
    assert bench.registry.ask(ProducerRequest(P, NEW)) == ProducerGrant(1, 3, digest, True, 2), (
        "asked twice, for the answer was lost"
    )
    assert bench.send(0, 3, OLD) is Finding.FENCED
    assert bench.send(0, 0, OLD, 3) is Finding.FENCED, "not even a duplicate is his any more"
    assert bench.send(1, 3, NEW) is Finding.APPEND
    assert bench.send(0, 3, OLD) is Finding.FENCED
    given = bench.registry.ask(ProducerRequest(P, NEW))
    assert given is not None
    assert given.epoch == 2, "its own epoch is in the log: another one"


def test_producer_query_by_a_second_instance_fences_the_first() -> None:
    bench = Bench()
    bench.registry.ask(ProducerRequest(P, OLD))
    given = bench.registry.ask(ProducerRequest(P, NEW))
    assert given is not None
    assert given.epoch == 1
    assert bench.send(0, 0, OLD) is Finding.FENCED
    assert bench.send(1, 0, NEW) is Finding.APPEND
    assert bench.send(0, 0, OLD) is Finding.FENCED


def test_producer_epoch_given_by_two_leaders_is_valid_for_the_last_instance_only() -> None:
    bench = Bench()
    bench.registry.ask(ProducerRequest(P, OLD))
    bench.another_leader()
    given = bench.registry.ask(ProducerRequest(P, NEW))
    assert given is not None
    assert given.epoch == 0
    assert bench.send(0, 0, OLD, value=b"old") is Finding.FENCED
    assert bench.send(0, 0, NEW, 4) is Finding.APPEND
    assert bench.send(0, 0, OLD, value=b"old") is Finding.FENCED
    bench.another_leader()
    assert bench.send(0, 0, OLD, value=b"old") is Finding.DIVERGED, "nobody remembers, but the log does"
    assert bench.send(0, 0, OLD, 6, value=b"old") is Finding.DIVERGED
    assert bench.send(0, 4, OLD, value=b"old") is Finding.DIVERGED
    assert bench.send(0, 4, NEW) is Finding.APPEND


def test_producer_epoch_of_a_former_leader_is_rejected_until_queried_from_the_new_leader() -> None:
    bench = Bench()
    bench.registry.ask(ProducerRequest(P, OLD))
    bench.another_leader()
    assert bench.send(0, 0, OLD) is Finding.UNKNOWN
    bench.registry.begin()
    bench.registry.ask(ProducerRequest(P, OLD))
    bench.registry.begin()
    assert bench.send(0, 0, OLD) is Finding.UNKNOWN, "the same node leads again"
    bench.registry.ask(ProducerRequest(P, OLD))
    assert bench.send(0, 0, OLD) is Finding.APPEND


def test_producer_evicted_from_memory_continues_at_its_sequence_after_a_query() -> None:
    bench = Bench()
    bench.registry.ask(ProducerRequest(P, OLD))
    bench.send(0, 0, OLD, 9)
    bench.producers.begin(None)
    assert bench.send(0, 9, OLD) is Finding.UNKNOWN, "the epoch is still his here; but which one is the first?"
    bench.another_leader()
    assert bench.send(0, 9, OLD) is Finding.UNKNOWN
    assert bench.registry.ask(ProducerRequest(P, OLD, 9)) == ProducerGrant(0, 9, None, False, -1)
    assert bench.send(0, 10, OLD) is Finding.UNKNOWN, "one before it is lost, or the leader is behind"
    assert bench.send(0, 9, OLD) is Finding.APPEND
    assert bench.send(0, 10, OLD) is Finding.APPEND


def test_producer_without_records_is_rejected_unless_it_starts_at_sequence_zero() -> None:
    bench = Bench()
    bench.registry.ask(ProducerRequest(P, OLD))
    assert bench.send(0, 3, OLD) is Finding.UNKNOWN, "the one before it may be lost"
    assert bench.send(0, 0, OLD, 3) is Finding.APPEND
    assert bench.send(0, 3, OLD) is Finding.APPEND


def test_producer_query_after_the_highest_epoch_returns_epoch_zero() -> None:
    bench = Bench()
    bench.producers.add_batch(NewBatch(0, 0, 1, 1, {}, ProducerSequences(P, 65_535, 0, columns_of())))
    assert [bench.registry.ask(ProducerRequest(P, who)).epoch for who in (OLD, NEW, OLD)] == [0, 1, 2]  # type: ignore[union-attr]
    assert bench.send(2, 1, OLD) is Finding.APPEND
    assert bench.send(65_535, 2, NEW) is Finding.FENCED


def test_producer_query_above_the_producer_limit_evicts_an_unused_producer_or_returns_full() -> None:
    bench = Bench(max_count=2)
    for producer in (1, 2, 3):
        bench.registry.ask(ProducerRequest(producer, OLD))
    assert len(bench.registry) == 2
    assert bench.send(0, 0, OLD, producer=1) is Finding.UNKNOWN, "forgotten: it asks again"
    assert bench.send(0, 0, OLD, producer=2) is Finding.APPEND
    assert bench.send(0, 0, OLD, producer=3) is Finding.APPEND
    assert bench.registry.ask(ProducerRequest(4, OLD)) is Finding.FULL
    assert bench.registry.ask(ProducerRequest(3, NEW)) is not Finding.FULL, "who is known needs no room"
    full = ProducerRegistry(Producers(0, 1))
    full.ask(ProducerRequest(1, OLD))
    full._producers.add_batch(NewBatch(0, 0, 1, 1, {}, ProducerSequences(2, 0, 0, columns_of())))
    assert full.judge(Claim(1, 0, 0, 1, False, None, OLD), columns_of()) == BatchCheck(Finding.FULL)
    assert (max_producers(10 * STATE_BYTES), max_producers(1)) == (10, 1)
