"""Messages of the simulated NATS: protocol frames as values, with a ghost field for the checkers."""

from __future__ import annotations

import json
from dataclasses import dataclass

from liftpy.config import AckPolicy
from liftpy.core.publish.state_transfer import StatePiece, StatePieceRequest
from liftpy.core.replication.combined_fetches import CombinedFetch
from liftpy.core.replication.messages import FetchRequest
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.chunking import NOTHING, PartialBatch, Piece
from liftpy.core.wire.envelope import MAGIC, MessageType
from liftpy.core.wire.rejections import RejectReason

_TYPE = 7
"""Position of the type in an envelope."""
KEYS = 4
"""Number of keys on a compacted stream. The key of a message is its id modulo this."""
_BURST, _GROUPS = 40, 8
"""Messages in a row with the same ``KEYS`` keys, and number of groups, if there are deletes. A key is then unused for long."""
DELETED_TO = b"Sim-Delete: "
"""Subject prefix of a delete marker, in the place of a header block. The rest of the subject is its id."""
Message = tuple[bytes, bytes, bytes]
"""(reply subject or b"", payload, header block or b"") as an application publishes it."""


@dataclass(frozen=True, slots=True)
class Publish:
    """NATS messages that an application publishes in one go, so that a node reads them together: one record each, ``ids`` their
    values. ``number`` counts per publisher, from 0."""

    publisher: str
    number: int
    ids: tuple[int, ...]
    policy: AckPolicy
    messages: tuple[Message, ...]

    def inbox(self, index: int) -> bytes:
        """Return the reply subject of message ``index``."""
        return b"_INBOX.%b.%d.%d" % (self.publisher.encode(), self.number, index)

    def takes_runs(self, index: int) -> bool:
        """Return whether the reply of message ``index`` counts its sender's messages."""
        payload = self.messages[index][1]
        return (
            payload.startswith(MAGIC)
            and payload[_TYPE] == MessageType.PUBLISH
            and frames.decode(payload, client_pb2.Message).runs
        )


def key_of(message_id: int, *, deletes: bool) -> int:
    """Return the key of a message id on a compacted stream. It is modulo ``KEYS``."""
    group = message_id // _BURST % _GROUPS if deletes else 0
    return group * KEYS + message_id % KEYS


def is_delete(message_id: int) -> bool:
    """Return whether a message is one, in a stream that has some: now and then, and most at the end of every other burst."""
    return message_id % 11 == 3 or (message_id // _BURST % 2 == 0 and message_id % _BURST >= _BURST - 3 * KEYS)


def id_in(value: bytes | None, subject: str | bytes) -> int:
    """Return the number of a record. That of a tombstone is in its subject."""
    if value is not None:
        return int(value)
    name = subject if isinstance(subject, str) else subject.decode()
    return int(name.rpartition(".d")[2])


def ids_in(batch: RecordBatch) -> tuple[int, ...]:
    """Return the numbers of all records."""
    values, column = batch.values(), batch.columns.subjects
    subjects = column.to_list() if column is not None else [""] * len(values)
    return tuple(id_in(value, subject or "") for value, subject in zip(values, subjects, strict=True))


def value_in(message: tuple[bytes, bytes, bytes, bytes]) -> int:
    """Return the number that a message (subject, reply, payload, header block) carries, plain or enveloped."""
    payload = message[2]
    if not payload.startswith(MAGIC):
        return int(payload)
    sent = frames.decode(payload, client_pb2.Message)
    return id_in(None if sent.tombstone else sent.value, message[0])


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer to one message. ``reason`` '': appended at ``offset``, in ``leader_epoch`` (0: a plain publisher does not get
    it).
    """

    reason: str
    offset: int = -1
    leader_epoch: int = 0
    duplicate: bool = False
    detail: str = ""
    """Error text for a JetStream client."""
    record_count: int = 0
    """Number of records of a run or a batch."""


@dataclass(frozen=True, slots=True)
class AckFrame:
    """The bytes of an answer to message ``index`` of a Publish, from ``node``."""

    node: str
    index: int
    body: bytes

    def decoded(self) -> Ack:
        """Return the ack as the publisher reads it: an envelope, or JSON of JetStream (then ``reason`` is a number)."""
        if self.body.startswith(MAGIC):
            ack = frames.decode(self.body, client_pb2.Ack)
            reason = RejectReason(ack.ackError).name if ack.ackError else ""
            return Ack(reason, ack.offset, ack.leaderEpoch, ack.duplicate, record_count=ack.recordCount)
        answer = json.loads(self.body)
        error = answer.get("error", {"err_code": "", "description": ""})
        duplicate = answer.get("duplicate", False)
        return Ack(str(error["err_code"]), answer["seq"] - 1, duplicate=duplicate, detail=error["description"])


@dataclass(frozen=True, slots=True)
class FetchFrame:
    """A fetch in the simulation. ``ghost_chain``: digest of the follower's log through the offset of the fetch."""

    fetch: FetchRequest
    ghost_chain: int | None
    held: PartialBatch = NOTHING


@dataclass(frozen=True, slots=True)
class QuietQuestion:
    """QuietFetches. ``ghost_ends``: of the followers' logs when it was sent, in the order of ``fetches``."""

    replica: str
    incarnation: int
    fetches: tuple[CombinedFetch, ...]
    ghost_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """ReplicationResponse: header and record batches, back to back; or, with ``piece``, a ReplicationPiece."""

    leader_epoch: int
    high_watermark: int
    batches: bytes
    piece: Piece | None = None


@dataclass(frozen=True, slots=True)
class StateRequest:
    """StateRequest in the simulation."""

    replica: str
    uid: str
    question: StatePieceRequest


@dataclass(frozen=True, slots=True)
class StateAnswer:
    """StateResponse in the simulation, None: later."""

    piece: StatePiece | None


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """A read, as the client library sends it."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """Answer of a replica to a read."""

    frame: bytes

    def decoded(self) -> tuple[client_pb2.ReadResponse, memoryview]:
        """Return (header, batches)."""
        return frames.decode_read_response(self.frame)
