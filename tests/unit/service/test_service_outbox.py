"""The outbox: output n at offset n, whoever sends it; bounded; and compared with what was written."""

from __future__ import annotations

import random

import pytest

from liftpy.service import DivergedError, Outbox, OutputConflictError
from liftpy.service.outbox import ID_HEADER, NUMBER_HEADER, Output
from liftpy.wire.batch import Record


def output(number: int, value: bytes = b"v") -> Output:
    return Output(number, 10 + number, 0, value, None, ())


def written(number: int, *, value: bytes = b"v", source: str = "u/0", said: int | None = None) -> Record:
    headers = (
        (ID_HEADER, f"{source}/{10 + number}/0".encode()),
        (NUMBER_HEADER, b"%d" % (number if said is None else said)),
    )
    return Record(number, 0, None, value, headers, "", None, 1)


def filled(count: int, **bounds: int) -> Outbox:
    outbox = Outbox("u/0", **bounds)
    for number in range(count):
        outbox.add(output(number))
    return outbox


def numbers(outputs: list[Output]) -> list[int]:
    return [o.number for o in outputs]


def test_what_is_written_is_dropped_and_the_rest_is_taken_in_order() -> None:
    outbox = filled(10)
    outbox.written(4)
    assert numbers(outbox.take(4, 3)) == [4, 5, 6]
    assert numbers(outbox.take(8, 30)) == [8, 9]
    assert outbox.take(2, 3) == []
    assert outbox.take(99, 3) == []


def test_a_leader_is_full_at_the_bounds_and_a_follower_drops_the_oldest_and_must_rewind() -> None:
    outbox = filled(3, max_records=4)
    assert not outbox.full
    outbox.add(output(3))
    outbox.add(output(4))
    assert outbox.full
    assert not outbox.must_rewind
    outbox.trim()
    assert (outbox.first_kept, outbox.must_rewind) == (1, True)
    outbox.written(1)
    assert not outbox.must_rewind
    assert filled(3, max_bytes=200).full


def test_outputs_that_were_written_before_they_were_produced_are_not_kept() -> None:
    outbox = Outbox("u/0")
    outbox.written(3)
    for number in range(5):
        outbox.add(output(number))
    assert numbers(outbox.take(3, 9)) == [3, 4]
    outbox.restart(2)
    assert (outbox.output_count, outbox.emitted_end, outbox.must_rewind) == (2, 3, False)
    outbox.restart(5)
    assert outbox.must_rewind  # a snapshot after outputs 3 and 4, which nobody has written


def test_learning_counts_as_written_and_compares() -> None:
    outbox = filled(3)
    outbox.learned(written(0))
    assert (outbox.emitted_end, outbox.first_kept) == (1, 1)
    with pytest.raises(DivergedError):
        outbox.learned(written(1, value=b"other"))


@pytest.mark.parametrize(
    "foreign",
    [
        Record(0, 0, None, b"v", (), "", None, 1),
        written(0, source="u/1"),
        written(0, source="u"),
        written(0, said=1),
        written(1),
    ],
)
def test_a_foreign_record_in_the_output_stream_is_told(foreign: Record) -> None:
    with pytest.raises(OutputConflictError):
        filled(3).learned(foreign)


@pytest.mark.parametrize("seed", range(200))
def test_any_senders_in_any_order_write_every_output_once_in_order(seed: int) -> None:
    """The partition's leader appends what expects its log end, refuses the rest: old leaders, late and repeated messages."""
    rng = random.Random(seed)
    total, log, in_flight = 40, [], []
    senders = [filled(total) for _ in range(3)]
    for _ in range(20_000):
        sender = rng.choice(senders)
        match rng.randrange(4):
            case 0:  # believes to be LEADER, as far as it knows
                in_flight += [(o.number, o) for o in sender.take(sender.emitted_end, rng.randrange(1, 5))]
            case 1 if in_flight:  # some message arrives, perhaps twice
                expected, arrived = in_flight[rng.randrange(len(in_flight))]
                if expected == len(log):
                    log.append(arrived)
            case 2 if in_flight:  # some message is lost
                in_flight.pop(rng.randrange(len(in_flight)))
            case _:  # reads along
                for number in range(sender.emitted_end, len(log)):
                    sender.learned(written(number, value=log[number].value))
        if len(log) == total:
            break
    assert numbers(log) == list(range(total))


def test_outputs_read_before_they_are_produced_are_compared_when_they_are() -> None:
    outbox = Outbox("u/0")
    outbox.learned(written(0))
    outbox.learned(written(1, value=b"theirs"))
    outbox.add(output(0))
    assert outbox.diverged == ""
    outbox.add(output(1, b"ours"))
    assert "output 1 differs" in outbox.diverged


def test_after_a_cut_what_was_written_is_read_and_compared_again() -> None:
    outbox = filled(6)
    for number in range(5):
        outbox.learned(written(number))
    outbox.restart(2)
    outbox.compare_again()
    assert outbox.emitted_end == 2
    outbox.learned(written(2))
    outbox.add(output(2, b"of other records"))
    assert "output 2 differs" in outbox.diverged
