"""Test fragments of a batch: they are assembled in order, others are dropped, and the size is bounded [D16]."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import read_portion
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.replication.fetch_assembly import FetchAssembly
from liftpy.core.replication.messages import FetchRequest
from liftpy.core.wire.batch import parse_batch, parse_header
from liftpy.core.wire.chunking import NOTHING, Assembly, PartialBatch, Piece
from liftpy.errors import CorruptionError, ProtocolError
from tests.batches import build_batch
from tests.long import examples


def log_of(*values: bytes) -> Log:
    log, _ = Log.open(MemoryStorage(), StreamConfig())
    for value in values:
        log.append(build_batch([value], base_offset=log.log_end_offset, leader_epoch=1))
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def pieces_of(batch: bytes, size: int) -> list[Piece]:
    crc = parse_header(memoryview(batch)).crc
    return [Piece(crc, len(batch), at, memoryview(batch)[at : at + size]) for at in range(0, len(batch), size)]


def test_batch_fragments_in_order_are_assembled_to_the_batch() -> None:
    batch = build_batch([b"x" * 300])
    for order in permutations(pieces_of(batch, 100)):
        assembly = Assembly()
        for piece in order:
            whole = assembly.add_piece(piece)
            assert whole is None or bytes(whole) == batch
            assert whole is None or assembly.held == NOTHING
    assembly = Assembly()
    found = [assembly.add_piece(piece) for piece in pieces_of(batch, 100) for _ in range(2)]
    assert [bytes(whole) for whole in found if whole is not None] == [batch]


def test_batch_assembly_drops_fragments_of_another_batch_until_a_first_fragment() -> None:
    mine, other = pieces_of(build_batch([b"x" * 300]), 100), pieces_of(build_batch([b"y" * 300]), 100)
    assembly = Assembly()
    assembly.add_piece(mine[0])
    assert assembly.add_piece(other[1]) is None
    assert assembly.held == PartialBatch(100, mine[0].crc)
    assembly.add_piece(other[0])
    assert assembly.held == PartialBatch(100, other[0].crc)
    assert assembly.add_piece(mine[1]) is None
    assembly.forget()
    assert assembly.held == NOTHING
    assert assembly.add_piece(other[1]) is None


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_batch_assembly_of_fragments_in_any_order_returns_only_whole_batches(arrivals: list[tuple[int, int]]) -> None:
    batches = [build_batch([b"x" * 300]), build_batch([b"y" * 350])]
    pieces = [pieces_of(batch, 100) for batch in batches]
    assembly = Assembly()
    for which, number in arrivals:
        whole = assembly.add_piece(pieces[which][number % len(pieces[which])])
        assert whole is None or bytes(whole) in batches
        assert assembly.held.position <= 400 + 64


@pytest.mark.parametrize(
    ("crc", "total", "position", "data"),
    [(0, (64 << 20) + 1, 0, b"x"), (0, 10, 8, b"xyz"), (0, 10, 10, b""), (0, 10, 0, b""), (1 << 32, 10, 0, b"x")],
)
def test_invalid_batch_fragment_is_rejected(crc: int, total: int, position: int, data: bytes) -> None:
    with pytest.raises(ProtocolError, match="of a"):
        Piece(crc, total, position, memoryview(data))


def test_batch_fragments_with_a_wrong_crc_are_detected() -> None:
    batch = build_batch([b"x" * 300])
    assembly = Assembly()
    *first, last = pieces_of(batch, 100)
    for piece in first:
        assembly.add_piece(piece)
    whole = assembly.add_piece(Piece(last.crc, last.total_bytes, last.position, memoryview(bytes(len(last.data)))))
    assert whole is not None
    with pytest.raises(CorruptionError, match="CRC"):
        parse_batch(whole)


def test_fragment_read_restarts_at_position_zero_if_the_received_fragments_are_of_another_batch() -> None:
    log = log_of(b"a" * 500, b"b" * 500)
    first = read_portion(log, 1, 100, 100)
    assert first.piece is not None
    held = PartialBatch(100, first.piece.crc)
    second = read_portion(log, 1, 100, 100, held=held)
    assert second.piece is not None
    assert (second.piece.position, second.next_offset) == (100, 1)
    other = read_portion(log, 0, 100, 100, held=held)
    assert other.piece is not None
    assert other.piece.position == 0
    beyond = read_portion(log, 1, 100, 100, held=PartialBatch(10_000, first.piece.crc))
    assert beyond.piece is not None
    assert beyond.piece.position == 0
    assert read_portion(log, 1, 100, 1000, held=NOTHING).piece is None


def test_fragment_read_returns_no_batch_beyond_the_readable_end() -> None:
    log = log_of(b"a" * 500)
    log.append(build_batch([b"b" * 500], base_offset=1, leader_epoch=1))
    crc = parse_header(log.read(1, 1, end_offset=2).chunks[0]).crc
    portion = read_portion(log, 1, 100, 100, end_offset=1, held=PartialBatch(64, crc))
    assert portion.chunks == ()


def test_follower_restarts_a_fragmented_batch_after_damage_or_at_another_epoch_or_offset() -> None:
    def fetch(request_id: int, offset: int, epoch: int, bad_offset: int | None = None) -> FetchRequest:
        return FetchRequest(
            replica="n2",
            offset=offset,
            leader_epoch=epoch,
            offset_epoch=1,
            incarnation=1,
            request_id=request_id,
            max_bytes=1 << 20,
            stream_uid="u1",
            bad_offset=bad_offset,
        )

    (first, *_) = pieces_of(build_batch([b"x" * 300]), 100)
    for after, holds in (
        (fetch(2, 5, 1), True),
        (fetch(2, 6, 1), False),
        (fetch(2, 5, 2), False),
        (fetch(2, 5, 1, 6), False),
    ):
        assembly = FetchAssembly()
        assert assembly.fetch_sent(fetch(1, 5, 1)) == NOTHING
        assembly.add_piece(first)
        assert (assembly.fetch_sent(after).position > 0) is holds
        assert assembly.is_newest_request(2)
        assert not assembly.is_newest_request(1)
