"""Manifest of a backup: its files with partitions and digests. Pure.

A backup consists of the files that its manifest names. The manifest is written last: a backup without manifest does not
exist. The records of a partition are in *pieces*: files of complete record batches, byte for byte as in its log, one
after the other. A full piece never changes, and later manifests name it, too. Layout of a store::

    backups/<id>/manifest.json          the manifest
    backups/<id>/image                  the metadata at the barrier, in the snapshot format of the metadata group
    backups/<id>/states/<stream>/<uid>/<partition>      producers and message ids of a partition, as in its replica's state file
    pieces/<stream>/<uid>/<partition>/<first offset>-<id>.batches
    running/<id>                        exists while the backup is being made

The *chain* of a partition has 16 bytes. Before the first batch they are zero. After each batch they are the BLAKE2b
digest of the previous 16 bytes and the batch. The chain does not depend on the borders of pieces. So a backup continues
the chain of the one before, and a restored log is compared by it.

The text is canonical: any flipped bit gives another text, or another digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from liftpy.core.base.ids import check_name, quote
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.errors import CorruptionError, InvalidNameError, UnknownFormatError

FORMAT = 1
CHAIN_BYTES = 16
NO_CHAIN = bytes(CHAIN_BYTES).hex()
"""Chain before the first batch."""
_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CHAIN = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MAX = (1 << 63) - 1
_MAX_PARTITIONS = 1_000_000
_MAX_LEVEL = 1_000_000
_INDENT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a backup store: ``path`` below the root of the store, size in bytes, and SHA-256 in hexadecimal."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPiece:
    """File of whole batches from offset ``start`` (inclusive) to ``end`` (exclusive).

    ``chain``: digest chain after the last batch, in hexadecimal. ``last_epoch``: LeaderEpoch of the last batch.
    """

    file: StoredFile
    start: int
    end: int
    chain: str
    last_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopy:
    """The state file of a replica in a backup: producers and message ids of the log below the offset ``end``.

    It also has the producers and message ids of records that retention has deleted [A16].
    """

    file: StoredFile
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCopy:
    """One partition in a backup.

    Attributes:
        start: Log start, inclusive. The first piece may begin below it.
        high_watermark: Last committed offset, inclusive. -1: none. ``pieces`` contain all records up to it, without
            gaps.
        pieces: Pieces in order.
        before: Digest chain before the first piece.
        compacted_end: Offset (exclusive) up to which the replicas had compacted, at most the end of the copy. A
            restored log that ends below it would lack keys [R11].
        deletes_end: Offset (exclusive) below which all read logs may have lost tombstones [D30].
        state: Producers and message ids of a replica. None: the copy has none.
        knows_dropped: True if the copy has the producers and message ids of all records that were deleted below
            ``start``. False: an earlier version of a program or node did not report them.
    """

    partition: int
    start: int
    high_watermark: int
    pieces: tuple[StoredPiece, ...] = ()
    before: str = NO_CHAIN
    compacted_end: int = 0
    deletes_end: int = 0
    state: StateCopy | None = None
    knows_dropped: bool = False

    @property
    def chain(self) -> str:
        """Digest chain after the last batch, in hexadecimal."""
        return self.pieces[-1].chain if self.pieces else self.before

    @property
    def epoch(self) -> int:
        """Greatest LeaderEpoch of a record in the copy, 0 without records."""
        return self.pieces[-1].last_epoch if self.pieces else 0

    @property
    def size_bytes(self) -> int:
        return sum(piece.file.size_bytes for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCopy:
    """One stream in a backup. Its settings are in the metadata image of the backup.

    ``compacted``: True if the stream is compacted, so that some offsets have no record.
    """

    name: str
    uid: str
    partitions: tuple[PartitionCopy, ...]
    compacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorCopy:
    """A group or named cursor (``is_cursor``) in a backup. ``positions``: committed (stream, uid, partition, next offset)."""

    name: str
    is_cursor: bool
    positions: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Manifest of a complete backup.

    Attributes:
        created_ns: Wall clock at the barrier, in nanoseconds since 1970.
        index: Index of the last metadata entry before the barrier.
        since: Earlier backup whose pieces this backup reuses. '': none.
        leader_epoch: No LeaderEpoch of the cluster was above it at the end of the backup.
    """

    backup: str
    created_ns: int
    namespace: str
    version: str
    level: int
    index: int
    leader_epoch: int
    since: str
    image: StoredFile
    streams: tuple[StreamCopy, ...]
    cursors: tuple[CursorCopy, ...] = ()

    @property
    def files(self) -> Mapping[str, StoredFile]:
        copies = [copy for stream in self.streams for copy in stream.partitions]
        pieces = (piece.file for copy in copies for piece in copy.pieces)
        states = (copy.state.file for copy in copies if copy.state is not None)
        return {file.path: file for file in (self.image, *states, *pieces)}

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def manifest_path(backup: str) -> str:
    """Return the path of the manifest of ``backup`` (a backup id) in the store."""
    return f"backups/{backup}/manifest.json"


