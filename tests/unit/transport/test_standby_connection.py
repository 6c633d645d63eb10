"""Test the connection of standbys: it opens for the first standby, and a new leader takes over its subscription."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.errors import ConfigError
from sidecar.runtime.settings import NodeSettings
from sidecar.transport import connections
from sidecar.transport.connection import open_bus
from sidecar.transport.connections import StandbyLink, StandbySubscription
from sidecar.transport.ingest_connection import IngestConnection
from tests.unit.transport.fake_server import FakeServer
from tests.until import until


class Bench:
    """The standby connection of a node, and its NATS server. ``heard``: (sink, payload) of each message."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.may_connect = asyncio.Event()
        self.may_connect.set()
        self.tries = 0
        self.error: Exception | None = None
        self.standby = StandbyLink(self._connect)
        self.heard: list[tuple[str, bytes]] = []

    async def _connect(self) -> IngestConnection:
        self.tries += 1
        await self.may_connect.wait()
        if self.error is not None:
            raise self.error
        settings = NodeSettings("n1", Path("unused"), nats=(f"nats://127.0.0.1:{self.server.port}",))
        return await open_bus(settings, lambda: IngestConnection(NodeInflight(), 1 << 20, name="standby"))

    def sink(self, name: str) -> Callable[..., None]:
        return lambda subject, reply, payload, headers: self.heard.append((name, payload))

    def hear(self, subject: str) -> StandbySubscription:
        return self.standby.subscribe(subject, self.sink(subject), lambda count: None)

    async def opened(self) -> IngestConnection:
        """Wait until the connection is open, and the server has all subscriptions."""
        await until(lambda: self.standby.link is not None)
        assert self.standby.link is not None
        await self.standby.wait_until_processed(5)
        return self.standby.link

    def subscribed(self) -> list[str]:
        return [line.split()[1].decode() for line in self.server.lines if line.startswith(b"SUB ")]

    def publish(self, number: int, payload: bytes) -> None:
        """Send a message to the subscription of this number."""
        subject = self.subscribed()[number - 1].encode()
        self.server.says(b"MSG %b %d %d\r\n%b\r\n" % (subject, number, len(payload), payload))

    async def lose(self) -> None:
        """End the connection, and wait until it is back."""
        link = await self.opened()
        count = link.stats["reconnects"]
        self.server.disconnect()
        await until(lambda: link.stats["reconnects"] > count and link.is_connected)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.server.start()
    yield made
    await made.standby.stop()
    made.server.close()


def lead(hearing: StandbySubscription, bench: Bench, lost: list[str], name: str) -> None:
    """Let the follower of ``hearing`` become the leader ``name``."""
    hearing.feed_to(bench.sink(name), lambda count: None, lambda: lost.append(name))


async def test_standby_connection_is_opened_with_the_first_standby(bench: Bench) -> None:
    bench.may_connect.clear()
    await bench.standby.wait_until_processed(1.0)
    await asyncio.sleep(0)
    assert bench.tries == 0
    first, second, gone, aside = (bench.hear(subject) for subject in "abce")
    gone.close()
    aside.leave()  # a leader that resigns must not get publishes from a connection that opens later
    lead(second, bench, [], "leader of b")
    bench.may_connect.set()
    link = await bench.opened()
    bench.hear("d")
    await bench.standby.wait_until_processed(5)
    assert bench.subscribed() == ["a", "b", "d"]
    for number in (1, 2, 3):
        bench.publish(number, b"%d" % number)
    await until(lambda: len(bench.heard) == 3)
    assert bench.heard == [("a", b"1"), ("leader of b", b"2"), ("d", b"3")]
    lead(first, bench, [], "leader of a")
    bench.publish(1, b"4")
    await until(lambda: bench.heard[3:] == [("leader of a", b"4")])
    await bench.standby.stop()
    assert (link.is_closed, bench.tries) == (True, 1)


