"""Test the connection of standbys: it opens for the first standby, and a new leader takes over its subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from liftpy.errors import ConfigError
from sidecar.transport import connections
from sidecar.transport.connections import StandbyLink
from tests.until import until


class FakeLink:
    """An IngestConnection, as far as it is asked."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.changed: Callable[[bool], None] = lambda is_up: None
        self.heard: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[bool], None]) -> None:
        self.changed = callback

    def on_denial(self, callback: Callable[[bool, str], None]) -> None:
        self.denied = callback

    def listen(self, subject: str, sink: Any, *, given_up: Any) -> Any:
        self.told.append(("listen", subject, sink, given_up))
        return self

    def feed_to(self, sink: Any, given_up: Any) -> None:
        self.told.append(("feed", sink, given_up))

    def leave(self) -> None:
        self.told.append(("leave",))

    def close(self) -> None:
        self.told.append(("close",))

    def call_after_read(self, callback: Callable[[], None]) -> None:
        self.told.append(("behind", callback))

    def when_subscribed(self, callback: Callable[[], None]) -> None:
        self.heard.append(callback)

    async def wait_until_processed(self, timeout_s: float) -> None:
        self.told.append(("settled", timeout_s))

    async def stop(self) -> None:
        self.told.append(("stop",))


class Bench:
    def __init__(self) -> None:
        self.made: list[Any] = []
        self.there = asyncio.Event()
        self.standby = StandbyLink(self.connect)

    async def connect(self) -> Any:
        self.made.append(FakeLink())
        await self.there.wait()
        return self.made[0]


async def test_standby_connection_is_opened_with_the_first_standby() -> None:
    bench = Bench()
    await bench.standby.wait_until_processed(1.0)
    await bench.standby.stop()
    assert bench.made == [], "nobody has stood by"
    bench.standby.hear("a", "sink of a", "given up of a")  # type: ignore[arg-type]
    other = bench.standby.hear("b", "sink of b", "given up of b")  # type: ignore[arg-type]
    gone = bench.standby.hear("c", "sink of c", "given up of c")  # type: ignore[arg-type]
    gone.close()
    aside = bench.standby.hear("e", "sink of e", "given up of e")  # type: ignore[arg-type]
    aside.leave()  # a leader that steps aside must not be given publishes by a connection that comes later
    other.feed_to("leader's sink", "leader's given up", lambda: None)  # type: ignore[arg-type]
    bench.there.set()
    await until(lambda: bench.standby.link is not None, "it is open")
    (link,) = bench.made
    assert link.told == [
        ("listen", "a", "sink of a", "given up of a"),
        ("listen", "b", "leader's sink", "leader's given up"),
    ]
    bench.standby.hear("d", "sink of d", "given up of d")  # type: ignore[arg-type]
    assert link.told[-1][:2] == ("listen", "d")
    await bench.standby.wait_until_processed(2.5)
    await bench.standby.stop()
    assert link.told[-2:] == [("settled", 2.5), ("stop",)]


async def test_standby_connection_stop_cancels_a_pending_connect() -> None:
    bench = Bench()
    bench.standby.hear("a", "sink", "given up")  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert len(bench.made) == 1, "it is being opened"
    await bench.standby.stop()
    bench.there.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert bench.standby.link is None


async def test_standby_connection_loss_is_reported_only_to_leaders_that_use_it() -> None:
    bench = Bench()
    bench.there.set()
    leads = bench.standby.hear("a", "sink", "given up")  # type: ignore[arg-type]
    bench.standby.hear("b", "sink", "given up")  # type: ignore[arg-type]
    await until(lambda: bench.standby.link is not None, "it is open")
    link, lost = bench.made[0], list[str]()
    leads.feed_to("leader's sink", "leader's given up", lambda: lost.append("a"))  # type: ignore[arg-type]
    assert link.told[-1] == ("feed", "leader's sink", "leader's given up")
    link.changed(True)
    assert lost == []
    link.changed(False)
    assert lost == ["a"]
    leads.call_after_read("callback")  # type: ignore[arg-type]
    leads.leave()
    leads.close()
    assert link.told[-3:] == [("behind", "callback"), ("leave",), ("close",)]
    link.changed(False)
    assert lost == ["a"], "it does not lead any more"


async def test_standby_subscription_is_confirmed_once_despite_a_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, seen = Bench(), list[str]()
    bench.there.set()
    hearing = bench.standby.hear("a", "sink", "given up")  # type: ignore[arg-type]
    hearing.when_settled(lambda: seen.append("without a connection"))
    await until(lambda: bench.standby.link is not None, "it is open")
    assert seen == ["without a connection"]
    link = bench.made[0]
    hearing.when_settled(lambda: seen.append("heard"))
    assert seen[1:] == []
    link.heard.pop()()
    assert seen[1:] == ["heard"]
    monkeypatch.setattr(connections, "_SETTLES_S", 0.01)
    hearing.when_settled(lambda: seen.append("late"))
    await until(lambda: seen[2:] == ["late"], "it waits no longer")
    link.heard.pop()()
    assert seen[2:] == ["late"]


async def test_standby_subscription_that_is_denied_reports_the_loss_to_its_leader() -> None:
    bench, told, lost = Bench(), list[tuple[bool, str]](), list[str]()
    bench.there.set()
    bench.standby.on_denial = lambda is_publish, subject: told.append((is_publish, subject))
    leads, stands_by, other = (bench.standby.hear(subject, "sink", "given up") for subject in ("a", "a", "b"))  # type: ignore[arg-type]
    await until(lambda: bench.standby.link is not None, "it is open")
    leads.feed_to("sink", "given up", lambda: lost.append("leads"))  # type: ignore[arg-type]
    other.feed_to("sink", "given up", lambda: lost.append("other"))  # type: ignore[arg-type]
    (link,) = bench.made
    link.denied(True, "a")
    await asyncio.sleep(0)
    assert lost == [], "that was a publish"
    link.denied(False, "a")
    await asyncio.sleep(0)
    assert lost == ["leads"]
    stands_by.feed_to("sink", "given up", lambda: lost.append("stood by"))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert lost == ["leads", "stood by"]
    assert told == [(True, "a"), (False, "a")]
    link.changed(False)
    later = bench.standby.hear("a", "sink", "given up")  # type: ignore[arg-type]
    later.feed_to("sink", "given up", lambda: lost.append("later"))  # type: ignore[arg-type]
    stands_by.feed_to("sink", "given up", lambda: lost.append("again"))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert (lost.count("later"), lost.count("again")) == (0, 0), "it is asked for anew with the next connection"


async def test_standby_connection_retries_while_the_credentials_are_unreadable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_AGAIN_S", 0.001)
    link, tries = FakeLink(), 0

    async def connect() -> Any:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise ConfigError("a.creds can't be read")
        return link

    standby = StandbyLink(connect)
    standby.hear("a", "sink", "given up")  # type: ignore[arg-type]
    await until(lambda: standby.link is link, "it is there")
    assert link.told == [("listen", "a", "sink", "given up")]
    assert caplog.messages == ["standby connection cannot connect to NATS error=a.creds can't be read: retrying"], "said once"
    await standby.stop()
