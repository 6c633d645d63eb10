"""Answers of a replica to read requests."""

from __future__ import annotations

from liftpy.client.batch_view import BatchSlice
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from tests.batches import build_batch


def batch(base: int, count: int, *, epoch: int = 1, **more: object) -> bytes:
    values = [f"v{i}".encode() for i in range(base, base + count)]
    return build_batch(values, base_offset=base, leader_epoch=epoch, timestamp_ns=1000 + base, **more)  # type: ignore[arg-type]


def answer(*batches: bytes, hw: int, error: int = client_pb2.ReadResponse.OK, uid: str = "u1", **head: object) -> bytes:
    fields = {"streamUid": uid, "node": "n1", "highWatermark": hw, "error": error, **head}
    return frames.read_response_header(client_pb2.ReadResponse(**fields)) + b"".join(batches)  # type: ignore[arg-type]


def offsets(slices: list[BatchSlice]) -> list[int]:
    return [offset for piece in slices for offset in piece.offsets().tolist()]
