"""The page in a real browser, on three real nodes under load: its numbers are those of ``/api``, a killed leader shows as an election,
nothing leaves the origin, and a name that looks like markup stays text. One cluster for all of it. Skipped where there is no browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nats
import pytest

from liftpy.client import connect
from liftpy.core.observe.node_summary import ASKED
from liftpy.core.observe.page_model import KINDS, figure, value_at
from liftpy.errors import LiftError
from sidecar.dev.cluster import DevCluster, DevNode
from tests.unit.status.test_dashboard_pages import HOSTILE

AXE = os.environ.get("LIFTPY_AXE", "")
"""Path of axe.min.js of the npm package axe-core; '': accessibility is not checked."""
CHROMIUM = shutil.which("chromium") or ""
PICTURES = os.environ.get("LIFTPY_PICTURES", "")
"""A folder for screenshots; '': none are made."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not CHROMIUM, reason="Debian's chromium is not installed"),
    pytest.mark.skipif(find_spec("playwright") is None, reason="Playwright is not installed"),
]


class Browsed:
    """A page, and all that must not happen on it."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.wrong: list[str] = []
        page.on("console", lambda said: self.wrong.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:,")):
            self.wrong.append(f"asked elsewhere: {request.url}")

    async def open(self, path: str) -> None:
        await self.page.goto(self.base + path)
        await self.until("document.getElementById('live').textContent.startsWith('live')")

    async def until(self, condition: str, timeout_s: float = 30.0) -> None:
        """Asked again and again from here: waiting on the page itself would need ``eval``, which its policy forbids."""
        deadline = time.monotonic() + timeout_s
        while not await self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"{condition}\n{await self.page.inner_text('main')}"
            await asyncio.sleep(0.05)

    async def picture(self, name: str) -> None:
        if PICTURES:
            await self.page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)


SHOWN = """async (address) => {
  for (;;) {
    const seq = document.body.dataset.seq;
    const found = await (await fetch(address)).json();
    if (String(found.seq) !== seq || document.body.dataset.seq !== seq) {
      await new Promise((done) => setTimeout(done, 50));
      continue;
    }
    const figures = [...document.querySelectorAll("[data-v]")].map((one) => [one.dataset.v, one.dataset.f, one.textContent]);
    const cells = [...document.querySelectorAll("table[data-rows]")].map((table) => [
      table.dataset.rows, JSON.parse(table.dataset.columns),
      [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent)),
    ]);
    return { found, figures, cells };
  }
}"""
"""What a page shows, and its JSON of the same look."""


async def check_numbers(browsed: Browsed, address: str) -> int:
    """Every figure and every cell is what the JSON says, in the words that Python has for it."""
    shown = await browsed.page.evaluate(SHOWN, address)
    for path, kind, text in shown["figures"]:
        assert text == figure(kind, value_at(shown["found"], path)), path
    for path, columns, rows in shown["cells"]:
        wanted = [[figure(one["kind"], row.get(one["name"])) for one in columns] for row in value_at(shown["found"], path)]
        assert rows == wanted, path
    return len(shown["figures"]) + sum(len(row) for _, _, rows in shown["cells"] for row in rows)


async def load(client: Any) -> None:
    """Publishes on all partitions, and goes on whoever leads them."""

    async def publish(partition: int) -> None:
        while True:
            with contextlib.suppress(LiftError):
                await client.publish("orders", b"x" * 200, partition=partition)
            await asyncio.sleep(0.01)

    await asyncio.gather(*map(publish, range(3)))


@contextlib.asynccontextmanager
async def browser(base: str, scheme: str = "light") -> AsyncIterator[Browsed]:
    from playwright.async_api import async_playwright  # here, because each worker would import it

    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await started.new_context(viewport={"width": 1280, "height": 720}, color_scheme=scheme)
        yield Browsed(await context.new_page(), base)
        await started.close()


async def _an_event_links_to_its_moment(browsed: Browsed) -> None:
    await browsed.page.goto(browsed.base + "/events?kind=election")
    await browsed.page.click("#events tbody a")
    await browsed.until("document.activeElement.id === 'at-mark'")
    assert "election" in await browsed.page.inner_text("#at-mark")


FOCUS = """() => {
  const style = getComputedStyle(document.activeElement);
  return [document.activeElement.textContent.trim(), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
}"""


async def _the_page_works_by_keyboard(browsed: Browsed) -> None:
    """Tab reaches the pages in order with a visible focus, Enter opens a mark, and Escape closes it."""
    await browsed.open("/")
    seen = []
    for _ in range(5):
        await browsed.page.keyboard.press("Tab")
        seen.append(await browsed.page.evaluate(FOCUS))
    assert seen == [[name, True] for name in ("Skip to content", "Cluster", "Groups", "Services", "Events")]
    await browsed.until("document.querySelector('.track .mark') !== null")
    await browsed.page.focus(".track .mark")
    await browsed.page.keyboard.press("Enter")
    await browsed.until("document.getElementById('at-mark').childElementCount > 0")
    await browsed.page.keyboard.press("Escape")
    await browsed.until("document.getElementById('at-mark').childElementCount === 0")
    assert await browsed.page.evaluate("document.activeElement.classList.contains('mark')")


PAGES = ("/", "/node/n1", "/stream/orders", "/groups", "/services", "/events", "/search?q=o", "/runbook/nats-lost")
CLIPPED = """() => [
  ...[document.documentElement, ...document.querySelectorAll(".tile dd, .word, h2, .count, .namespace")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline")
    .map((one) => one.outerHTML.slice(0, 100)),
]"""


async def _nothing_is_clipped_on_a_phone(browsed: Browsed) -> None:
    context = await browsed.page.context.browser.new_context(viewport={"width": 390, "height": 800})
    page = await context.new_page()
    for path in PAGES:
        await page.goto(browsed.base + path)
        assert await page.evaluate(CLIPPED) == [], path
    await page.goto(browsed.base + "/services")
    empty = await page.evaluate("getComputedStyle(document.querySelector('.scroll:has(tbody:empty)'), '::after').content")
    assert empty == '"none"', "an empty table says so"
    await context.close()


async def _axe_finds_nothing(browsed: Browsed) -> None:
    if not AXE:
        return
    script = await asyncio.to_thread(Path(AXE).read_text, "utf-8")
    context = await browsed.page.context.browser.new_context(viewport={"width": 390, "height": 800}, bypass_csp=True)
    page = await context.new_page()
    for path in PAGES:
        await page.goto(browsed.base + path)
        await page.evaluate(script)
        found = await page.evaluate("async () => (await axe.run()).violations.map((one) => [one.id, one.nodes[0].html])")
        assert found == [], path
    await context.close()


@pytest.mark.long
def test_dashboard_in_a_browser_shows_nodes_and_streams_of_the_cluster(fragile_cluster: DevCluster) -> None:
    asyncio.run(_seen(fragile_cluster))


async def _seen(cluster: DevCluster) -> None:
    async with connect(cluster.nats_url, cluster.namespace) as client:
        await client.create_stream("orders", "shop.orders", partitions=3, replicas=3)
        loading = asyncio.ensure_future(load(client))
        leader = (await client.admin.controller_ids())[0]
        victim = next(one for one in cluster.nodes.values() if one.node_id != leader)
        seen_at = next(one for one in cluster.nodes.values() if one is not victim)
        try:
            async with browser(seen_at.status_url) as browsed:
                await _load_is_seen(browsed)
                await _figures_are_written_alike(browsed)
                await _a_killed_leader_is_seen(browsed, cluster, victim.node_id)
                await _an_event_links_to_its_moment(browsed)
                await _the_page_works_by_keyboard(browsed)
                await _nothing_is_clipped_on_a_phone(browsed)
                await _axe_finds_nothing(browsed)
                await _a_hostile_name_is_text(browsed, cluster, victim.node_id)
                await asyncio.to_thread(_back, victim)
                await browsed.until("document.getElementById('word').textContent === 'OK'", 60.0)
                assert browsed.wrong == []
        finally:
            loading.cancel()


async def _load_is_seen(browsed: Browsed) -> None:
    await browsed.open("/")
    await browsed.until("document.querySelectorAll('.plots canvas').length === 8")
    await browsed.until(
        "Number(document.querySelector('[data-v=\"cluster.now.records_in_s\"]').textContent.replace(',', '')) > 0"
    )
    await browsed.until("document.getElementById('word').textContent === 'OK'")
    assert await check_numbers(browsed, "/api/cluster.json") > 40
    fold = await browsed.page.evaluate(
        "Math.max(...[...document.querySelectorAll('#word, .facts, .tiles, .counts')].map((one) => one.getBoundingClientRect().bottom))"
    )
    assert fold < 720, "at a glance is above the fold"
    await browsed.picture("cluster")
    for path, address in (("/node/n2", "/api/node/n2.json"), ("/stream/orders", "/api/stream/orders.json")):
        await browsed.open(path)
        assert await check_numbers(browsed, address) > 40
        await browsed.picture(path.replace("/", "-")[1:])
    await browsed.open("/")


async def _figures_are_written_alike(browsed: Browsed) -> None:
    """By the page's script and by Python."""
    values = [
        0,
        0.04,
        9.95,
        999.5,
        1234.5,
        99_999.5,
        1e6,
        12_345_678,
        2**50,
        0.00025,
        0.0099951,
        0.12345,
        0.99951,
        61,
        3725,
        200_000,
    ]
    samples = [[kind, value] for kind in KINDS for value in [*(values if kind != "text" else ()), None, "", "<b>", True]]
    said = await browsed.page.evaluate(
        "async (samples) => { const { figure } = await import('/static/format.js'); return samples.map(([k, v]) => figure(k, v)); }",
        samples,
    )
    assert said == [figure(kind, value) for kind, value in samples]


async def _a_killed_leader_is_seen(browsed: Browsed, cluster: DevCluster, victim: str) -> None:
    await browsed.until("document.querySelector('#timeline .row') !== null")
    marks = "document.querySelectorAll('#timeline .track .mark.is-election, #timeline .track .mark.is-fenced').length"
    before = await browsed.page.evaluate(marks)  # of the tests that had this cluster before
    began = time.monotonic()
    cluster.nodes[victim].kill()
    await browsed.until("document.getElementById('word').textContent !== 'OK'")
    await browsed.until(f"{marks} > {before}")
    took_s = time.monotonic() - began
    print(f"the election of a killed leader's partitions was on the timeline after {took_s:.2f} s")
    await browsed.until("document.getElementById('word').textContent === 'DEGRADED'")
    assert victim in await browsed.page.inner_text("#reasons")
    await browsed.page.set_viewport_size({"width": 390, "height": 800})
    reasons = "document.getElementById('reasons')"
    assert await browsed.page.evaluate(f"{reasons}.scrollHeight <= {reasons}.clientHeight"), "a reason is cut off on a phone"
    await browsed.page.set_viewport_size({"width": 1280, "height": 720})
    mark = browsed.page.locator("#timeline .track .mark.is-election, #timeline .track .mark.is-fenced").last
    await mark.focus()
    await browsed.page.keyboard.press("Enter")
    await browsed.until("document.querySelectorAll('#at-mark li').length > 0")
    await browsed.picture("killed")
    await browsed.page.click("#reasons a")
    assert await browsed.page.inner_text("h2") == "Look", "the runbook"
    await browsed.open("/")


def _back(victim: DevNode) -> None:
    victim.start()
    victim.wait_ready()


async def _a_hostile_name_is_text(browsed: Browsed, cluster: DevCluster, victim: str) -> None:
    """Somebody answers in place of a node that is gone, and names nodes and streams like markup."""
    connection = await nats.connect(cluster.nats_url)
    glance = {"node": HOSTILE, "is_controller": True, "metadata_leader": HOSTILE, "version": HOSTILE, "index": 1 << 40}
    glance["nodes"] = {**dict.fromkeys(cluster.nodes, "live"), HOSTILE: HOSTILE}

    async def answered(message: Any) -> None:
        said: dict[str, Any] = {"glance": glance} if message.data == ASKED else {next(iter(json.loads(message.data))): None}
        await connection.publish(message.reply, json.dumps(said).encode())

    await connection.subscribe(f"{cluster.namespace}.status.{victim}", cb=answered)
    await browsed.until(f"[...document.querySelectorAll('#nodes td')].some((one) => one.textContent === {json.dumps(HOSTILE)})")
    assert await browsed.page.evaluate("document.querySelectorAll('main img, main script, [onerror]').length") == 0
    await browsed.picture("hostile")
    await connection.close()
