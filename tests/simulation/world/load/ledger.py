"""``Ledger``, a replicated service that uses effects, timers, routes, replies and versions, and what its log says about it.

``replay`` computes from the input log alone which outputs, states and replies the service must have. It is written from the documents
(docs/replicated-services.md, docs/protocol.md), and shares no code with the service's state machine.
"""

from __future__ import annotations

import hashlib
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import SERVICE_EFFECT, SERVICE_SKIP, SERVICE_TICK, SERVICE_VERSION
from liftpy.service import Effect, Service

SERVICE = "ledger"
ROUTE = "copies"
_MESSAGE_ID = "Nats-Msg-Id"
_NS_PER_MS = 1_000_000
_BAD_TIMER = "bad"
"""Beginning of the names of timers on which the service raises an error."""
_SLOW_S = 0.7
Unit = tuple[int, str]
"""Offset, and the name of the timer that fires there or '' for the record."""


class Rejected(Exception):
    """The service rejects a record or a timer."""


class Bank:
    """The world outside. It executes effects, fails at some first attempts, and takes long for others."""

    def __init__(self, on_call: Callable[[Effect], None]) -> None:
        self._on_call = on_call
        self.payloads: dict[str, bytes] = {}
        """Id of an effect -> its payload."""
        self.results: dict[str, set[bytes]] = {}
        """Id of an effect -> the results of its calls."""
        self.calls: Counter[str] = Counter()
        self.wrong: list[str] = []

    def pay(self, effect: Effect) -> bytes:
        """Execute an effect. Each call has another result."""
        self._on_call(effect)
        self.calls[effect.id] += 1
        number = self.calls[effect.id]
        if self.payloads.setdefault(effect.id, effect.payload) != effect.payload:
            self.wrong.append(f"effect {effect.id} has the payloads {self.payloads[effect.id]!r} and {effect.payload!r}")
        kind = zlib.crc32(effect.payload) % 8
        if kind == 0 and number == 1:
            raise OSError("the bank does not answer")
        if kind == 1:
            time.sleep(_SLOW_S)
        result = b"paid %d" % number
        self.results.setdefault(effect.id, set()).add(result)
        return result


@dataclass
class State:
    """State of the service: a number and a checksum of all that has happened, and the version that applies."""

    count: int = 0
    checksum: int = 0
    version: int = 1

    def note(self, text: str) -> bytes:
        """Return the output for an event, which is part of the state from then on."""
        self.count += 1
        self.checksum = zlib.crc32(f"{self.version} {text}".encode(), self.checksum)
        return f"{self.count} {self.checksum} v{self.version} {text}".encode()

    def encode(self) -> bytes:
        """Return the state as bytes."""
        return b"%d %d %d" % (self.count, self.checksum, self.version)


