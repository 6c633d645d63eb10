"""Record batches of tests, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from liftpy.core.wire.batch import add_header, encode_body


def build_batch(
    values: Sequence[bytes | None],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    timestamp_ns: int = 0,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    control: bool = False,
    **columns: Any,
) -> bytes:
    """Build a batch with this header. ``columns``: further arguments of ``encode_body``."""
    return add_header(
        encode_body(values, **columns),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        timestamp_ns=timestamp_ns,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        control=control,
    )
