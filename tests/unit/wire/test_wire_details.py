"""Test envelopes with every flag, addresses, names, fragments of reads, subjects and permissions."""

from __future__ import annotations

from typing import Any

import crc32c
import pytest

from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2, replication_pb2
from liftpy.core.wire.chunking import Assembly, PartialBatch, Piece, room_bytes
from liftpy.core.wire.decode_errors import by_reason, counter_name
from liftpy.core.wire.envelope import ChecksumError, EnvelopeError, MessageType
from liftpy.core.wire.frames import MisdirectedError, address, check_answer_address, check_partition_address
from liftpy.core.wire.headers import pairs_of
from liftpy.core.wire.permissions import USES, AccessRole, Scope, partition_subjects, rights_of
from liftpy.core.wire.subjects import PARTITION_TOKENS, Subjects
from liftpy.errors import ConfigError, InvalidNameError, ProtocolError
from tests.each import each

ADDRESS = bytes(range(16))


def frame(flags: int, body: bytes, *, size: int | None = None, crc: bytes | None = None) -> bytes:
    """An envelope of type ACK whose header is as long as its flags need."""
    with_crc = bool(flags & 1)
    length = (12 if with_crc else 8) if size is None else size
    head = envelope.MAGIC + bytes((0, length, flags, MessageType.ACK))
    return head + ((crc32c.crc32c(body).to_bytes(4, "big") if crc is None else crc) if with_crc else b"") + body


def test_envelope_with_each_flag_is_decoded() -> None:
    assert envelope.decode_addressed(frame(0, b"body")) == (MessageType.ACK, b"", b"body")
    assert envelope.decode_addressed(frame(1, b"body")) == (MessageType.ACK, b"", b"body")
    assert envelope.decode_addressed(frame(3, ADDRESS + b"body")) == (MessageType.ACK, ADDRESS, b"body")
    assert envelope.decode_addressed(frame(3, ADDRESS)) == (MessageType.ACK, ADDRESS, b"")
    assert envelope.decode_addressed(frame(4, b"body")) == (MessageType.ACK, b"", b"body"), "a flag of a later version"
    assert envelope.decode_addressed(frame(0, b"later" + b"body", size=13)) == (MessageType.ACK, b"", b"body")
    assert envelope.checked_header(MessageType.ACK, b"he", (b"ad", b"er"), ADDRESS) + b"ader" == frame(3, ADDRESS + b"header")


@each(
    ("wrong", "error", "reason", "text"),
    [
        (
            frame(2, ADDRESS + b"body"),
            EnvelopeError,
            "envelope",
            "The envelope has an address, so it needs a CRC-32C and 16 bytes. Check the version of its sender.",
        ),
        (
            frame(3, ADDRESS[:-1]),
            EnvelopeError,
            "envelope",
            "The envelope has an address, so it needs a CRC-32C and 16 bytes. Check the version of its sender.",
        ),
        (
            frame(1, b"body", crc=b"none"),
            ChecksumError,
            "checksum",
            "The CRC-32C of the message does not match its payload. It was damaged on its way, or written by a faulty client.",
        ),
        (
            frame(1, b"body", size=8),
            EnvelopeError,
            "envelope",
            "The envelope has a CRC flag, but a header of 8 bytes instead of 12. Check the version of its sender.",
        ),
        (
            frame(1, b"body", size=13),
            EnvelopeError,
            "envelope",
            "The envelope has a CRC flag, but a header of 13 bytes instead of 12. Check the version of its sender.",
        ),
        (
            frame(0, b"", size=9),
            EnvelopeError,
            "envelope",
            "The envelope has an invalid header length 9, outside 8..8. Check the version of its sender.",
        ),
        (
            frame(0, b"", size=7),
            EnvelopeError,
            "envelope",
            "The envelope has an invalid header length 7, outside 8..8. Check the version of its sender.",
        ),
        (
            frame(0, b"")[:7],
            EnvelopeError,
            "no envelope",
            "The message has 7 bytes, less than an envelope header. Check the version of its sender.",
        ),
        (
            b"x" + frame(0, b"")[1:],
            EnvelopeError,
            "no envelope",
            "The message is not a liftpy envelope: its magic number is missing. Check the version of its sender.",
        ),
        (
            envelope.MAGIC + b"\1\x08\0\1",
            EnvelopeError,
            "version",
            "The envelope has version 1, but this version reads 0. Upgrade liftpy.",
        ),
        (
            envelope.MAGIC + b"\0\x08\0\xff",
            EnvelopeError,
            "message type",
            "The envelope has the unknown message type 255. Upgrade liftpy.",
        ),
    ],
)
def test_invalid_envelope_is_rejected_with_the_reason(wrong: bytes, error: type[EnvelopeError], reason: str, text: str) -> None:
    with pytest.raises(EnvelopeError) as raised:
        envelope.decode_addressed(wrong)
    assert (type(raised.value), raised.value.reason, str(raised.value)) == (error, reason, text)


