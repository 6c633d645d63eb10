"""Test the bytes that a service leaves on disks and in its output stream."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import crc32c
import pytest

from liftpy.core.services.bad_records import Unit
from liftpy.core.services.effects import EffectCause, EffectNumbering, PendingEffects
from liftpy.core.services.outbox import Outbox, Output, extend_digest
from liftpy.core.services.replies import Answer, AnswerTable, decode_answers
from liftpy.core.services.rules import parameters_digest
from liftpy.core.services.service import Service
from liftpy.core.services.snapshot import Identity, Section, Snapshot, decode
from liftpy.core.services.versions import VersionError, encode_section, from_section
from liftpy.core.wire.batch import Record
from liftpy.errors import CorruptionError

WHO = Identity("bank", "in", "u1", 2)
HEADERS = (("b", b"2"), ("a", b"1"))


@pytest.mark.parametrize(
    ("before", "key", "headers", "digest"),
    [
        (b"", None, (), "4ced7d427b2aff4ae35858c1e74f8628"),
        (b"", b"", (), "6d739131ec66381117f0164ff347432c"),
        (b"d" * 16, b"k", HEADERS, "426b0b335d367c4377c3bba0502e778e"),
        (b"d" * 16, b"k", HEADERS[::-1], "426b0b335d367c4377c3bba0502e778e"),
    ],
)
def test_service_output_digest_equals_the_recorded_digest(
    before: bytes, key: bytes | None, headers: tuple[tuple[str, bytes], ...], digest: str
) -> None:
    where = "u/0/7/1" if before else "u/0/7/0"
    assert extend_digest(before, where, key, b"v", headers).hex() == digest


def test_service_output_record_contains_its_own_and_lift_headers_sorted_by_name() -> None:
    outbox = Outbox("u/0", service="bank")
    outbox.add(Output(0, 7, 3, b"v", b"k", (("z", b"1"), ("A", b"2"))))
    (output,) = outbox.read(0, 1)
    assert outbox.headers_of(output) == [
        ("A", b"2"),
        ("Lift-Output", b"u/0/7/3"),
        ("Lift-Output-Digest", outbox.digest.hex().encode()),
        ("Lift-Output-Number", b"0"),
        ("Lift-Output-Service", b"bank"),
        ("z", b"1"),
    ]
    assert outbox.digest == extend_digest(b"", "u/0/7/3", b"k", b"v", (("A", b"2"), ("z", b"1")))
    plain = Outbox("u/0")
    plain.add(Output(0, 7, 3, b"v", b"k", ()))
    assert [name for name, _ in plain.headers_of(plain.read(0, 1)[0])] == [
        "Lift-Output",
        "Lift-Output-Digest",
        "Lift-Output-Number",
    ]


def entry(number: int, name: str) -> bytes:
    return struct.pack("<qH", number, len(name.encode())) + name.encode()


def file_of(version: int, fields: bytes, body: bytes) -> bytes:
    whose = b"bank/in/u1/2"
    data = fields + whose + body
    return struct.pack("<8sHHI", b"LIFTSNAP", version, len(whose), crc32c.crc32c(data)) + data


TIMERS, SKIPS = entry(-9, "é") + entry(7, "t"), entry(4, "") + entry(5, "t")
SECTIONS = struct.pack("<HI", 1, 1) + b"p" + struct.pack("<HI", 4, 4) + b"\2\0\0\0"
WHOLE = Snapshot(
    WHO, 40, 3, -5, 6, ((-9, "é"), (7, "t")), b"state", b"D" * 16, (Unit(4), Unit(5, "t")),
    ((Section.PARAMETERS, b"p"), (Section.VERSION, b"\2\0\0\0")),
)  # fmt: skip
FIELDS = struct.pack("<QQqQIIQ", 40, 3, -5, 6, 2, len(TIMERS), 5)


def test_service_snapshot_encodes_to_the_recorded_bytes() -> None:
    sizes = struct.pack("<III", 2, len(SKIPS), len(SECTIONS))
    assert WHOLE.encode() == file_of(4, FIELDS + b"D" * 16 + sizes, TIMERS + SKIPS + SECTIONS + b"state")
    plain = replace(WHOLE, sections=(), output_digest=b"")
    assert plain.encode() == file_of(3, FIELDS + bytes(16) + sizes[:8], TIMERS + SKIPS + b"state")
    for made in (WHOLE, plain):
        assert decode(made.encode(), WHO) == made
    assert replace(WHOLE, state=b"", make=lambda: b"state").encode() == WHOLE.encode()
    assert [kind.value for kind in Section] == [1, 2, 3, 4]


def test_service_snapshot_answers_encode_to_the_recorded_bytes() -> None:
    table = AnswerTable([Answer(5, "é1", b"yes"), Answer(6, "b", b"")])
    data = struct.pack("<QHI", 5, 3, 3) + "é1yes".encode() + struct.pack("<QHI", 6, 1, 0) + b"b"
    assert table.encode() == data
    again = decode_answers(data)
    assert [again.get(name) for name in ("é1", "b", "c")] == [Answer(5, "é1", b"yes"), Answer(6, "b", b""), None]
    assert len(decode_answers(b"")) == 0
    for wrong in (data[:-1], data + b"x", data + data, data + data[:18], data[:14] + b"\xff" + data[15:]):
        with pytest.raises(CorruptionError):
            decode_answers(wrong)


def test_service_snapshot_effects_encode_to_the_recorded_bytes() -> None:
    pending = PendingEffects("u/0/s")
    assert pending.encode() == b""
    pending.add("charge", b"10", None, EffectCause(0, 1), is_offer=False, output_count=3)
    pending.add("é", b"x", b"k", EffectCause(0, 1), is_offer=True, output_count=4)
    pending.add("n", b"", b"", EffectCause(0, 1), is_offer=False, output_count=0)
    first = struct.pack("<QQBHIi", 0, 3, 0, 6, 2, -1) + b"charge10"
    rest = struct.pack("<QQBHIi", 1, 4, 1, 2, 1, 1) + "éxk".encode() + struct.pack("<QQBHIi", 2, 0, 0, 1, 0, 0) + b"n"
    assert pending.encode() == struct.pack("<Q", 3) + first + rest
    pending.end(0)
    assert pending.encode() == struct.pack("<Q", 3) + rest
    again = PendingEffects("u/0/s")
    again.load(pending.encode())
    assert list(again) == list(pending)
    assert (again.count, [effect.id for effect in again]) == (3, ["u/0/s/1", "u/0/s/2"])
    empty = PendingEffects("u/0/s")
    empty.load(b"")
    assert (empty.count, len(empty)) == (0, 0)
    for wrong in (pending.encode()[:-1], pending.encode() + b"x", struct.pack("<Q", 2) + rest, struct.pack("<Q", 0), b"\1"):
        with pytest.raises(CorruptionError):
            PendingEffects("u/0/s").load(wrong)


def test_service_effects_numbered_by_record_encode_to_the_recorded_bytes() -> None:
    """The number is the one that docs/protocol.md describes."""
    pending = PendingEffects("u/0/s")
    pending.add("n", b"", b"", EffectCause(0, 1), is_offer=False, output_count=0)
    pending.end(0)
    pending.change_numbering(EffectNumbering.BY_RECORD)
    for _ in range(2):
        pending.add("é", b"x", b"k", EffectCause((1 << 40) + 7, 5, "t"), is_offer=True, output_count=4)
    pending.change_numbering(EffectNumbering.BY_COUNT)
    pending.add("n", b"", None, EffectCause(8, 5), is_offer=False, output_count=4)
    contents = (struct.pack("<QIBIIIi", 5, repetition, 1, 1, 2, 1, 1) + "téxk".encode() for repetition in range(2))
    digests = (int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") for content in contents)
    numbers = [(7 << 22) + digest % (1 << 22) for digest in digests]
    offers = b"".join(struct.pack("<QQBHIi", number, 4, 1, 2, 1, 1) + "éxk".encode() for number in numbers)
    counted = struct.pack("<QQBHIi", (1 << 62) + 3, 4, 0, 1, 0, -1) + b"n"
    data = struct.pack("<Q", (1 << 62) + 4) + offers + counted
    assert pending.encode() == data
    pending.change_numbering(EffectNumbering.BY_RECORD)
    assert pending.encode() == struct.pack("<Q", (1 << 63) + 4) + offers + counted
    again = PendingEffects("u/0/s")
    again.load(pending.encode())
    assert (again.count, again.numbering, list(again)) == (4, EffectNumbering.BY_RECORD, list(pending))


def test_service_snapshot_active_version_encodes_to_the_recorded_bytes() -> None:
    assert (encode_section(1), encode_section(2), from_section(b""), from_section(struct.pack("<I", 7))) == (
        b"",
        struct.pack("<I", 2),
        1,
        7,
    )
    for wrong in (b"x", struct.pack("<I", 1), struct.pack("<I", 0), bytes(8)):
        with pytest.raises(VersionError):
            from_section(wrong)


def test_service_parameters_digest_equals_the_recorded_digest() -> None:
    class Limited(Service):
        def __init__(self, limit: int = 5, name: str = "x") -> None: ...

        def on_record(self, record: Record) -> None: ...

        def take_snapshot(self) -> bytes:
            return b""

    assert parameters_digest(Limited, {"limit": 5, "name": "x"}) == b""
    assert parameters_digest(Limited, {"name": "é", "limit": 7}).hex() == "a1f1e3bdf194ef739b2baefba10ca928"
    assert parameters_digest(Limited, {"limit": 7, "name": "é"}) == parameters_digest(Limited, {"name": "é", "limit": 7})
