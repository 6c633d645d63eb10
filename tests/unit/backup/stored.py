"""Helpers that write a store with backups as ``sidecar.backup.create`` does, without a cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from liftpy.config import StreamConfig
from liftpy.core.backup.manifest import Manifest, PartitionCopy, StoredFile, StoredPiece, StreamCopy, image_path, piece_path
from liftpy.core.backup.pieces import extend_chain, reusable_pieces
from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.batch import RecordBatch, split_batches
from sidecar.backup.store import Store
from tests.batches import build_batch
from tests.born import born_image

FIRST, SECOND, THIRD = "20261101T000000Z-0000000a", "20261102T000000Z-0000000b", "20261103T000000Z-0000000c"
UID = "00000a-19"


def log_of(batches: int, records: int = 10, epoch: int = 3, value: bytes = b"%d") -> list[RecordBatch]:
    """Return batches of ``records`` each, from offset 0. The leader epoch increases with every fourth batch."""
    data = b"".join(
        build_batch([value % (n * records + i) for i in range(records)], base_offset=n * records, leader_epoch=epoch + n // 4)
        for n in range(batches)
    )
    return split_batches(data)


def partition_state(purges: tuple[Purge, ...] = ()) -> PartitionState:
    """Return the state of a partition with one replica."""
    return PartitionState(
        purges=purges, partition=0, replicas=("n1",), isr=("n1",), leader="n1", leader_epoch=9, epoch=1
    )  # fmt: skip


def store_file(store: Store, path: str, data: bytes) -> StoredFile:
    """Write the file to the store."""
    store.put(path, data)
    return StoredFile(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def copied(
    store: Store,
    backup: str,
    log: Sequence[RecordBatch],
    *,
    start: int = 0,
    before: PartitionCopy | None = None,
    per_piece: int = 3,
) -> PartitionCopy:
    """Write partition 0 of ``orders`` to the store, with ``per_piece`` batches in each piece."""
    size_bytes = per_piece * log[0].header.size_bytes
    high_watermark = log[-1].last_offset
    chain, kept = reusable_pieces(before, start, high_watermark, size_bytes)
    at = bytes.fromhex(kept[-1].chain if kept else chain)
    rest = [batch for batch in log if batch.next_offset > (kept[-1].end if kept else start)]
    pieces = list(kept)
    for first in range(0, len(rest), per_piece):
        part = rest[first : first + per_piece]
        for batch in part:
            at = extend_chain(at, batch)
        path = piece_path("orders", UID, 0, part[0].base_offset, backup)
        file = store_file(store, path, b"".join(batch.view for batch in part))
        pieces.append(
            StoredPiece(
                file=file, start=part[0].base_offset, end=part[-1].next_offset, chain=at.hex(), last_epoch=part[-1].leader_epoch
            )
        )
    return PartitionCopy(partition=0, start=start, high_watermark=high_watermark, pieces=tuple(pieces), before=chain)


def put_backup(
    store: Store, backup: str, partition: PartitionCopy, since: str = "", *, left_out: Sequence[str] = ()
) -> Manifest:
    """Write the metadata image and then the manifest of a backup. ``left_out``: streams that only the metadata have."""
    stream = StreamImage("orders", UID, "shop.orders", StreamConfig(), (partition_state(),))
    image = replace(born_image(), index=7).with_stream(stream)
    for number, name in enumerate(left_out):
        image = image.with_stream(replace(stream, name=name, uid=f"00000b-{number}", subject=f"shop.{name}"))
    manifest = Manifest(
        backup=backup, created_ns=1, namespace="liftpy", version="0", level=1, index=7, leader_epoch=9, since=since,
        image=store_file(store, image_path(backup), encode_snapshot(image, operations=False)),
        streams=(StreamCopy(name="orders", uid=UID, partitions=(partition,)),),
    )  # fmt: skip
    store.put_manifest(manifest)
    return manifest


def seal_manifest(content: dict[str, Any]) -> bytes:
    """Return the manifest file with this content and the right digest, as ``encode_manifest`` writes it."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    whole = {"manifest": content, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return (json.dumps(whole, indent=1, sort_keys=True) + "\n").encode()


def two_backups(folder: Path) -> tuple[Store, Manifest, Manifest]:
    """Write two backups. The second one uses the two full pieces of the first one."""
    store = Store.at(str(folder))
    one = put_backup(store, FIRST, copied(store, FIRST, log_of(8)))
    two = put_backup(store, SECOND, copied(store, SECOND, log_of(10), before=one.streams[0].partitions[0]), FIRST)
    return store, one, two