class Ledger(Service):
    """Applies commands such as ``effect NAME`` and ``timer NAME MS``, and emits an output for everything that happens."""

    deferred = False
    """True if the snapshot is made in a thread."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    def on_start(self, snapshot: bytes | None) -> None:
        """Start with the state."""
        self.state = State(*map(int, snapshot.split())) if snapshot else State()

    def _note(self, text: str, key: str = "", to: str = "") -> None:
        self.state.version = self.active_version
        self.emit(self.state.note(text), key=key.encode() if key else None, to=to)

    def on_record(self, record: Record) -> None:
        """Apply a command. It may fail after it has changed the state, which the framework must undo."""
        text = (record.value or b"").decode()
        kind, name, delay_ms = _parsed(text)
        is_copied = kind == "copy"
        self._note(f"record {record.offset} {text}", name if is_copied else "", ROUTE if is_copied else "")
        if kind == "effect":
            self.effect("pay", b"%d %s" % (record.offset, name.encode()))
        elif kind == "offer":
            self.offer(f"offered {name}".encode())
        elif kind == "timer":
            self.set_timer(name, self.now_ns + delay_ms * _NS_PER_MS)
        elif kind == "cancel":
            self.cancel_timer(name)
        elif kind == "call":
            self.reply(record, self.state.encode())
        if _is_bad(text):
            raise Rejected(f"{text[:20]!r} is rejected")

    def on_timer(self, name: str) -> None:
        """Note the timer."""
        self._note(f"timer {name} {self.now_ns}")
        if name.startswith(_BAD_TIMER):
            raise Rejected(f"timer {name} is rejected")

    def on_effect(self, effect: Effect) -> bytes:
        """Call the bank."""
        return self._bank.pay(effect)

    def on_effect_result(self, effect: Effect, result: bytes) -> None:
        """Note the result."""
        self._note(f"result {effect.number} {result.decode()}")

    def on_version(self, version: int) -> None:
        """Note the version."""
        self._note(f"version {version}")

    def on_query(self, query: bytes) -> bytes:
        """Return the state."""
        return self.state.encode()

    def take_snapshot(self) -> bytes | Callable[[], bytes]:
        """Return the state."""
        state = self.state.encode()
        return partial(bytes, state) if self.deferred else state


def ledger_class(version: int, on_error: str, *, deferred: bool) -> type[Ledger]:
    """Return the class of a version of the code."""
    return type("Ledger", (Ledger,), {"version": version, "on_error": on_error, "deferred": deferred})


def _parsed(text: str) -> tuple[str, str, int]:
    kind, _, rest = text.partition(" ")
    name, _, number = rest.partition(" ")
    return kind, name, int(number) if kind == "timer" else 0


def _is_bad(text: str) -> bool:
    return not text.isascii() or "reject" in text


# ---- what the log says -----------------------------------------------------------------------------------------------------
@dataclass
class Replay:
    """Result of a log."""

    outputs: list[bytes] = field(default_factory=list)
    copies: list[tuple[bytes, bytes]] = field(default_factory=list)
    """(key, value) of the outputs of the route."""
    states: dict[int, bytes] = field(default_factory=dict)
    """Position -> state with all records below it."""
    replies: dict[str, bytes] = field(default_factory=dict)
    """Command -> its reply."""
    applied: Counter[str] = field(default_factory=Counter)
    """Text of a record -> how often the service has applied it."""
    effects: dict[int, bytes] = field(default_factory=dict)
    """Number -> payload of all effects."""
    results: dict[int, bytes] = field(default_factory=dict)
    """Number -> result that counts."""
    pending: dict[int, str] = field(default_factory=dict)
    """Effects and offers without a result: number -> kind."""
    timers: dict[str, int] = field(default_factory=dict)
    """Timers that have not fired: name -> log time."""
    fired: int = 0
    skipped: list[bytes] = field(default_factory=list)
    """Values of the skipped records, and of the records at which skipped timers fired."""
    blocked: Unit | None = None
    """The first unit that the service cannot apply, without a decision to skip it."""
    needless: set[Unit] = field(default_factory=set)
    """Units that were skipped, and that the service can apply."""
    decisions: int = 0
    """Number of valid decisions to skip."""
    versions: list[int] = field(default_factory=list)
    """Activated versions."""
    numberings: int = 0
    """Number of valid decisions to number effects in another way."""


def replay(records: Iterable[Record]) -> Replay:
    """Return what the service must have done after these records, which are the whole input."""
    log = list(records)
    return _Replaying(log).run()


def _header(record: Record, name: str) -> str | None:
    value = record.header(name)
    return value.decode(errors="replace") if value is not None else None


def _decided(record: Record) -> Unit | None:
    """Return the unit that a record decides to skip. The decision must be later, and of the LeaderEpoch of its record."""
    content = _header(record, SERVICE_SKIP)
    if content is None:
        return None
    service, offset, epoch, timer = content.split("/", 3)
    is_valid = service == SERVICE and int(epoch) in (0, record.leader_epoch) and int(offset) < record.offset
    return (int(offset), timer) if is_valid else None


class _Replaying:
    def __init__(self, log: list[Record]) -> None:
        self._log = log
        self._decisions = Counter(unit for unit in map(_decided, log) if unit is not None)
        self._state = State()
        self._now_ns = 0
        self._ids: dict[str, str] = {}
        """Message id of a command with a reply -> its text."""
        self._effect_count = 0
        self._first_number: int | None = 0
        """Number of the first effect if effects are counted. None: their numbers follow from their records."""
        self._offers: dict[int, str] = {}
        self.found = Replay(decisions=self._decisions.total())

    def run(self) -> Replay:
        """Apply all records."""
        found = self.found
        found.states[0] = self._state.encode()
        used: set[Unit] = set()
        for record in self._log:
            if not self._fire(record, used) or not self._apply(record, used):
                break
            found.states[record.offset + 1] = self._state.encode()
        end = self._log[-1].offset + 1 if self._log else 0
        reached = found.blocked[0] if found.blocked is not None else end
        found.needless = {unit for unit in self._decisions if unit not in used and unit[0] < reached}
        found.pending.update(dict.fromkeys(self._offers, "offer"))
        return found

    def _skips(self, unit: Unit, record: Record, used: set[Unit]) -> bool:
        """Return whether a unit that fails is skipped. False: it blocks the service."""
        if unit not in self._decisions:
            self.found.blocked = unit
            return False
        used.add(unit)
        self.found.skipped.append(record.value or b"")
        return True

    def _fire(self, record: Record, used: set[Unit]) -> bool:
        found, end_ns = self.found, max(self._now_ns, record.timestamp_ns)
        while found.timers:
            at_ns, name = min((at_ns, name) for name, at_ns in found.timers.items())
            if at_ns > end_ns:
                break
            del found.timers[name]
            self._now_ns = max(self._now_ns, at_ns)
            if name.startswith(_BAD_TIMER):
                if not self._skips((record.offset, name), record, used):
                    return False
                continue
            found.fired += 1
            found.outputs.append(self._state.note(f"timer {name} {self._now_ns}"))
        self._now_ns = end_ns
        return True

    def _apply(self, record: Record, used: set[Unit]) -> bool:
        text = (record.value or b"").decode(errors="surrogateescape")
        if (content := _header(record, SERVICE_EFFECT)) is not None:
            service, _, number = content.rpartition("/")
            return self._end_effect(int(number), text, record, used) if service == SERVICE else True
        if _header(record, SERVICE_SKIP) is not None or _header(record, SERVICE_TICK) is not None:
            return True
        if (content := _header(record, SERVICE_VERSION)) is not None:
            service, version, epoch = content.split("/")
            is_valid = service == SERVICE and int(epoch) == record.leader_epoch
            if not version.isdigit():
                if is_valid:
                    self.found.numberings += 1
                    self._first_number = {"effects-by-record": None, "effects-by-count": 1 << 62}[version]
            elif is_valid and int(version) == self._state.version + 1:
                self._state.version = int(version)
                self.found.versions.append(int(version))
                self.found.outputs.append(self._state.note(f"version {version}"))
            return True
        if (_header(record, _MESSAGE_ID) or "") in self._ids:
            return True  # a repeated command
        return self._apply_text(text, record, used)

    def _end_effect(self, number: int, text: str, record: Record, used: set[Unit]) -> bool:
        if number in self._offers:
            done = self._apply_text(text, record, used)
            if done:
                del self._offers[number]
            return done
        if number in self.found.pending:
            del self.found.pending[number]
            self.found.results[number] = record.value or b""
            self.found.outputs.append(self._state.note(f"result {number} {text}"))
        return True

    def _apply_text(self, text: str, record: Record, used: set[Unit]) -> bool:
        if _is_bad(text):
            return self._skips((record.offset, ""), record, used)
        kind, name, delay_ms = _parsed(text)
        found = self.found
        output = self._state.note(f"record {record.offset} {text}")
        found.outputs.append(output)
        found.applied[text] += 1
        if kind == "copy":
            found.copies.append((name.encode(), output))
        elif kind == "effect":
            payload = b"%d %s" % (record.offset, name.encode())
            number = self._next_number(record, b"pay", payload, is_offer=False)
            found.effects[number] = payload
            found.pending[number] = "effect"
        elif kind == "offer":
            offered = f"offered {name}"
            self._offers[self._next_number(record, b"", offered.encode(), is_offer=True)] = offered
        elif kind == "timer":
            found.timers[name] = self._now_ns + delay_ms * _NS_PER_MS
        elif kind == "cancel":
            found.timers.pop(name, None)
        elif kind == "call":
            found.replies[text] = self._state.encode()
            if message_id := _header(record, _MESSAGE_ID):
                self._ids[message_id] = text
        return True

    def _next_number(self, record: Record, name: bytes, payload: bytes, *, is_offer: bool) -> int:
        """Return the number of an effect, the only one of its record."""
        count, self._effect_count = self._effect_count, self._effect_count + 1
        if self._first_number is not None:
            return self._first_number + count
        content = struct.pack("<QIBIIIi", record.leader_epoch, 0, is_offer, 0, len(name), len(payload), -1) + name + payload
        digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        return (record.offset % 2**40) * 2**22 + digest % 2**22


def wrong_effects(found: Replay, bank: Bank) -> str:
    """Return what is wrong with the calls of the bank: each effect is called at least once, and only effects of the log are."""
    if bank.wrong:
        return bank.wrong[0]
    calls: dict[int, Any] = {int(name.rpartition("/")[2]): name for name in bank.calls}
    if len(calls) != len(bank.calls):
        return f"effects have several ids: {sorted(bank.calls)[:5]}"
    for number, payload in found.effects.items():
        if number in found.results:
            name = calls.get(number, "")
            if found.results[number] not in bank.results.get(name, ()):
                return f"effect {number} has the result {found.results[number]!r}, the bank returned {bank.results.get(name)}"
            if bank.payloads[name] != payload:
                return f"effect {number} was called with {bank.payloads[name]!r}, and is {payload!r}"
    if unknown := sorted(calls.keys() - found.effects.keys()):
        return f"effects {unknown[:5]} were called, and no record requests them"
    return ""