def image_path(backup: str) -> str:
    """Return the path of the metadata image of ``backup`` (a backup id) in the store."""
    return f"backups/{backup}/image"


def state_path(backup: str, stream: str, uid: str, partition: int) -> str:
    """Return the path of a partition's state file in the store: its producers and message ids."""
    return f"backups/{backup}/states/{check_name(stream, 'stream')}/{check_name(uid, 'uid')}/{partition}"


def running_path(backup: str) -> str:
    """Return the path of the marker file that exists in the store while ``backup`` is being made."""
    return f"running/{backup}"


def piece_path(stream: str, uid: str, partition: int, start: int, backup: str) -> str:
    """Return the path of the piece that begins at offset ``start`` and was written by ``backup`` (a backup id)."""
    return f"pieces/{check_name(stream, 'stream')}/{check_name(uid, 'uid')}/{partition}/{start:020d}-{backup}.batches"


def writer_of(path: str) -> str:
    """Return the id of the backup that has written the piece at ``path``. '': the path is not that of a piece."""
    name = path.rpartition("/")[2]
    backup = name.removesuffix(".batches").partition("-")[2]
    return backup if name.endswith(".batches") and is_backup_id(backup) else ""


def is_backup_id(text: str) -> bool:
    """Return whether ``text`` is a backup id: the time and eight hexadecimal digits. Only such a text may become part of a path."""
    if _ID.fullmatch(text) is None:
        return False
    try:
        backup_moment(text)
    except ValueError:
        return False
    return True


def backup_moment(backup: str) -> datetime:
    """Return the start time of a backup from its id. It may be one second later, to keep ids in order."""
    return datetime.strptime(backup.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def check_backup_id(text: str) -> str:
    """Return ``text`` if it is a backup id, else raise InvalidNameError."""
    if not is_backup_id(text):
        raise InvalidNameError(f"{quote(text)} is not a valid backup id. `liftpy backup list URL` shows the ids.")
    return text


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode the manifest as JSON."""
    fields = _to_json(manifest)
    text = json.dumps({"manifest": fields, "sha256": _digest(fields)}, indent=_INDENT, sort_keys=True)
    return text.encode() + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raise CorruptionError if it is invalid, UnknownFormatError for another format."""
    try:
        whole = load_json(data)
        fields = whole["manifest"]
        if whole["sha256"] != _digest(fields):
            raise ValueError("its digest does not match its content")
        if fields["format"] != FORMAT:
            raise UnknownFormatError(
                f"The manifest has format {fields['format']}, but this version reads format {FORMAT}. Use the version "
                "of liftpy that wrote it."
            )
        manifest = _from_json(fields)
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError, InvalidNameError) as error:
        raise CorruptionError(f"The manifest of this backup (manifest.json) is damaged: {error}. Use another backup.") from None
    if encode_manifest(manifest) != data:
        raise CorruptionError("The manifest of this backup (manifest.json) was changed after the backup. Use another backup.")
    return manifest


def _digest(fields: Any) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _to_json(m: Manifest) -> dict[str, Any]:
    said = {"format": FORMAT, **asdict(m)}
    for stream, copied in zip(said["streams"], m.streams, strict=True):
        stream["partitions"] = [_partition_as_dict(p) for p in copied.partitions]
    return said


def _partition_as_dict(p: PartitionCopy) -> dict[str, Any]:
    said = {name: getattr(p, name) for name in ("partition", "start", "high_watermark", "epoch", "before", "chain")}
    said |= {name: offset for name in ("compacted_end", "deletes_end") if (offset := getattr(p, name))}
    if p.state is not None or p.knows_dropped:
        said["state"] = None if p.state is None else _entry_as_dict(p.state)
    return {**said, "pieces": [_entry_as_dict(piece) for piece in p.pieces]}


def _entry_as_dict(entry: StoredPiece | StateCopy) -> dict[str, Any]:
    said = asdict(entry)
    return {**said.pop("file"), **said}


def _from_json(fields: Any) -> Manifest:
    backup = check_backup_id(fields["backup"])
    if fields["since"]:
        check_backup_id(fields["since"])
    manifest = Manifest(
        backup=backup,
        created_ns=whole_number(fields["created_ns"], 0, _MAX),
        namespace=check_name(fields["namespace"], "namespace"),
        version=str(fields["version"]),
        level=whole_number(fields["level"], 1, _MAX_LEVEL),
        index=whole_number(fields["index"], 0, _MAX),
        leader_epoch=whole_number(fields["leader_epoch"], 0, _MAX),
        since=fields["since"],
        image=_file(fields["image"], image_path(backup)),
        streams=tuple(_stream(one, backup) for one in fields["streams"]),
        cursors=tuple(map(_cursor, fields["cursors"])),
    )
    names = [stream.name for stream in manifest.streams]
    if len(set(names)) != len(names):
        raise ValueError(f"stream {max(names, key=names.count)} occurs twice")
    return manifest


