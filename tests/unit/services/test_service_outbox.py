"""Test the outbox: output n is stored at offset n by any sender, the memory is bounded, and outputs are compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liftpy.core.services.outbox import MAX_SAMPLES, Output, OutputMismatchError
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import OUTPUT_DIGEST, OUTPUT_ID, OUTPUT_NUMBER, OUTPUT_SERVICE
from liftpy.service import DivergedError, Outbox, OutputConflictError


def output(number: int, value: bytes = b"v") -> Output:
    return Output(number, 10 + number, 0, value, None, ())


def written(number: int, *, value: bytes = b"v", source: str = "u/0", said: int | None = None, **more: bytes) -> Record:
    """Output ``number`` as it was written by a version without digests, or with ``digest`` and ``service``."""
    headers = [
        (OUTPUT_ID, f"{source}/{10 + number}/0".encode()),
        (OUTPUT_NUMBER, b"%d" % (number if said is None else said)),
    ]
    headers += [({"digest": OUTPUT_DIGEST, "service": OUTPUT_SERVICE}[name], content) for name, content in more.items()]
    return Record(number, 0, None, value, tuple(headers), "", None, 1)


def as_written(outbox: Outbox, kept: Output) -> Record:
    return Record(kept.number, 0, kept.key, kept.value, tuple(outbox.headers_of(kept)), "", None, 1)


def stream_of(count: int, value: Callable[[int], bytes] = lambda _: b"v", **settings: str) -> list[Record]:
    """Return the records of ``count`` outputs that a leader has written."""
    outbox = Outbox("u/0", **settings)  # type: ignore[arg-type]
    for number in range(count):
        outbox.add(output(number, value(number)))
    return [as_written(outbox, kept) for kept in outbox.read(0, count)]


def filled(count: int, **bounds: int) -> Outbox:
    outbox = Outbox("u/0", **bounds)
    outbox.known = True
    for number in range(count):
        outbox.add(output(number))
    return outbox


def numbers(outputs: list[Output]) -> list[int]:
    return [o.number for o in outputs]


def test_service_outbox_drops_written_outputs_and_returns_the_others_in_order() -> None:
    outbox = filled(10)
    outbox.outputs_committed(4)
    assert numbers(outbox.read(4, 3)) == [4, 5, 6]
    assert numbers(outbox.read(8, 30)) == [8, 9]
    assert outbox.read(2, 3) == []
    assert outbox.read(99, 3) == []


def test_service_outbox_at_its_limits_is_full_and_trim_drops_the_oldest() -> None:
    outbox = filled(3, max_records=4)
    assert not outbox.full
    outbox.add(output(3))
    outbox.add(output(4))
    assert outbox.full
    assert not outbox.must_rewind
    outbox.trim()
    assert (outbox.oldest_number, outbox.must_rewind) == (1, True)
    outbox.outputs_committed(1)
    assert not outbox.must_rewind
    assert filled(3, max_bytes=200).full


@pytest.mark.parametrize(
    "foreign",
    [
        Record(0, 0, None, b"v", (), "", None, 1),
        written(0, source="u/1"),
        written(0, source="u"),
        written(0, said=1),
    ],
)
def test_service_outbox_with_a_foreign_record_raises_output_conflict(foreign: Record) -> None:
    with pytest.raises(OutputConflictError):
        filled(3).check_output(foreign)


def test_service_outbox_compares_outputs_that_were_read_before_they_are_produced() -> None:
    outbox = Outbox("u/0")
    for record in stream_of(2, lambda number: b"v" if number == 0 else b"theirs"):
        outbox.check_output(record)
    outbox.add(output(0))
    assert (outbox.diverged, outbox.compared_end) == ("", 1)
    outbox.add(output(1, b"ours"))
    assert "output 1, or one before it, differs" in outbox.diverged
    assert (outbox.compared_end, outbox.read(1, 9)) == (1, [])


def digest_of(record: Record) -> bytes:
    return bytes.fromhex(dict(record.headers)[OUTPUT_DIGEST].decode())


@pytest.mark.parametrize("what", ["value", "key", "header", "number of headers", "an earlier one"])
def test_service_outbox_with_any_difference_in_an_output_raises_diverged(what: str) -> None:
    stream = stream_of(4, lambda number: b"other" if (what, number) == ("an earlier one", 1) else b"v")
    outbox = Outbox("u/0")
    last = {
        "value": output(3, b"other"),
        "key": Output(3, 13, 0, b"v", b"", ()),  # an empty key is not "no key"
        "header": Output(3, 13, 0, b"v", None, (("a", b"1"),)),
        "number of headers": Output(3, 13, 0, b"v", None, (("a", b""), ("b", b""))),
        "an earlier one": output(3),
    }[what]
    for number in range(3):
        outbox.add(output(number))
    outbox.add(last)
    outbox.outputs_committed(3)  # so that only the last one is looked at
    with pytest.raises(DivergedError):
        outbox.check_output(stream[3])
    assert outbox.compared_end == 0


def test_service_outbox_of_a_lagging_follower_detects_a_different_output_with_few_digests() -> None:
    total = 20 * MAX_SAMPLES
    for wrong in (None, 3, total // 2, total - 1):
        outbox = Outbox("u/0", max_records=10)
        for record in stream_of(total):
            outbox.check_output(record)
        for number in range(total):
            outbox.add(output(number, b"other" if number == wrong else b"v"))
            outbox.trim()
        assert bool(outbox.diverged) == (wrong is not None), wrong
        assert outbox.compared_end == total if wrong is None else outbox.compared_end <= wrong


def test_service_outbox_verifies_the_outputs_of_a_snapshot_with_one_record() -> None:
    stream = stream_of(8)
    right, wrong = Outbox("u/0"), Outbox("u/0")
    right.restart(5, digest_of(stream[4]))
    wrong.restart(5, digest_of(stream_of(8, lambda number: b"w" if number == 2 else b"v")[4]))
    for outbox in (right, wrong):
        assert [outbox.proof_at(*bounds) for bounds in ((0, 8), (4, 5), (5, 8), (0, 4))] == [4, 4, None, None]
    right.prove(stream[4])
    assert (right.proof_at(0, 8), right.compared_end) == (None, 5)
    with pytest.raises(OutputMismatchError):
        wrong.prove(stream[4])
    assert wrong.proof_at(0, 8) == 4
    # Retention has dropped that record: the first one that is still there proves as much.
    wrong.starts_at(6, 8)
    for record in stream[6:]:
        wrong.check_output(record)
    wrong.add(output(5))
    assert not wrong.diverged
    wrong.add(output(6))
    assert wrong.diverged


def test_service_outbox_restored_ahead_of_written_outputs_compares_outputs_when_they_are_read() -> None:
    stream = stream_of(8)
    outbox = Outbox("u/0")
    outbox.restart(5, b"\1" * 16)
    outbox.starts_at(0, 3)
    for record in stream[3:4]:
        outbox.check_output(record)
    with pytest.raises(OutputMismatchError):
        outbox.check_output(stream[4])


@pytest.mark.parametrize("has_led", [False, True])
def test_service_outbox_with_an_output_of_another_history_raises_diverged(has_led: bool) -> None:
    ours, theirs = stream_of(4), stream_of(4, lambda number: b"w" if number == 0 else b"v")
    outbox = Outbox("u/0")
    if has_led:
        outbox.add(output(0))
        outbox.wrote(*outbox.read(0, 1))
    else:
        outbox.check_output(ours[0])
    with pytest.raises(DivergedError, match="differs from the stored output"):
        outbox.check_output(theirs[1])


def test_service_outbox_with_an_output_of_another_service_raises_output_conflict() -> None:
    outbox = Outbox("u/0", service="bank")
    outbox.check_output(stream_of(1, service="bank")[0])
    with pytest.raises(OutputConflictError, match="of the output stream was written by service"):
        outbox.check_output(stream_of(2, service="audit")[1])


def test_service_outbox_requests_no_rewind_before_the_output_stream_end_is_known() -> None:
    outbox = Outbox("u/0")
    outbox.restart(10, b"\1" * 16)
    assert not outbox.must_rewind
    outbox.starts_at(0, 10)
    outbox.known = True
    assert not outbox.must_rewind
    outbox.outputs_lost(9)  # the output stream was cut
    assert (outbox.must_rewind, outbox.emitted_end) == (True, 9)


@pytest.mark.parametrize("digest", [b"zz", b"ab", b"\xff", b"00" * 17])
def test_service_outbox_with_an_unreadable_digest_raises_output_conflict(digest: bytes) -> None:
    with pytest.raises(OutputConflictError, match="digest"):
        filled(3).check_output(written(0, digest=digest))


def test_service_outbox_compares_outputs_without_digest_by_content() -> None:
    outbox = filled(3)
    outbox.check_output(written(0))
    outbox.check_output(written(1))
    assert outbox.compared_end == 2
    with pytest.raises(DivergedError):
        outbox.check_output(written(2, value=b"other"))


def test_service_outbox_of_a_leader_after_a_rewind_sends_no_output_that_differs_from_the_stream() -> None:
    outbox = filled(20, max_records=5)
    outbox.trim()
    for record in stream_of(12):
        outbox.check_output(record)
    assert outbox.must_rewind
    outbox.restart(10, digest_of(stream_of(10)[-1]))
    for number in range(10, 14):
        outbox.add(output(number, b"other" if number == 10 else b"v"))
    assert outbox.diverged
    assert outbox.read(12, 9) == []


def test_service_outbox_after_an_output_stream_truncation_drops_later_digests() -> None:
    outbox = Outbox("u/0")
    for record in stream_of(8, lambda number: b"v" if number < 5 else b"w"):
        outbox.check_output(record)
    outbox.outputs_lost(5)
    for number in range(8):
        outbox.add(output(number))
    assert (outbox.diverged, outbox.compared_end) == ("", 5)
    outbox.check_output(stream_of(8)[5])  # written again, by the successor of what is left
    outbox.outputs_lost(4)
    assert outbox.compared_end == 4


def test_service_outbox_keeps_a_bounded_number_of_digest_samples_with_the_newest() -> None:
    outbox = Outbox("u/0")
    for number, record in enumerate(stream_of(3 * MAX_SAMPLES)):
        outbox.check_output(record)
        assert len(outbox._samples) <= MAX_SAMPLES
        assert number in outbox._samples


def test_service_outbox_after_a_log_truncation_drops_compared_digests() -> None:
    outbox = filled(3)
    for number in range(3):
        outbox.wrote(outbox.read(number, 1)[0])
    outbox.compare_again()
    outbox.restart(0)
    for number in range(3):  # the records of the new log give other outputs
        outbox.add(output(number, b"w"))
    assert outbox.diverged == "", "the digest that was known belongs to records that are gone"
    outbox.restart(2, b"d" * 16)
    outbox.add(output(2))
    assert outbox.diverged == ""