def test_envelope_that_requires_a_crc_is_rejected_without_a_valid_one() -> None:
    assert envelope.sealed_payload(frame(1, b"body"), MessageType.ACK) == b"body"
    for wrong, text in (
        (frame(0, b"body"), "The envelope has no CRC-32C, but this message needs one."),
        (frame(0, b"abcd" + b"body", size=12), "The envelope has no CRC-32C, but this message needs one."),
        (frame(3, ADDRESS + b"body"), "This message must not have a stream address."),
    ):
        with pytest.raises(EnvelopeError, match=f"^{text}"):
            envelope.sealed_payload(wrong, MessageType.ACK)
    with pytest.raises(EnvelopeError, match="ACK, but PUBLISH was expected"):
        envelope.sealed_payload(frame(1, b"body"), MessageType.PUBLISH)


# ---- addresses -----------------------------------------------------------------------------------------------------------------
def test_envelope_address_contains_the_partition_and_the_request_id() -> None:
    assert address("u1", 3, 5) == (5).to_bytes(8, "big") + (3).to_bytes(4, "big") + crc32c.crc32c(b"u1").to_bytes(4, "big")
    assert len({address(*which) for which in (("u1", 3, 5), ("u2", 3, 5), ("u1", 4, 5), ("u1", 3, 6))}) == 4
    check_answer_address(ADDRESS, ADDRESS)
    with pytest.raises(MisdirectedError, match="Received the answer to another fetch request"):
        check_answer_address(ADDRESS, address("u1", 3, 5))


def test_message_for_another_partition_stream_or_request_is_rejected() -> None:
    request = replication_pb2.ReplicationRefusal(partition=3, streamUid="u1", requestId=5)
    check_partition_address(request, 3, streamUid="u1", requestId=5)
    for partition, said, text in (
        (4, {}, "Received a ReplicationRefusal for partition 3, expected 4"),
        (3, {"streamUid": "u2"}, "Received a ReplicationRefusal for streamUid 'u1', expected 'u2'"),
        (3, {"streamUid": "u1", "requestId": 6}, "Received a ReplicationRefusal for requestId 5, expected 6"),
    ):
        with pytest.raises(MisdirectedError, match=f"^{text}"):
            check_partition_address(request, partition, **said)
    check_partition_address(replication_pb2.ReplicationRefusal(requestId=5), 4, requestId=6)
    check_partition_address(replication_pb2.ReplicationRefusal(partition=0), 0)
    with pytest.raises(MisdirectedError):
        check_partition_address(replication_pb2.ReplicationRefusal(partition=0), 1)


# ---- pieces --------------------------------------------------------------------------------------------------------------------
def test_read_response_fragment_encoded_and_decoded_is_equal() -> None:
    data = memoryview(b"some bytes")
    head = client_pb2.ReadResponse(pieceCrc=71, pieceTotal=72, piecePosition=3)
    assert frames.piece_in(head, data) == Piece(71, 72, 3, data)
    assert frames.piece_in(client_pb2.ReadResponse(pieceCrc=71), data) is None
    with pytest.raises(ProtocolError, match="batch: bytes 3 to 13"):
        frames.piece_in(client_pb2.ReadResponse(pieceCrc=71, pieceTotal=12, piecePosition=3), data)


def test_batch_assembly_reports_its_received_fragment_until_reset() -> None:
    assembly = Assembly()
    assert assembly.held == PartialBatch(0, 0)
    assert assembly.add_piece(Piece(5, 6, 0, memoryview(b"abc"))) is None
    assert assembly.held == PartialBatch(3, 5)
    assert bytes(assembly.add_piece(Piece(5, 6, 3, memoryview(b"def"))) or b"") == b"abcdef"
    assert assembly.held == PartialBatch(0, 0)
    assembly.add_piece(Piece(5, 6, 0, memoryview(b"abc")))
    assembly.forget()
    assert assembly.held == PartialBatch(0, 0)
    assert assembly.add_piece(Piece(5, 6, 3, memoryview(b"def"))) is None


