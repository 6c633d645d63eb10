"""What bytes and texts mean, said a second time: a plain reading of each format, slow and without the code that it is compared to; and
values written again, so that what is read of them has to be the same."""

from __future__ import annotations

import json
import re
import string
import struct
from dataclasses import fields
from datetime import datetime
from typing import Any

import numpy as np

from liftpy.client.batch_view import BatchSlice
from liftpy.core.wire.batch import RecordBatch, parse_batch
from liftpy.core.wire.filters import MAX_FILTER_BYTES, Filter, keep_records
from liftpy.spark.offsets import relative
from liftpy.spark.options import CREDENTIALS, SourceOptions
from liftpy.spark.range_reader import RowBuilder
from liftpy.spark.schema import COLUMNS
from sidecar.runtime.settings import NodeSettings

_LETTERS = frozenset(string.ascii_letters + string.digits + "_-")


# ---- names -------------------------------------------------------------------------------------------------------------------
def is_name(text: str) -> bool:
    """1 to 64 letters, digits, _ and -."""
    return 1 <= len(text) <= 64 and set(text) <= _LETTERS


def is_subject(text: str, *, forbidden: str = "") -> bool:
    """Tokens between dots, none empty; ``*`` and a ``>`` at the end stand alone; no blanks, no control characters."""
    tokens = text.split(".")
    if len(text) > 255 or not all(tokens):
        return False
    if tokens[-1] == ">":
        tokens.pop()
    bad = set("*>\x7f" + forbidden) | {chr(code) for code in range(32)}
    return all(token == "*" or not any(c in bad or c.isspace() for c in token) for token in tokens)


def is_data_subject(text: str, namespace: str) -> bool:
    """A subject outside of what is the protocol's."""
    first = text.split(".")[0]
    reserved = first in ("*", ">", namespace) or first.startswith(("$", "_INBOX"))
    return is_subject(text) and not reserved


# ---- positions, settings, options ------------------------------------------------------------------------------------------
def position_text(position: Any) -> bytes:
    """A start or an end, as a user may write it."""
    return (position.isoformat() if isinstance(position, datetime) else str(position)).encode()


def settings_text(settings: NodeSettings) -> bytes:
    """All of a node's settings, as its file has them."""
    plain = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in ("credentials", "replication")}
    lines = [f"{name} = {_toml(value)}" for name, value in plain.items()]
    for table in ("credentials", "replication"):
        lines.append(f"[{table}]")
        held = getattr(settings, table)
        lines += [f"{f.name} = {_toml(getattr(held, f.name))}" for f in fields(held)]
    return "\n".join(lines).encode()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    text = "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 or c in '"\\' else c for c in str(value))
    return f'"{text}"'


