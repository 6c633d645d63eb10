"""Test the documented defaults and limits of a service, at the limit and past it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.services.effects import Effect, EffectCause, PendingEffects
from liftpy.core.services.machine import LogTimers
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import parse_headers
from liftpy.errors import ConfigError
from liftpy.service import Identity, Outbox, Service, ServiceFailedError, ServiceMachine
from liftpy.service.settings import ServiceSettings
from tests.each import each

KIB, MIB = 1024, 1024 * 1024
OURS = ServiceSettings("sum", "in", "n1", Path("/data"))


@each(
    ("name", "low", "high"),
    [("partition", 0, MIB), ("snapshot_interval_records", 1, 1 << 40), ("snapshot_interval_s", 0.01, 1 << 30),
     ("snapshot_bytes", 4096, 1 << 50),
     ("snapshots_kept", 2, 1000), ("heartbeat_interval_s", 0.01, 10), ("outbox_records", 1, 10_000_000),
     ("outbox_bytes", 4096, 4096 * MIB),
     ("emit_window", 1, 65_536), ("emit_poll_interval_s", 0.01, 60), ("emit_timeout_s", 0.1, 60), ("max_concurrent_effects", 1, 256),
     ("effect_timeout_s", 0.01, 3600), ("tick_interval_s", 0, 3600), ("step_s", 0.001, 1), ("read_wait_s", 0, 30),
     ("read_max_bytes", 4096, 64 * MIB), ("max_snapshot_bytes", 4096, 16 * 1024 * MIB), ("snapshot_fetch_timeout_s", 0, 3600),
     ("snapshot_chunk_bytes", 4096, 8 * MIB)],
)  # fmt: skip
def test_service_setting_outside_its_bounds_is_rejected(name: str, low: float, high: float) -> None:
    for value in (low, high):
        assert getattr(replace(OURS, **{name: value}), name) == value
    step = 1 if type(getattr(OURS, name)) is int else 0.0005
    for value in (low - step, high + step):
        with pytest.raises(ConfigError) as caught:
            replace(OURS, **{name: value})
        assert str(caught.value).startswith(f"{name} = {value} is outside {low}..{high}. Choose")


# ---- what a callback may ask for ---------------------------------------------------------------------------------------------
class Asking(Service):
    """A service that calls the given function with each record and replies with the error."""

    ask: Callable[[Any, Record], None]

    def on_record(self, record: Record) -> None:
        type(self).ask(self, record)

    def on_timer(self, name: str) -> None: ...

    def on_effect(self, effect: Effect) -> bytes:
        return b""

    def take_snapshot(self) -> bytes:
        return b""


def refused(ask: Callable[[Any, Record], None], outbox: Outbox | None = None) -> str:
    """Return the error text of ``ask``, or '' without an error."""

    class Told(Asking):
        pass

    Told.ask = ask  # type: ignore[method-assign]
    machine = ServiceMachine(Told(), Identity("s", "in", "u", 0), snapshot_interval_records=100, outbox=outbox or Outbox("u/0"))
    machine.start(None)
    try:
        machine.apply([Record(0, 0, None, b"", (), "_INBOX.a", None, 1)])
    except ServiceFailedError as error:
        return str(error.__cause__)
    machine.snapshot().encode()
    return ""


def times(count: int, size: int = 0) -> Callable[[Any, Record], None]:
    def ask(service: Any, record: Record) -> None:
        for _ in range(count):
            service.emit(b"x" * size)

    return ask


def effects(*sizes: int) -> Callable[[Any, Record], None]:
    def ask(service: Any, record: Record) -> None:
        for size in sizes:
            service.effect("e", b"x" * size)

    return ask


BOUND = 256 * KIB
OVERHEAD = 128
TYPES = "Invalid output. The key must be bytes or None. The headers must be pairs of a name (str) and a value (bytes)."
NAME = "Invalid timer. Use a name (str) of 1 to 1024 bytes and a time in nanoseconds (int64)."


@each(
    ("ask", "why"),
    [
        (times(1000), ""),
        (
            times(1001),
            f"Invalid output. An output must be bytes of at most {BOUND}, and one record or timer can emit at most 1000.",
        ),
        (times(1, BOUND - OVERHEAD), ""),
        (times(1, BOUND - OVERHEAD + 1), "An output must be bytes of at most"),
        (lambda s, r: s.emit(b"x" * (BOUND - OVERHEAD - 4), key=b"k", headers=[("ab", b"c")]), ""),
        (
            lambda s, r: s.emit(b"x" * (BOUND - OVERHEAD - 4), key=b"kk", headers=[("ab", b"c")]),
            "An output must be bytes of at most",
        ),
        (
            lambda s, r: s.emit(b"x" * (BOUND - OVERHEAD - 4), key=b"k", headers=[("ab", b"cc")]),
            "An output must be bytes of at most",
        ),
        (lambda s, r: s.emit("text"), "An output must be bytes of at most"),
        (lambda s, r: s.emit(b"", key="text"), TYPES),
        (lambda s, r: s.emit(b"", headers=[("name", "text")]), TYPES),
        (lambda s, r: s.emit(b"", headers=[(b"name", b"")]), TYPES),
        (lambda s, r: s.emit(b"", headers=[("\ud800", b"")]), TYPES),
        (lambda s, r: s.emit(b"", headers=parse_headers(b"NATS/1.0\r\nname\xff: 1\r\n\r\n")), ""),
        (lambda s, r: s.reply(r, b"x" * BOUND), ""),
        (lambda s, r: s.reply(r, b"x" * (BOUND + 1)), f"Invalid reply. A reply must be bytes of at most {BOUND}."),
        (lambda s, r: s.reply(r, "text"), "A reply must be bytes of at most"),
        (lambda s, r: s.effect("e" * 256, b""), ""),
        (lambda s, r: s.effect("é" * 128, b""), ""),
        (lambda s, r: s.effect("é" * 128 + "e", b""), "Invalid name of an effect. Use a text (str) of 1 to 256 bytes."),
        (lambda s, r: s.effect("", b""), "Invalid name of an effect. Use a text (str) of 1 to 256 bytes."),
        (lambda s, r: s.effect(b"e", b""), "Invalid name of an effect. Use a text (str) of 1 to 256 bytes."),
        (lambda s, r: s.effect("e", b"x" * BOUND), ""),
        (lambda s, r: s.effect("e", b"x" * (BOUND + 1)), f"Invalid effect. It must be bytes of at most {BOUND}."),
        (lambda s, r: s.effect("e", "text"), f"Invalid effect. It must be bytes of at most {BOUND}."),
        (effects(*[0] * 10_000), ""),
        (effects(*[0] * 10_001), "Too many pending effects and offers: at most 10000, or 8388608 bytes."),
        (effects(*[BOUND] * 32), ""),
        (effects(*[BOUND] * 32, 1), "Too many pending effects and offers"),
        (lambda s, r: s.offer(b"x" * (BOUND - 1), key=b"k"), ""),
        (lambda s, r: s.offer(b"x" * (BOUND - 1), key=b"kk"), f"Invalid offer. It must be bytes of at most {BOUND}."),
        (lambda s, r: s.offer(b"", key="text"), f"Invalid offer. It must be bytes of at most {BOUND}."),
        (lambda s, r: s.set_timer("t" * 1024, -(1 << 63)), ""),
        (lambda s, r: s.set_timer("é" * 512, (1 << 63) - 1), ""),
        (lambda s, r: s.set_timer("é" * 512 + "t", 0), NAME),
        (lambda s, r: s.set_timer("", 0), NAME),
        (lambda s, r: s.set_timer("t", 1 << 63), NAME),
        (lambda s, r: s.set_timer("t", -(1 << 63) - 1), NAME),
        (lambda s, r: s.set_timer("t", s.now_ns + 0.5e9), NAME),
    ],
)
def test_service_callback_that_asks_for_something_invalid_fails_the_service(
    ask: Callable[[Any, Record], None], why: str
) -> None:
    said = refused(ask)
    assert why in said if why else not said


def test_service_callback_that_fails_discards_its_outputs_and_replies() -> None:
    def ask(service: Any, record: Record) -> None:
        service.emit(b"first")
        service.reply(record, b"yes")
        service.emit("text")

    outbox = Outbox("u/0")
    assert "An output must be bytes of at most" in refused(ask, outbox)
    assert (outbox.output_count, outbox.waiting_count) == (0, 0)


# ---- what waits --------------------------------------------------------------------------------------------------------------
def test_service_pending_effects_above_the_number_or_byte_limit_are_rejected() -> None:
    pending = PendingEffects("u/0/s")
    pending.add("ab", b"xyz", b"key", EffectCause(0, 1), is_offer=True, output_count=0)
    (one,) = pending
    size = one.size_bytes
    assert size == len(pending.encode()) - 8
    assert pending.has_room(9_999, 8 * MIB - size)
    assert not pending.has_room(10_000, 0)
    assert not pending.has_room(1, 8 * MIB - size + 1)
    pending.end(0)
    assert pending.has_room(10_000, 8 * MIB)


def test_service_log_timers_at_their_limit_reject_new_timers_but_move_existing_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.core.services.machine.MAX_TIMERS", 3)
    timers = LogTimers()
    for name in "abc":
        timers.set(name, 5)
    with pytest.raises(ValueError, match="timers that"):
        timers.set("d", 1)
    timers.set("a", 9)
    assert [timers.pop_due(9) for _ in range(4)] == [(5, "b"), (5, "c"), (9, "a"), None]


def test_service_log_timers_set_cost_does_not_grow_with_the_number_of_timers() -> None:
    steps = {}
    for count in (10, 3000):
        timers, least = LogTimers(), 1.0
        for number in range(count):
            timers.set(f"t{number}", number)
        for at_ns in range(50):
            began = time.perf_counter()
            timers.set("t0", at_ns)
            least = min(least, time.perf_counter() - began)
        steps[count] = least
    assert steps[3000] < 20 * steps[10]
