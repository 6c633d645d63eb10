"""Decoders of what comes over the bus: frames, batches, publishes, frames of the metadata group."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

import crc32c

from liftpy.config import AckPolicy, Codec
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log import arrow
from liftpy.core.publish.message_decoder import MessageDecoder, body_after
from liftpy.core.services.sessions import ReplicaView, SendToService, ServiceSessions
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2, raft_pb2, service_pb2
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, add_header, parse_batch, split_batches
from liftpy.core.wire.chunking import Piece
from liftpy.core.wire.frames import address
from liftpy.core.wire.headers import parse_headers
from liftpy.core.wire.producer_note import Partitioning, PartitioningMethod, ProducerNote, SourcePosition
from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, InboxRule
from liftpy.errors import ProtocolError, StorageError
from sidecar.quorum import codec as raft_codec
from sidecar.quorum.codec import seal, unseal
from sidecar.quorum.peer_sessions import TERM_REACH, PeerSessions
from tests.batches import build_batch
from tests.fuzz import meanings
from tests.fuzz.decoder import NAMES, Decoder, mended, messages
from tests.fuzz.mutate import spoiled
from tests.unit.wire import batch_fuzz


def _sealed(message: Any) -> bytes:
    """Maps have no order of their own."""
    return envelope.encode(frames._TYPES[type(message)], message.SerializeToString(deterministic=True), crc=True)


def _of_class(of: type[Any]) -> Decoder:
    samples = [seal_(m) for m in messages(of) for seal_ in (frames.encode, frames.seal)]

    def make(rng: random.Random, sample: bytes) -> bytes:
        message = spoiled(rng, frames.decode(sample, of), NAMES)
        return frames.seal(message)

    return Decoder(
        f"frame {of.__name__}", samples, lambda data: frames.decode(data, of), (ProtocolError,), _sealed, mended, make,
        ("liftpy.core.wire.frames:decode", "liftpy.core.wire.frames:parse"),
    )  # fmt: skip


def _response(data: bytes) -> tuple[int, int, bytes]:
    found = frames.decode_replication_response(data)
    return found.leader_epoch, found.high_watermark, bytes(found.batches)


def _piece(data: bytes) -> tuple[int, int, int, int, int, bytes]:
    found = frames.decode_replication_piece(data)
    piece = found.piece
    return found.leader_epoch, found.high_watermark, piece.crc, piece.total_bytes, piece.position, bytes(piece.data)


def _piece_again(found: tuple[Any, ...]) -> bytes:
    epoch, high_watermark, crc, total, position, data = found
    return frames.replication_piece_header(epoch, high_watermark, Piece(crc, total, position, memoryview(data))) + data


def _read_answer(data: bytes) -> tuple[bytes, bytes]:
    head, body = frames.decode_read_response(data)
    frames.piece_in(head, body)
    return head.SerializeToString(deterministic=True), bytes(body)


def _read_again(found: tuple[bytes, bytes]) -> bytes:
    return frames.read_response_header(client_pb2.ReadResponse.FromString(found[0]), (found[1],)) + found[1]


def _raft_again(message: dict[str, Any]) -> bytes:
    return raft_codec.encode(message)


def _sessions(data: bytes) -> None:
    """As frames of a session that is up come: with the numbers of it."""
    sessions = _SESSIONS[0]
    peer = sessions.peers["b"]
    peer.own_epoch, peer.epoch, peer.up, peer.parts = 77, 99, True, None
    number = int.from_bytes(data[18:26], "little") if len(data) > 26 else 1
    peer.received = max(0, number - (1, 1, 0, 2)[len(data) % 4])  # it follows, or is one too many, or one is missing
    meant = meanings.session_message(data, 77, 99, peer.received)
    _HANDED_ON.clear()
    sessions.receive("b", data, 1.0)
    if meant is not None and meant[1] < TERM_REACH:
        assert [("b", *meant)] == _HANDED_ON, "a message of the session is handed on"
    assert all(("b", *(meant or ())) == found for found in _HANDED_ON), "and nothing else"
    sessions.receive("stranger", data, 1.0)
    sessions.outbox.clear()


def _session_frames() -> list[bytes]:
    head = struct.Struct("<BBQQQQ")
    kinds = [(1, 0), (1, 4), (2, 3), (2, 1), (2, 2), (3, 0)]
    return [head.pack(kind, flags, 99, 77, 5, 3) + b"a, b" for kind, flags in kinds]


_HANDED_ON: list[tuple[Any, ...]] = []


def _hand_on(*message: Any) -> bool:
    _HANDED_ON.append(message)
    return True


_SESSIONS = [PeerSessions("a", ("b",), _hand_on, lambda *_: None, lambda: 77)]
_SESSIONS[0].online = True


def _publishes(data: bytes) -> Any:
    """A payload, then a header block, as one message of an ingest."""
    size = min(len(data) // 2, int.from_bytes(data[:2], "big"))
    block, payload = (b"NATS/1.0\r\n" + data[2 : 2 + size] if size else b""), data[2 + size :]
    found = _READER.read([(b"data.orders", b"_INBOX.x", payload, block)], 5)
    assert len(found.values) == 1
    return found.rejections.get(0)


def _batch_publish(seed: int) -> bytes:
    rng = random.Random(seed)
    count = rng.choice((1, 2, 9, 30))
    if seed % 10 == 9:
        asked = client_pb2.BatchPublish(
            stream="orders", streamUid="u1", askedProducer=7 + seed, producerInstance=rng.getrandbits(64)
        )
        return frames.batch_publish(asked, b"")
    numbered = seed % 4 == 2
    headers = [[(rng.choice("abc"), rng.randbytes(rng.randrange(4)))] * rng.randrange(3) for _ in range(count)]
    batch = build_batch(
        [None if rng.random() < 0.1 else rng.randbytes(rng.randrange(9)) for _ in range(count)],
        keys=[None if rng.random() < 0.3 else b"k" for _ in range(count)] if seed % 2 else None,
        headers=headers if seed % 3 else None,
        **({"producer_id": rng.getrandbits(64) or 1, "producer_epoch": seed, "base_sequence": seed} if numbered else {}),
    )
    head = client_pb2.BatchPublish(stream="orders", streamUid="u1", ackInbox="_INBOX.y" * (seed % 2))
    if numbered:
        head.producerInstance, head.producerDigest = rng.getrandbits(64), rng.randbytes(36)
        head.producerName = "p" * (seed % 3)
        if seed % 8 == 2:
            head.producerPosition.CopyFrom(SourcePosition("u2", seed, rng.getrandbits(40), seed).message())
    else:
        head.expectedOffset = seed
    return frames.batch_publish(head, batch)


def _position_of(data: bytes) -> ProducerNote:
    note = ProducerNote.decode(data)
    assert ProducerNote.decode(note.encode()) == note
    return note


def _mended_publish(data: bytes) -> bytes:
    """Sum and size of the batch in it."""
    start = 12 + int.from_bytes(data[8:12], "big") if data[5:6] == b"\x08" else len(data)
    if start + HEADER_SIZE_BYTES > len(data):
        return data
    rest = data[start + 4 : start + 8] + struct.pack("<I", len(data) - start) + data[start + 12 :]
    return data[:start] + struct.pack("<I", crc32c.crc32c(rest)) + rest


def _published(data: bytes) -> Any:
    """A whole batch as a message of an ingest; what is taken is a batch that every reader can read, of the same records."""
    found = _READER.read([(b"data.orders", b"_INBOX.x", data, b"")], 5)
    if found.producer_request is not None and not found.rejections:
        assert 0 < found.producer_request.producer_id < 1 << 64
        assert all(0 <= number < 1 << 64 for number in found.producer_request[1:3])
        _position_of(ProducerNote(found.producer_request.name, found.producer_request.position).encode())
        return found.producer_request
    if found.batch is None or found.rejections:
        frames.decode_batch_publish(data)  # its error, or it is refused with a reason
        if not found.rejections:
            raise ProtocolError("stored as plain bytes: another kind of frame")
        raise ProtocolError(str(found.rejections[0]))
    sealed = parse_batch(add_header(found.batch.body, base_offset=7, leader_epoch=2, timestamp_ns=3))
    records = list(sealed.records())
    assert [record.offset for record in records] == list(range(7, 7 + found.batch.body.record_count))
    assert {record.subject for record in records} == {"data.orders"}
    published = parse_batch(frames.decode_batch_publish(data)[1])
    assert [(r.value, r.key, r.headers) for r in published.records()] == [(r.value, r.key, r.headers) for r in records]
    _batches(sealed.view)
    if found.batch.note:
        assert found.claim is not None
        said = (found.claim.name, found.claim.position, found.claim.partitioning)
        assert ProducerNote.decode(sealed.columns.note or b"") == said
    if found.claim is not None:
        assert found.claim.record_count == len(records)
        later = body_after(found.batch, len(records) // 2, "data.orders", Codec.NONE) if len(records) > 1 else None
        kept = [] if later is None else [(r.value, r.key, r.headers) for r in parse_batch(add_header(later)).records()]
        assert kept == [(r.value, r.key, r.headers) for r in records[len(records) // 2 :] if later is not None]
    return records


_READER = MessageDecoder(PartitionKey("orders", "u1", 0), "data.orders", AckPolicy.ALL, InboxRule(DEFAULT_INBOX_PREFIXES))
_RULE = InboxRule(("_INBOX*.", "apps.in."))


def _reply(data: bytes) -> None:
    allowed = _RULE.allows(data)
    if _RULE.allows_all([data]):
        assert allowed, "what is allowed among others is allowed alone"
    if allowed:
        assert not set(data) & set(b" \t\r\n\x00*>"), "an inbox is no pattern and breaks no line"
        data.decode()


def _service(data: bytes) -> None:
    view = ReplicaView(True, False, 3, 0, 9, 10)
    sessions = ServiceSessions(
        PartitionKey("orders", "u1", 0), "n1", ack_ids=itertools.count(1), session_ns=5, lease_ms=5, patience_ns=5
    )
    hello = frames.parse(data, service_pb2.ServiceHello)
    said = sessions.hello(hello, "_INBOX.x", view, 1)
    ours = hello.streamUid in ("", "u1") and meanings.is_name(hello.service)
    answers = [effect.message for effect in said if isinstance(effect, SendToService)]
    assert [type(answer) for answer in answers] == (
        [] if hello.leaving else [service_pb2.JoinLog if ours else service_pb2.ServiceRefusal]
    )
    for answer in answers:
        assert (answer.service[:64], answer.instance) == (hello.service[:64], hello.instance), "the answer names who asked"
    assert [service["service"] for service in sessions.report(9)] == ([hello.service] if ours and not hello.leaving else [])
    sessions.ack(frames.parse(data, service_pb2.ServiceAck), view)
    sessions.report(9)


def _batches(data: bytes) -> Any:
    batches = split_batches(data)
    records = [record for batch in batches for record in batch.records()]
    table = arrow.to_arrow(batches)
    kept = [record for batch in batches if not batch.header.control for record in batch.records()]
    assert table.num_rows == len(kept), "Arrow and records differ"
    assert [v.as_py() for v in table.column("value")] == [r.value for r in kept]
    assert [v.as_py() for v in table.column("offset")] == [r.offset for r in kept]
    meanings.check_spark_rows(batches)
    meanings.check_kept(batches)
    return records


def _addressed(data: bytes) -> tuple[Any, bytes, bytes]:
    kind, address, payload = envelope.decode_addressed(data)
    return kind, address, bytes(payload)


def _addressed_again(found: tuple[Any, bytes, bytes]) -> bytes:
    return envelope.checked_header(found[0], b"", (found[2],), found[1]) + found[2]


def decoders() -> list[Decoder]:
    """Every one of them."""
    p, s = (ProtocolError,), (StorageError,)
    batch_samples = batch_fuzz.corpus()
    raft = [m.SerializeToString() for m in messages(raft_pb2.RaftMessage, 60)]
    prefix = "liftpy.core.wire.frames:"
    return [
        Decoder(
            "envelope",
            [envelope.encode(t, b"payload", crc=crc) for t in (0, 2, 31) for crc in (False, True)],  # type: ignore[arg-type]
            lambda d: (lambda t, b: (t, bytes(b)))(*envelope.decode(d)),
            p,
            lambda f: envelope.encode(*f, crc=True),
            mended,
            covers=("liftpy.core.wire.envelope:decode", "liftpy.core.wire.envelope:decode_addressed"),
        ),
        Decoder(
            "addressed envelope",
            [_addressed_again((envelope.MessageType(n), a, b"p" * n)) for n in (3, 31) for a in (b"", address("u1", 2, 9))],
            _addressed,
            p,
            _addressed_again,
            mended,
            covers=("liftpy.core.wire.envelope:decode_addressed",),
        ),
        *[_of_class(of) for of in frames._TYPES],
        Decoder(
            "replication response",
            [frames.replication_response_header(3, 9, ()), frames.replication_response_header(1, -1, (b"b",)) + b"b"],
            _response,
            p,
            lambda f: frames.replication_response_header(f[0], f[1], (f[2],)) + f[2],
            mended,
            covers=(prefix + "decode_replication_response", prefix + "parse_replication_response"),
        ),
        Decoder(
            "replication piece",
            [_piece_again((3, 9, 7, 50, 10, b"piece"))],
            _piece,
            p,
            _piece_again,
            mended,
            covers=(prefix + "decode_replication_piece", prefix + "parse_replication_piece"),
        ),
        Decoder(
            "read response",
            [_read_again((m.SerializeToString(), b"batches")) for m in messages(client_pb2.ReadResponse)],
            _read_answer,
            p,
            _read_again,
            mended,
            covers=(prefix + "decode_read_response",),
        ),
        Decoder(
            "batch publish",
            [_batch_publish(rng_seed) for rng_seed in range(40)],
            _published,
            p,
            mend=_mended_publish,
            covers=(
                prefix + "decode_batch_publish",
                prefix + "_parse_headed",
                "liftpy.core.publish.message_decoder:_parse",
                "liftpy.core.publish.message_decoder:MessageDecoder._decode_batch",
                "liftpy.core.publish.digest:RollingDigest.decode",
            ),
        ),
        Decoder(
            "producer's note",
            [
                ProducerNote("till", SourcePosition("u1", 3, 99, 7)).encode(),
                ProducerNote("\u00e9", None, Partitioning(3, PartitioningMethod.KEY)).encode(),
            ],
            _position_of,
            s,
            covers=("liftpy.core.wire.producer_note:ProducerNote.decode",),
        ),
        Decoder(
            "batches",
            batch_samples,
            _batches,
            s,
            make=lambda rng, _: batch_fuzz.damaged(rng, batch_samples),
            covers=(
                "liftpy.core.wire.batch:parse_batch",
                "liftpy.core.wire.batch:parse_header",
                "liftpy.core.wire.batch:RecordBatch._decoded",
                "liftpy.core.wire.batch:_refuse_if_damaged",
                "liftpy.core.wire.batch_columns:decode_columns",
                "liftpy.core.wire.batch_columns:_Reader.u32",
                "liftpy.core.wire.batch_columns:BytesColumn.to_list",
                "liftpy.core.wire.batch_columns:BytesColumn.valid",
                "liftpy.core.log.arrow:_one_buffer",
            ),
        ),
        Decoder(
            "NATS headers",
            [b"NATS/1.0\r\nA: b\r\nLift-Key: k\r\n\r\n"],
            parse_headers,
            covers=("liftpy.core.wire.headers:parse_headers",),
        ),
        Decoder(
            "publishes",
            [
                b"\x00\x10Lift-Ack: all\r\n\r\nvalue",
                b"\x00\x00" + frames.seal(client_pb2.Message(value=b"v", stream="orders")),
                *[b"\x00\x00" + frames.encode(m) for m in messages(client_pb2.Message)],
            ],
            _publishes,
            covers=("liftpy.core.publish.message_decoder:MessageDecoder._decode_common",),
        ),
        Decoder("reply subjects", [b"_INBOX.abc.1", b"_INBOX_a.x", b"apps.in.z", "_INBOX.é".encode()], _reply),
        Decoder("services", [m.SerializeToString() for m in messages(service_pb2.ServiceHello)], _service, p),
        Decoder(
            "raft frame",
            [seal("n1", "n2", b"frame" * n) for n in (0, 1, 9)],
            lambda d: unseal("n1", "n2", d),
            p,
            lambda f: seal("n1", "n2", f),
            mended,
            covers=("sidecar.quorum.codec:unseal", "liftpy.core.wire.envelope:sealed_payload"),
        ),
        Decoder("raft sessions", _session_frames(), _sessions, covers=("sidecar.quorum.peer_sessions:PeerSessions.receive",)),
        Decoder(
            "raft message",
            raft,
            raft_codec.decode,
            p,
            _raft_again,
            covers=("sidecar.quorum.codec:decode", "sidecar.quorum.codec:_parse"),
            make=lambda rng, d: spoiled(rng, raft_pb2.RaftMessage.FromString(d)).SerializeToString(),
        ),
    ]