@pytest.mark.parametrize(
    ("payload", "overhead", "asked", "room"),
    [(1 << 20, 100, 1, (1 << 20) - 100), (8 << 20, 100, 1, 1 << 20), (8 << 20, 100, 2 << 20, 2 << 20), (120, 100, 5000, 64)],
)
def test_response_size_limit_is_the_lower_of_max_payload_and_request(
    payload: int, overhead: int, asked: int, room: int
) -> None:
    assert room_bytes(payload, overhead, asked) == room


# ---- names, subjects, rights -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [[(7, b"x")], [(None, b"x")], [(b"name", b"x")], [("a",)], ["ab", "c"], 7])
def test_header_name_that_is_not_text_is_rejected(given: Any) -> None:
    with pytest.raises(ConfigError):
        pairs_of(given)


def test_message_headers_are_optional_and_decoded_in_order() -> None:
    assert pairs_of(None) == pairs_of({}) == pairs_of([]) == ()
    assert pairs_of({"b": "é", "a": b"\xff"}) == (("b", "é".encode()), ("a", b"\xff"))


@pytest.mark.parametrize("word", [*sorted(PARTITION_TOKENS), "two.tokens", "*", "a b"])
def test_principal_name_that_is_a_protocol_word_is_rejected(word: str) -> None:
    with pytest.raises(InvalidNameError):
        Subjects(principal=word)
    assert Subjects(principal="ops").control_admin() == "liftpy.control.admin.ops"
    assert Subjects().control_admin() == "liftpy.control.admin"


def test_permission_table_rows_have_a_subject_builder_and_a_pattern() -> None:
    for use in USES:
        assert not use.built_by or use.built_by == "data_subject" or hasattr(Subjects, use.built_by), use
        assert "." in use.pattern or use.pattern in ("{data}", "{ns}-groups", "{ns}-events"), use


def test_permissions_of_the_service_and_node_roles_equal_the_expected_subjects() -> None:
    rights = rights_of(AccessRole.SERVICE, Scope("ns", ("s",), ("out",), "_INBOX_svc", "", ("sums",), ("_INBOX_app",)))
    assert rights.publish == (
        "ns.s.*.read", "ns.s.*.read.*", "ns.info", "ns.status.*", "ns.service.*.session.s.sums",
        "ns.service.sums.snapshot.*", "out", "_INBOX_app.>",
    )  # fmt: skip
    assert rights.subscribe == (
        "ns.service.sums.query", "ns.service.sums.query.*", "ns.service.sums.snapshot.*", "_INBOX_svc.>",
    )  # fmt: skip
    assert rights.responses == (1, 5)
    node = rights_of(AccessRole.NODE, Scope("ns", data_subjects=("orders", "orders.*")))
    groups = ("ns-groups", "ns-groups.*", "ns-events", "_INBOX_liftpy-groups.>")
    assert node.publish == ("ns.>", *groups, "$SYS.REQ.ACCOUNT.PING.CONNZ", "_INBOX.>")
    assert node.subscribe == ("ns.>", "orders", "orders.*", *groups)
    assert node.responses == (1000, 30)
    assert rights_of(AccessRole.READER, Scope("ns")).responses is None


def test_publisher_permissions_list_a_subject_per_partition_up_to_a_bound() -> None:
    assert partition_subjects("orders", 3) == ("orders", "orders.1", "orders.2")
    assert len(partition_subjects("orders", 64)) == 64
    assert partition_subjects("orders", 65) == ("orders", "orders.*")


def test_frame_decoder_counts_rejected_frames_by_reason() -> None:
    assert counter_name(ChecksumError("x")) == "refused: checksum"
    assert counter_name(MisdirectedError("x")) == "refused: addressee"
    assert counter_name(ConfigError("x")) == f"refused: {ProtocolError.reason}"
    counters = {"refused: a": 1, "metadata: refused: b": 2, "other: refused: c": 3, "refused": 4, "d": 5}
    assert by_reason(counters) == {"a": 1, "metadata: b": 2}