def options_text(options: SourceOptions) -> bytes:
    """As the source is given them, every option that has a value: JSON of names and texts."""
    access, wanted = options.access, options.wanted
    found = {"nats": access.servers, "namespace": access.namespace}
    found |= {name: getattr(access, field) for field, name in CREDENTIALS.items() if getattr(access, field)}
    if wanted.partitions:
        named = {stream: [n for s, n in wanted.partitions if s == stream] for stream in wanted.streams}
        found["assign"] = json.dumps(named)
    elif wanted.pattern:
        found["subscribePattern"] = wanted.pattern
    else:
        found["subscribe"] = ",".join(wanted.streams)
    for which, spec in (("starting", options.starting), ("ending", options.ending)):
        if spec is None:
            continue
        if spec.must_match:
            found["startingOffsetsByTimestampStrategy"] = "error"
        if spec.timestamp_ns is not None:
            found[f"{which}Timestamp"] = str(spec.timestamp_ns // 1_000_000)
        elif spec.back_ns:
            found[f"{which}Offsets"] = f"-{spec.back_ns // 1_000_000}ms"
        elif spec.back_records:
            found[f"{which}Offsets"] = f"-{spec.back_records}"
        elif spec.times:
            times: dict[str, dict[str, Any]] = {stream: {"uid": uid} for stream, uid in spec.uids}
            for (stream, number), moment_ns in spec.times:
                times.setdefault(stream, {})[str(number)] = moment_ns // 1_000_000
            found[f"{which}OffsetsByTimestamp"] = json.dumps(times)
        elif spec.word:
            found[f"{which}Offsets"] = spec.word
        else:
            document: dict[str, dict[str, Any]] = {stream: {"uid": uid} for stream, uid in spec.uids}
            for (stream, number), offset in spec.offsets:
                document.setdefault(stream, {})[str(number)] = offset
            found[f"{which}Offsets"] = json.dumps(document)
    for name, number in (
        ("minPartitions", options.min_partitions),
        ("maxRecordsPerPartition", options.max_records_per_partition),
        ("maxOffsetsPerTrigger", options.max_records_per_trigger),
        ("minOffsetsPerTrigger", options.min_records_per_trigger),
        ("maxBytesPerTrigger", options.max_bytes_per_trigger),
    ):
        found |= {name: str(number)} if number else {}
    found["maxTriggerDelay"] = f"{round(options.max_trigger_delay_s * 1000)}ms"
    found["onRecreated"] = "earliest" if options.recreated_earliest else "error"
    found["failOnDataLoss"] = str(options.fail_on_data_loss).lower()
    found["columns"] = ",".join(options.columns)
    found["readFrom"] = "leader" if options.read_from_leader else "nearest"
    found["patience"], found["isolation"] = repr(options.patience_s), "committed"
    found |= {"cursor": options.cursor} if options.cursor else {}
    return json.dumps(found).encode()


def check_option(name: str, text: str, written: dict[str, str]) -> None:
    """What was given as ``text`` is what is ``written``, as far as another option does not win over it."""
    said = written.get(name)
    match name:
        case "includeHeaders" | "columns" | "stream" | "subscribe":
            wanted = {part.strip() for part in text.split(",")}
            named = name != "includeHeaders"
            said = written["columns" if name == "columns" else "subscribe"] if named else ""
            assert set(said.split(",")) == wanted if named else ("headers" in written["columns"]) >= (text.lower() == "true")
        case "topicColumn":
            assert ("topic" in written["columns"]) >= (text.lower() == "true")
        case "startingOffsetsByTimestampStrategy":
            assert said is None or said == text.lower()
        case "startingOffsetsByTimestamp" | "endingOffsetsByTimestamp" if name.replace("OffsetsBy", "") in written:
            pass
        case "startingOffsets" | "endingOffsets" if {name.replace("Offsets", "Timestamp"), f"{name}ByTimestamp"} & set(written):
            pass
        case "startingOffsets" | "endingOffsets" | "maxTriggerDelay" if text.strip()[-1:].isalnum() and "t" not in text:
            words = {"-1": "latest", "-2": "earliest"}
            same = relative(f"-{(said or '').lstrip('-')}") == relative(f"-{text.strip().lstrip('-')}")
            assert same or words.get(text.strip()) == said
        case "startingOffsets" | "endingOffsets" | "assign" | "startingOffsetsByTimestamp" | "endingOffsetsByTimestamp" if (
            text.lower() not in ("earliest", "latest")
        ):
            assert said is not None
            assert _numbered(json.loads(said)) == _numbered(json.loads(text)), "the same partitions, and what they are given"
        case "failOnDataLoss" | "readFrom" | "onRecreated" | "startingOffsets" | "endingOffsets":
            assert said == text.lower()
        case "patience":
            assert said is not None
            assert float(said) == float(text)
        case "subscribePattern":
            assert said == (text or "$^")
        case "minPartitions" | "maxRecordsPerPartition" | "maxOffsetsPerTrigger" | "minOffsetsPerTrigger":
            assert said == text.lstrip("0")
        case "maxBytesPerTrigger":
            assert said is not None
            assert int(said) == int(text.strip().lower().rstrip("b").rstrip("kmg")) << {"k": 10, "m": 20, "g": 30}.get(
                text.strip().lower().rstrip("b")[-1], 0
            )
        case "startingTimestamp" | "endingTimestamp":
            assert said == (text.lstrip("0") or "0")
        case _:
            assert said == text or not text


def _numbered(document: dict[str, Any]) -> dict[str, Any]:
    """Without streams of which nothing is said, in one order."""
    plain = {
        stream: sorted(set(own)) if isinstance(own, list) else {n if n == "uid" else int(n): v for n, v in own.items()}
        for stream, own in document.items()
    }
    return {stream: own for stream, own in plain.items() if own}


# ---- frames of the metadata group --------------------------------------------------------------------------------------------
_DATA, _FIRST, _LAST = 2, 1, 2


def session_message(frame: bytes, own_epoch: int, epoch: int, received: int) -> tuple[bytes, int] | None:
    """What a session that is up, and has ``received`` so many frames, hands on of ``frame`` alone: (message, term); None: nothing."""
    if len(frame) < 34:
        return None
    kind, flags, of, to, number, term = struct.unpack("<BBQQQQ", frame[:34])
    whole = flags & _FIRST and flags & _LAST
    return (frame[34:], term) if whole and (kind, of, to, number) == (_DATA, epoch, own_epoch, received + 1) else None


def hello_nonces(tail: bytes) -> tuple[int, int, tuple[int, ...]] | None:
    """(the sender's nonce, the one that it knows of the receiver, the others that it holds); None: it is none, or says nothing."""
    if len(tail) < 17:
        return None
    nonce, known, count = (int.from_bytes(tail[a:b], "little") for a, b in ((0, 8), (8, 16), (16, 17)))
    others = tuple(int.from_bytes(tail[at : at + 8], "little") for at in range(17, len(tail), 8))
    return (nonce, known, others) if nonce and len(tail) == 17 + 8 * count else None


# ---- what a filter keeps ------------------------------------------------------------------------------------------------------
def check_kept(batches: list[RecordBatch]) -> None:
    """The batch of what a filter by a key keeps holds those records, and every second one's batch every second record."""
    for batch in batches:
        records = list(batch.records())
        keys = {record.key for record in records if record.key is not None and len(record.key) < MAX_FILTER_BYTES}
        by_key = Filter(keys=(min(keys),)).mask(batch) if keys and not batch.header.control else np.zeros(0, dtype=np.bool_)
        assert not by_key.size or by_key.tolist() == [record.key == min(keys) for record in records]
        for mask in (by_key, np.arange(len(records)) % 2 == 0):
            if mask.any():
                rest = [record for record, stays in zip(records, mask.tolist(), strict=True) if stays]
                assert list(parse_batch(keep_records(batch, mask)).records()) == rest


# ---- Spark's rows ------------------------------------------------------------------------------------------------------------
def check_spark_rows(batches: list[RecordBatch]) -> None:
    """Those of ``batches`` that Spark can show at all (its texts are UTF-8, its times have a bound) are the records."""
    cuts = [(batch, batch.base_offset + number % 2) for number, batch in enumerate(batches, 1)]  # every second one whole
    pieces = [piece for batch, start in cuts if (piece := BatchSlice.between(batch, start, None)) is not None]
    names = tuple(name for name in COLUMNS if name not in ("subject", "headers", "timestamp"))
    rows = [row for made in RowBuilder("orders", 3, names).batches(pieces) for row in made.to_pylist()]
    records = [(record, piece.batch.leader_epoch) for piece in pieces for record in piece.records()]
    assert len(rows) == len(records)
    for row, (record, epoch) in zip(rows, records, strict=True):
        said = {"key": record.key, "value": record.value, "stream": "orders", "topic": "orders"}
        said |= {"partition": 3, "offset": record.offset}
        assert row == {**said, "leader_epoch": epoch}


_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)


def traceparent(value: bytes) -> tuple[int, int, int] | None:
    """(trace, span, flags) of a W3C traceparent; None: it is none."""
    found = _TRACEPARENT.fullmatch(value) if len(value) <= 512 else None
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5]):
        return None
    trace, span, flags = (int(found[n], 16) for n in (2, 3, 4))
    return (trace, span, flags) if trace and span else None
