"""Test the memory limit of partial batches of followers: one batch is always accepted."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import effects as do
from liftpy.core.wire import frames
from liftpy.core.wire.batch import build_batch
from liftpy.core.wire.chunking import Piece
from liftpy.core.wire.subjects import Subjects
from sidecar.partition.replication import ASSEMBLING_BYTES, AnswerRouter, FetchClient


def router(answers: list[int]) -> tuple[AnswerRouter, Any]:
    sinks: list[Any] = []
    bus: Any = SimpleNamespace(inbox="_INBOX.n", listen=lambda subject, sink: sinks.append(sink))
    made = AnswerRouter(bus)
    made.add(lambda request_id, payload, headers: answers.append(request_id))
    return made, sinks[0]


def test_response_router_at_its_reassembly_limit_starts_no_further_batch_but_continues_started_ones() -> None:
    made, _ = router([])
    large = 60 << 20
    for slot in range(1, 5):
        assert made.reserve(slot, large)
    assert made.fragment_reassembly_bytes == 4 * large <= ASSEMBLING_BYTES
    assert not made.reserve(5, large)
    assert all(made.reserve(slot, large) for slot in range(1, 5))
    made.release(1)
    assert made.reserve(5, large)


def test_response_router_ignores_a_response_with_an_invalid_request_id() -> None:
    answers: list[int] = []
    _, arrived = router(answers)
    for text in (b"7", b"9" * 5000, b"", b"x"):
        arrived(b"_INBOX.n.1." + text, b"", b"", b"")
    assert answers == [7]


def test_fetch_client_reports_the_received_bytes_of_a_partial_batch() -> None:
    bus: Any = SimpleNamespace(inbox="_INBOX.n", max_payload=1 << 20, listen=lambda *_: None, send=lambda *_: True)
    client = FetchClient(AnswerRouter(bus), Subjects("liftpy"), PartitionKey("s", "u1", 0), "n2", lambda event: None, Counter())
    client.send_fetch(do.SendFetch(request_id=1, leader="n1", offset=-1, offset_epoch=0, leader_epoch=1, max_bytes=1 << 20), 1)
    assert client.fragment_reassembly_bytes == 0
    batch = memoryview(build_batch([b"v" * 5000], base_offset=0, leader_epoch=1, timestamp_ns=1))
    for position, held in ((0, 3000), (3000, 0)):
        piece = Piece(7, len(batch), position, batch[position : position + 3000])
        client._answer_arrived(1, frames.replication_piece_header(1, -1, piece) + bytes(piece.data), b"")
        assert client.fragment_reassembly_bytes == held