async def test_standby_connection_stop_cancels_a_pending_connect(bench: Bench) -> None:
    bench.may_connect.clear()
    bench.hear("a")
    await until(lambda: bench.tries == 1)
    await bench.standby.stop()
    bench.may_connect.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (bench.standby.link, bench.server.writers) == (None, [])


async def test_standby_connection_loss_is_reported_only_to_leaders_that_use_it(bench: Bench) -> None:
    leads, lost = bench.hear("a"), list[str]()
    bench.hear("b")
    await bench.opened()
    lead(leads, bench, lost, "a")
    await bench.lose()
    assert lost == ["a"]
    leads.leave()
    leads.close()
    await bench.lose()
    assert lost == ["a"], "it does not lead any more"


async def test_standby_subscription_is_confirmed_once_despite_a_slow_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.may_connect.clear()
    hearing, seen = bench.hear("a"), list[str]()
    hearing.when_settled(lambda: seen.append("without a connection"))
    await until(lambda: seen == ["without a connection"])
    bench.may_connect.set()
    await bench.opened()
    hearing.when_settled(lambda: seen.append("confirmed"))
    assert seen[1:] == []
    await until(lambda: seen[1:] == ["confirmed"])
    bench.server.mute = True
    monkeypatch.setattr(connections, "_SETTLES_S", 0.01)
    hearing.when_settled(lambda: seen.append("late"))
    await until(lambda: seen[2:] == ["late"])
    bench.server.mute = False
    bench.server.says(b"PONG\r\n" * bench.server.owed)
    await bench.standby.wait_until_processed(5)
    assert seen[2:] == ["late"]


async def test_standby_subscription_calls_back_behind_the_messages_that_were_read_with_it(bench: Bench) -> None:
    hearing = bench.standby.subscribe(
        "a", lambda *_: hearing.call_after_read(lambda: bench.heard.append(("after", b""))), lambda count: None
    )
    hearing.call_after_read(lambda: bench.heard.append(("no connection", b"")))
    bench.hear("b")
    await bench.opened()
    assert bench.heard == [("no connection", b"")]
    bench.server.says(b"MSG a 1 1\r\nx\r\nMSG b 2 1\r\ny\r\n")
    await until(lambda: bench.heard[1:] == [("b", b"y"), ("after", b"")])


async def test_standby_subscription_that_is_denied_reports_the_loss_to_its_leader(bench: Bench) -> None:
    told, lost = list[tuple[bool, str]](), list[str]()
    bench.standby.on_denial = lambda is_publish, subject: told.append((is_publish, subject))
    leads, stands_by, other = (bench.hear(subject) for subject in ("a", "a", "b"))
    await bench.opened()
    lead(leads, bench, lost, "leads")
    lead(other, bench, lost, "other")
    for kind in ("Publish", "Subscription"):
        bench.server.says(b"-ERR 'Permissions Violation for %b to \"a\"'\r\n" % kind.encode())
    await until(lambda: lost)
    assert (lost, told) == (["leads"], [(True, "a"), (False, "a")])
    lead(stands_by, bench, lost, "stood by")
    await until(lambda: lost == ["leads", "stood by"])
    lost.clear()
    await bench.lose()
    assert sorted(lost) == ["leads", "other", "stood by"]
    lost.clear()
    for hearing, name in ((bench.hear("a"), "later"), (stands_by, "again")):
        lead(hearing, bench, lost, name)
    await bench.standby.wait_until_processed(5)
    assert lost == [], "the next connection has sent the subscription again"


async def test_standby_connection_retries_while_the_credentials_are_unreadable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "_AGAIN_S", 0.001)
    bench.error = ConfigError("a.creds can't be read")
    bench.hear("a")
    await until(lambda: bench.tries > 3)
    bench.error = None
    await bench.opened()
    assert bench.subscribed() == ["a"]
    assert caplog.messages == ["standby connection cannot connect to NATS error=a.creds can't be read: retrying"], "logged once"
