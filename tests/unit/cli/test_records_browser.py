"""The records browser of ``liftpy dashboard --show-records``, over the cluster in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from liftpy.client import Client
from liftpy.errors import ConfigError, LiftError, NotAllowedError
from liftpy.testing.memory import MemoryCluster
from sidecar.cli.dashboard import ClusterSite, dashboard
from sidecar.status import records
from sidecar.status.records import RecordsBrowser, RecordsQuery, query_text, readable, records_query

HOSTILE = b"<script>alert(1)</script>"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with MemoryCluster() as cluster:
        found = await cluster.client()
        await found.create_stream("orders", "orders")
        for number in range(30):
            await found.publish("orders", b"v%d" % number, key=b"even" if number % 2 == 0 else b"odd")
        await found.publish("orders", HOSTILE, key=b"\xff\x00", headers=[("a", b"1"), ("a", b"2")])
        yield found


class Browsed:
    """A dashboard with a records browser."""

    def __init__(self, client: Client) -> None:
        self.reads: list[RecordsQuery] = []
        self.refusal: LiftError | None = None
        self.browser = RecordsBrowser(client, self.report)
        self.site = ClusterSite(client, "liftpy", ("127.0.0.1",), self.browser)

    async def report(self, query: RecordsQuery) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.reads.append(query)

    async def get(self, path: str, headers: str = "") -> str:
        answer = self.site.respond(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode())
        body = answer if isinstance(answer, bytes) else await answer
        assert isinstance(body, bytes)
        return body.decode()

    async def offsets(self, **fields: str) -> list[int]:
        return [row["offset"] for row in (await self.browser.read(records_query("orders", fields)))["rows"]]


async def test_records_browser_shows_the_newest_records_first(client: Client) -> None:
    browsed = Browsed(client)
    assert await browsed.offsets(limit="3") == [30, 29, 28]
    assert await browsed.offsets(limit="2", key="even") == [28, 26]
    assert [(query.stream, query.partition, query_text(query)) for query in browsed.reads] == [
        ("orders", 0, 'from="newest" limit=3'),
        ("orders", 0, 'from="newest" key="even" limit=2'),
    ]


async def test_records_browser_that_cannot_store_an_audit_event_shows_no_record(client: Client) -> None:
    browsed = Browsed(client)
    browsed.refusal = NotAllowedError("not an operator")
    page = await browsed.browser.read(records_query("orders", {}))
    assert page["rows"] == []
    assert "not an operator" in page["note"]


async def test_records_browser_with_a_start_offset_or_time_shows_records_in_log_order(client: Client) -> None:
    browsed = Browsed(client)
    assert await browsed.offsets(start="27", limit="3") == [27, 28, 29]
    assert await browsed.offsets(start="27") == [27, 28, 29, 30]
    assert await browsed.offsets(start="-5m", key="odd", limit="1") == [1]
    assert "<h2>Newest first</h2>" in await browsed.get("/records/orders")
    assert "<h2>Newest first</h2>" not in await browsed.get("/records/orders?start=27")


async def test_records_browser_escapes_html_in_record_values(client: Client) -> None:
    browsed = Browsed(client)
    text = await browsed.get("/records/orders?limit=1")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "ff00" in text
    assert "a: 1, a: 2" in text


@pytest.mark.parametrize("part", ["value", "key", "headers"])
async def test_records_browser_above_its_byte_limit_shows_a_note_with_the_next_offset(
    client: Client, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(records, "MOST_BYTES", 8000)
    large = b"x" * 3000
    fields: dict[str, Any] = {"key": {"key": large}, "headers": {"headers": [("a", large)]}}.get(part, {})
    for _ in range(3):
        await client.publish("orders", large if part == "value" else b"", **fields)
    page = await Browsed(client).browser.read(records_query("orders", {"start": "31"}))
    assert [row["offset"] for row in page["rows"]] == [31, 32]
    assert "Start at offset 33" in page["note"]
    missing = await Browsed(client).browser.read(records_query("payments", {}))
    assert missing["rows"] == []
    assert "payments" in missing["note"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "partition=-1", "partition=x", "start=yesterday", "key=" + "x" * 5000]
)
async def test_records_browser_query_that_is_invalid_is_rejected(client: Client, query: str) -> None:
    assert (await Browsed(client).get(f"/records/orders?{query}")).startswith("HTTP/1.1 400 ")


async def test_dashboard_without_the_records_option_answers_404_for_records(client: Client) -> None:
    site: Any = ClusterSite(client, "liftpy", ("127.0.0.1",))
    answer = site.respond(b"GET /records/orders HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404 ")


def test_records_browser_shows_utf_8_values_as_text_and_other_values_as_hex() -> None:
    assert readable('{"a": "ü"}'.encode()) == '{"a": "ü"}'
    assert readable(b"\xff\x01") == "ff01"
    assert readable(b"a\x00b") == "610062"
    assert readable(b"x" * 3000).endswith("x... (3,000 characters)")


async def test_dashboard_request_with_another_host_name_is_rejected_with_the_option_for_it(client: Client) -> None:
    site: Any = ClusterSite(client, "liftpy", ("127.0.0.1",))
    answer = site.respond(b"GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
    option = next(word for word in answer.split() if word.startswith(b"--")).decode()
    assert answer.startswith(b"HTTP/1.1 421")
    assert option in [name for param in dashboard.params for name in param.opts]


@pytest.mark.parametrize(
    ("site", "destination", "count"),
    [("cross-site", "image", 0), ("same-site", "empty", 0), ("cross-site", "document", 1), ("same-origin", "empty", 1)],
)
async def test_records_browser_reads_nothing_for_a_page_of_another_site(
    client: Client, site: str, destination: str, count: int
) -> None:
    browsed = Browsed(client)
    mode = "navigate" if destination == "document" else "no-cors"
    headers = f"Sec-Fetch-Site: {site}\r\nSec-Fetch-Mode: {mode}\r\nSec-Fetch-Dest: {destination}\r\n"
    text = await browsed.get("/records/orders", headers)
    assert text.startswith("HTTP/1.1 200" if count else "HTTP/1.1 403")
    assert len(browsed.reads) == count


def test_records_query_with_an_invalid_stream_name_is_rejected() -> None:
    with pytest.raises(ConfigError):
        records_query("../etc", {})