def _stream(fields: Any, backup: str) -> StreamCopy:
    name, uid = check_name(fields["name"], "stream"), check_name(fields["uid"], "uid")
    partitions = tuple(
        _partition(one, name, uid, number, state_path(backup, name, uid, number))
        for number, one in enumerate(fields["partitions"])
    )
    return StreamCopy(name=name, uid=uid, compacted=bool(fields["compacted"]), partitions=partitions)


def _partition(fields: Any, stream: str, uid: str, number: int, path_of_state: str) -> PartitionCopy:
    if whole_number(fields["partition"], 0, _MAX_PARTITIONS) != number:
        raise ValueError(f"partition {stream}/{number} is missing or not in order")
    pieces = tuple(_piece(one, stream, uid, number) for one in fields["pieces"])
    copy = PartitionCopy(
        partition=number,
        start=whole_number(fields["start"], 0, _MAX),
        high_watermark=whole_number(fields["high_watermark"], -1, _MAX),
        pieces=pieces,
        before=_check_pattern(_CHAIN, fields["before"]),
        compacted_end=whole_number(fields.get("compacted_end", 0), 0, _MAX),
        deletes_end=whole_number(fields.get("deletes_end", 0), 0, _MAX),
        state=_state(fields["state"], path_of_state) if fields.get("state") is not None else None,
        knows_dropped="state" in fields,
    )
    if copy.compacted_end > copy.high_watermark + 1:
        raise ValueError(f"the data of {stream}/{number} end too early: they lack newer records of compacted keys")
    end = copy.high_watermark + 1
    if copy.state is not None and not max(copy.start, 1) <= copy.state.end <= end:
        raise ValueError(f"the state of {stream}/{number} ends at {copy.state.end}, outside its records")
    follow = [*(piece.start for piece in pieces[1:]), end]  # an empty partition has no piece, and only this end
    for piece, following in zip(pieces, follow, strict=False):
        if not piece.start < piece.end or piece.end > end or following < piece.end:
            raise ValueError(f"the files of {stream}/{number} are not contiguous")
    if pieces and (pieces[-1].end != end or pieces[0].end <= copy.start):
        raise ValueError(f"the files of {stream}/{number} do not cover {copy.start} to {end}")
    if not pieces and copy.start < end:
        raise ValueError(f"{stream}/{number} has records but no files")
    if (fields["epoch"], fields["chain"]) != (copy.epoch, copy.chain):
        raise ValueError(f"the totals of {stream}/{number} do not match its files")
    return copy


def _state(fields: Any, path: str) -> StateCopy:
    return StateCopy(file=_file(fields, path), end=whole_number(fields["end"], 1, _MAX))


def _piece(fields: Any, stream: str, uid: str, number: int) -> StoredPiece:
    start = whole_number(fields["start"], 0, _MAX)
    writer = writer_of(str(fields["path"]))
    if not writer:
        raise ValueError(f"{quote(str(fields['path']))} is not a data file")
    return StoredPiece(
        file=_file(fields, piece_path(stream, uid, number, start, writer)),
        start=start,
        end=whole_number(fields["end"], 0, _MAX),
        chain=_check_pattern(_CHAIN, fields["chain"]),
        last_epoch=whole_number(fields["last_epoch"], 0, _MAX),
    )


def _file(fields: Any, path: str) -> StoredFile:
    """Return the manifest entry ``fields`` as a StoredFile. Raises ValueError if the entry does not have the expected ``path``."""
    if fields["path"] != path:
        raise ValueError(f"{quote(str(fields['path']))} should be at {path}")
    return StoredFile(
        path=path, size_bytes=whole_number(fields["size_bytes"], 0, _MAX), sha256=_check_pattern(_DIGEST, fields["sha256"])
    )


def _cursor(fields: Any) -> CursorCopy:
    positions = tuple(
        (
            check_name(stream, "stream"),
            check_name(uid, "uid"),
            whole_number(partition, 0, _MAX_PARTITIONS),
            whole_number(at, 0, _MAX),
        )
        for stream, uid, partition, at in fields["positions"]
    )
    return CursorCopy(name=check_name(fields["name"], "group"), is_cursor=bool(fields["is_cursor"]), positions=positions)


def _check_pattern(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{quote(text)} is not a SHA-256 digest (64 hexadecimal digits)")
    return text
