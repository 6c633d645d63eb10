"""Test invalid JSON from outside: it raises one kind of error and ends no handler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import crc32c
import pytest

from liftpy.client.positions import parse_start, parse_until
from liftpy.config import FlushPolicy
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.log.small_files import seal_small_file
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.errors import ConfigError, CorruptionError
from liftpy.spark.offsets import StreamOffsets, parse_spec
from sidecar.disk.data_folder import DataDirectory
from sidecar.partition import scrub
from sidecar.quorum.probation import DirectoryLineage
from sidecar.status.status_api import _decode_page_start
from sidecar.transport.ingest_connection import _parse_stats

DEEP = "[" * 100_000
LONG = "9" * 5_000


def cases(name: str, values: list[Any]) -> pytest.MarkDecorator:
    """Return numbered cases. Their content is too long for a test id."""
    return pytest.mark.parametrize(name, values, ids=map(str, range(len(values))))


@cases("text", ["", "NaN", "-Infinity", "1e999", DEEP, '{"a":' * 50_000, LONG, "\udcff", b"\xff\xfe"])
def test_load_json_of_invalid_json_raises_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        load_json(text)


def test_load_json_of_valid_json_returns_its_value() -> None:
    assert load_json('{"a": [1, 1.5, null, true, "x"]}') == {"a": [1, 1.5, None, True, "x"]}


@cases("value", [True, 1.0, "1", -1, 11, None, 10**5000])
def test_json_whole_number_of_another_json_value_raises_value_error(value: Any) -> None:
    with pytest.raises(ValueError):
        whole_number(value, 0, 10)


@cases("partition", ["1e999", "Infinity", DEEP, LONG, '"1"', "1.5", "true"])
def test_status_request_with_an_invalid_partition_returns_the_first_page(partition: str) -> None:
    """It ended the handler with an error that was logged with a traceback, for each such frame."""
    assert _decode_page_start(f'{{"after": ["orders", {partition}]}}'.encode()) == ("", -1)


@cases("number", ["1e999", "-1", DEEP, LONG, "true", "null"])
def test_nats_server_pending_bytes_answer_without_numbers_is_ignored(number: str) -> None:
    said = f'{{"data": {{"server_id": "S", "connections": [{{"cid": 7, "pending_bytes": {number}, "out_msgs": 2}}]}}}}'
    assert _parse_stats(said.encode(), 1, "S", 7) is None
    assert _parse_stats(b'{"data": []}', 1, "S", 7) is None


@cases("body", [DEEP, "7", "[]", '{"format": 1, "node_id": 5}', '{"format": 1, "node_id": "n1", "incarnation": "7"}'])
def test_node_file_with_invalid_content_raises_corruption_error(tmp_path: Path, body: str) -> None:
    folder = DataDirectory(tmp_path)
    (tmp_path / "node").write_bytes(f"{crc32c.crc32c(body.encode()):08x}\n{body}".encode())
    with pytest.raises(CorruptionError):
        folder.load_identity()


@cases("nonce", [DEEP, "-5", "0", '"5"', "1e3", str(1 << 64)])
def test_data_directory_history_file_with_invalid_content_raises_corruption_error(tmp_path: Path, nonce: str) -> None:
    body = f'{{"format": 1, "nonce": {nonce}, "earlier": [], "missed": [], "known": {{}}, "known_as": {{}}}}'.encode()
    (tmp_path / "lineage").write_bytes(f"{crc32c.crc32c(body):08x}\n".encode() + body)
    with pytest.raises(CorruptionError):
        DirectoryLineage(tmp_path, lambda: 5)


@cases("said", [{"position": "x"}, {"findings": 1.5}, {"partition": 3}, {"pass_began_s": None}, {"x": 1}, [1]])
def test_scrub_with_an_unreadable_progress_file_starts_at_the_beginning(tmp_path: Path, said: Any) -> None:
    (tmp_path / "scrub").write_bytes(seal_small_file(scrub._MAGIC, json.dumps(said).encode()))
    assert scrub._load(tmp_path / "scrub") == scrub.ScrubProgress()


@cases("text", [LONG, DEEP, f"interval:{LONG}"])
def test_settings_file_with_a_number_of_thousands_of_digits_raises_config_error(text: str) -> None:
    for parse in (
        parse_start,
        parse_until,
        FlushPolicy.parse,
        lambda t: parse_spec(t, "startingOffsets", words=("earliest",), specials=(-2,)),
        lambda t: StreamOffsets.from_json({"s": {t: 5, "uid": "u"}}),
        lambda t: StreamOffsets.from_json({"s": {"0": 10**4500, "uid": "u"}}),
    ):
        with pytest.raises(ConfigError) as caught:
            parse(text)
        assert len(str(caught.value)) < 120_000


def test_metadata_snapshot_with_a_huge_declared_size_allocates_nothing() -> None:
    """zstandard allocates what the frame says, not what the caller bounds: a few bytes asked for terabytes."""
    good = encode_snapshot(ClusterFsm().image)
    head, body = good[:24], bytearray(good[28:])
    body[4] = 0xE0  # a content size of 8 bytes follows
    body[5:5] = (1 << 45).to_bytes(8, "little")
    crc = crc32c.crc32c(bytes(body), crc32c.crc32c(head)).to_bytes(4, "big")
    with pytest.raises(CorruptionError, match="size"):
        decode_snapshot(head + crc + bytes(body))
