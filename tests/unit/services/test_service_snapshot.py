"""Test the encoding of service snapshots: any damaged file is rejected."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import crc32c
import pytest

from liftpy.core.services.bad_records import SkipDecision, Unit
from liftpy.core.services.effects import Effect
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.outbox import Outbox
from liftpy.core.services.service import Service
from liftpy.core.services.snapshot import Identity, Section, Snapshot, decode
from liftpy.core.wire.batch import Record
from liftpy.errors import CorruptionError, InvalidNameError, LiftError, UnknownFormatError
from tests.each import each

WHO = Identity("bank", "orders", "u7", 2)
WHOLE = Snapshot(WHO, 4096, 7, 123456789, 55, ((5, "a"), (6, "zwölf")), b"the state", bytes(range(16)), (Unit(7), Unit(8, "ü")))


class Everything(Service):
    """A service that adds to its snapshot what the words of a record name."""

    version = 2

    def on_start(self, snapshot: bytes | None) -> None:
        self.count = int(snapshot or b"0")

    def on_record(self, record: Record) -> None:
        self.count += 1
        for word in (record.value or b"").split():
            if word == b"reply":
                self.reply(record, b"answer")
            elif word == b"effect":
                self.effect("charge", b"payload")
            elif word == b"offer":
                self.offer(b"offered", key=b"k")
            elif word == b"timer":
                self.set_timer("later", 1 << 40)
            elif word == b"emit":
                self.emit(b"output")

    def on_effect(self, effect: Effect) -> bytes | None:
        return None

    def take_snapshot(self) -> bytes:
        return b"%d" % self.count


def machine_that(does: tuple[str, ...]) -> ServiceMachine:
    """Return a machine that has executed everything that ``does`` names."""
    parameters = b"p" * 16 if "parameters" in does else b""
    outbox = Outbox(f"{WHO.uid}/{WHO.partition}") if "emit" in does else None
    machine = ServiceMachine(Everything(), WHO, snapshot_interval_records=1000, outbox=outbox, parameters_digest=parameters)
    machine.start(None)
    headers: list[tuple[tuple[str, bytes], ...]] = []
    if "version" in does:
        headers.append((("Lift-Service-Version", b"bank/2/1"),))
    if "skip" in does:
        machine.skip(Unit(len(headers)))
        headers += [(), SkipDecision("bank", Unit(len(headers))).headers()]
    headers.append((("Nats-Msg-Id", b"command 1"),))
    value = " ".join(does).encode()
    machine.apply(Record(at, 7, None, value, told, "", "_INBOX.x", 1) for at, told in enumerate(headers))
    return machine


DOES = ("parameters", "reply", "effect", "offer", "version", "timer", "emit", "skip")
EVERY_SUBSET = [subset for count in range(len(DOES) + 1) for subset in itertools.combinations(DOES, count)]


def test_service_snapshot_with_any_subset_of_sections_can_be_restored() -> None:
    """[S16]"""
    for does in EVERY_SUBSET:
        written = machine_that(does).snapshot()
        read = decode(written.encode(), WHO)
        assert read == written, does
        again = ServiceMachine(
            Everything(),
            WHO,
            snapshot_interval_records=1000,
            outbox=Outbox(f"{WHO.uid}/{WHO.partition}") if "emit" in does else None,
            parameters_digest=b"p" * 16 if "parameters" in does else b"",
        )
        again.start(read)
        assert again.snapshot() == written, does


def test_service_snapshot_with_sections_in_any_order_is_decoded() -> None:
    """Commit 6ef61ecd wrote EFFECTS before ANSWERS."""
    written = machine_that(("parameters", "reply", "effect", "version")).snapshot()
    assert len(written.sections) == len(Section)
    for order in itertools.permutations(written.sections):
        read = decode(replace(written, sections=order).encode(), WHO)
        assert dict(read.sections) == dict(written.sections)


@pytest.mark.parametrize("kind", [Section.ANSWERS, Section.EFFECTS, Section.VERSION])
def test_service_snapshot_with_an_unusable_section_is_rejected(kind: Section) -> None:
    with pytest.raises(CorruptionError):
        decode(replace(WHOLE, sections=((kind, b"what nobody can read"),)).encode(), WHO)


WITH_SECTIONS = replace(WHOLE, sections=((Section.PARAMETERS, b"of sixteen bytes"),))


@each("whole", [WHOLE, WITH_SECTIONS])
def test_service_snapshot_with_any_truncation_or_flipped_byte_is_rejected(whole: Snapshot) -> None:
    data = whole.encode()
    for end in range(len(data)):
        with pytest.raises(LiftError):
            decode(data[:end], WHO)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        with pytest.raises(LiftError):
            decode(bytes(damaged), WHO)
    with pytest.raises(CorruptionError):
        decode(data + b"x", WHO)


def test_service_snapshot_of_another_format_version_or_service_is_rejected() -> None:
    newer = bytearray(WHOLE.encode())
    newer[8] = 5
    with pytest.raises(UnknownFormatError):
        decode(bytes(newer), WHO)
    for never_released in (1, 2):
        newer[8] = never_released
        with pytest.raises(CorruptionError, match="rebuilds its state"):
            decode(bytes(newer), WHO)
    for other in (Identity("bank", "orders", "u8", 2), Identity("bank", "orders", "u7", 1), Identity("b", "orders", "u7", 2)):
        with pytest.raises(CorruptionError, match=f"belongs to {WHO}, not to {other}"):
            decode(WHOLE.encode(), other)


def sealed(version: int, body: bytes) -> bytes:
    return struct.pack("<8sHHI", b"LIFTSNAP", version, len(str(WHO)), crc32c.crc32c(body)) + body


@pytest.mark.parametrize(
    ("sections", "error"),
    [
        (struct.pack("<HI", 999, 1) + b"x", UnknownFormatError),
        (struct.pack("<HI", 1, 0), CorruptionError),
        (struct.pack("<HI", 1, 9) + b"x", CorruptionError),
        ((struct.pack("<HI", 1, 1) + b"x") * 2, CorruptionError),
        (b"short", CorruptionError),
        (b"", CorruptionError),
    ],
)
def test_service_snapshot_with_inconsistent_sections_is_rejected(sections: bytes, error: type[Exception]) -> None:
    whole = replace(WHOLE, sections=(), skips=(), timers=(), state=b"")
    body = whole.encode()[16:]
    body = body[:72] + struct.pack("<I", len(sections)) + body[72:] + sections
    with pytest.raises(error):
        decode(sealed(4, body), WHO)


def test_service_name_with_path_characters_is_rejected() -> None:
    for bad in ("../x", "", "a b", "x" * 65):
        with pytest.raises(InvalidNameError):
            Identity(bad, "s", "u", 0)


@pytest.mark.parametrize("whole", [WHOLE, WITH_SECTIONS])
@each("other", [0x00, 0x01, 0x7F, 0xFF])
def test_service_snapshot_with_forged_bytes_and_a_valid_checksum_is_decoded_or_rejected(whole: Snapshot, other: int) -> None:
    data = whole.encode()
    for place in range(len(data)):
        forged = bytearray(data)
        forged[place] = other
        forged[12:16] = struct.pack("<I", crc32c.crc32c(forged[16:]))
        try:
            read = decode(bytes(forged), WHO)
        except LiftError:
            continue
        assert (read == whole) is (bytes(forged) == data)
        assert read.encode() == bytes(forged)
