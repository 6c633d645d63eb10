"""What travels over the simulated NATS: the frames of the protocol as values, with a ghost field that no node looks at."""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.config import AckPolicy
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2
from liftpy.wire.pieces import NOTHING, Held, Piece


@dataclass(frozen=True, slots=True)
class Publish:
    """One message of an application: ``ids`` become one record each. ``number`` counts per publisher, from 0."""

    publisher: str
    number: int
    ids: tuple[int, ...]
    policy: AckPolicy


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to a Publish. ``reason`` '': appended at ``offset`` (of its last record) in ``leader_epoch``."""

    node: str
    reason: str
    offset: int = -1
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """ReplicationRequest. ``ghost_chain``: digest of the follower's log through ``offset`` when it was sent."""

    replica: str
    incarnation: int
    request_id: int
    offset: int
    offset_epoch: int
    leader_epoch: int
    max_bytes: int
    uid: str
    ghost_chain: int | None
    ghost_process: int
    awaits_more: bool
    bad_offset: int | None = None
    held: Held = NOTHING
    flush_ns: int = 0


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """ReplicationResponse: header and record batches, back to back; or, with ``piece``, a ReplicationPiece."""

    leader_epoch: int
    high_watermark: int
    batches: bytes
    piece: Piece | None = None


@dataclass(frozen=True, slots=True)
class EpochRequest:
    """LeaderEpochOffsetRequest."""

    replica: str
    asked_epoch: int
    current_epoch: int
    uid: str


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """A read, as the client library sends it."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """What a replica answers to it."""

    frame: bytes

    def decoded(self) -> tuple[client_pb2.ReadResponse, memoryview]:
        """(header, batches)."""
        return frames.decode_read_response(self.frame)
