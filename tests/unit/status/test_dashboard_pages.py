"""Test the dashboard pages: content, escaping, polling only while viewed, and limits."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.observe.history import NAMES, History, select_rows
from liftpy.core.observe.node_summary import ASKED, NodeSummary
from liftpy.core.observe.page_model import NO_MEMBERS, figure, instance_row, joined_services, value_at
from liftpy.core.observe.timeline import MARKS, MOST_MARKS, fits, marks, marks_of
from liftpy.errors import UnavailableError
from sidecar.cli.dashboard import together
from sidecar.status import cluster_poller, pages
from sidecar.status import http as serving
from sidecar.status.cluster_poller import UNUSED_DATA_S, ClusterPoller
from sidecar.status.http import EventStreamResponse, HttpServer
from sidecar.status.pages import Site, as_html, names, runbook, static
from tests.each import each
from tests.until import until

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = '<img src=x onerror="alert(1)">'
VENDORED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""Of the npm package uplot 1.6.32."""
NODES = ("n1", "n2", "n3")
WALL_S = 1_700_000_000.4


def a_partition(number: int, role: str = "LEADER", **more: Any) -> dict[str, Any]:
    return {
        "stream": "s", "partition": number, "urgency": 7, "role": role, "leader": "n1", "epoch": 3, "isr": ["n1", "n2"],
        "replicas": ["n1", "n2"], "newest": 100 + number, "high_watermark": 99 + number, "start": 0, "log_bytes": 5000,
        "records_in": 100, "bytes_in": 1000, "lag_records": 1, "lag_s": 0.25, "waiting_acks": 2, **more,
    }  # fmt: skip


class Cluster:
    """Stand in for nodes that answer requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.silent: set[str] = set()
        self.states = dict.fromkeys(NODES, "live")
        self.records = 0
        self.stream = "s"
        self.events: list[dict[str, Any]] = []
        self.kept: list[dict[str, Any]] = []
        self.kept_by: dict[str, str] = {}
        """Node -> which node has the stream of events, as it says; others say that there is none."""
        self.histories = {node: History() for node in NODES}
        self.keepers: dict[tuple[str, str], History] = {}
        """Node, of which other node -> what it keeps."""

    def glance(self, node: str) -> NodeSummary:
        return NodeSummary(
            node=node, version="0.1.0", incarnation=1, is_controller=True, metadata_leader="n1", records_in=self.records, leads=2,
            nodes=self.states, index=9, streams=3, term=4, members=dict.fromkeys(NODES, 0), feature_level=1, speaks=2,
        )  # fmt: skip

    async def node_ids(self) -> list[str]:
        return list(NODES)

    async def ask_node(self, node: str, asked: bytes, timeout_s: float) -> dict[str, Any]:
        assert timeout_s < cluster_poller.EVERY_S or cluster_poller.EVERY_S < 0.1, (
            "all else waits for a node that does not answer"
        )
        if node in self.silent:
            raise UnavailableError(f"{node} does not answer")
        if asked == ASKED:
            self.asked.append((node, "glance"))
            return dict(json.loads(self.glance(node).encode()))
        [(kind, said)] = json.loads(asked).items()
        self.asked.append((node, kind))
        if kind == "history":
            kept = self.keepers.get((node, said["node"])) if "node" in said else self.histories[node]
            rows = select_rows(kept, said) if kept is not None else None
            return {"history": rows.as_object() if rows is not None else None}
        if kind == "partitions":
            rows = [a_partition(number, stream=self.stream) for number in range(2)]
            return {"partitions": {"rows": rows, "more": False, "count": 2}}
        if kind == "streams":
            row = {"subject": "x", "urgency": 4, "partitions": 2, "replicas": 3, "offline": 0, "electing": 0, "under_min_isr": 0,
                   "under_replicated": 1}  # fmt: skip
            return {"streams": {"rows": [{"stream": self.stream, **row}], "more": False, "count": 1}}
        if kind == "groups":
            return {"groups": self.groups(node, said["group"])}
        if kind == "services":
            return {"services": self.services(node, said["service"])}
        if kind == "events" and "kept" in said:
            return {"events": self.kept_by.get(node) and self.kept_events(node, said)}
        if kind == "events":
            behind = [one for one in self.events if [one["index"], one["number"]] > said["after"]]
            last = [behind[-1]["index"], behind[-1]["number"]] if behind else None
            return {"events": {"events": behind, "more": False, "after": last}}
        return {}

    def groups(self, node: str, group: str) -> dict[str, Any]:
        row = {"group": self.stream, "kind": "group", "members": 0, "partitions": 1, "streams": "s", "lag_records": 9, "lag_s": 2.5,
               "unknown": 0, "in_flight": 0}  # fmt: skip
        if node != "n2" or group not in ("", self.stream):
            return {"rows": [], "members": [], "positions": [], "more": False}
        position = {
            "stream": "s",
            "partition": 0,
            "member": "",
            "position": 1,
            "end": 10,
            "lag_records": 9,
            "lag_s": 2.5,
            "in_flight": 0,
        }
        return {"rows": [row, {**row, "lag_s": "late"}], "members": [], "positions": [position] if group else [], "more": False}

    def services(self, node: str, service: str) -> dict[str, Any]:
        if service not in ("", self.stream):
            return {"rows": [], "more": False}
        gone = node == "n3"
        figures = {"service": self.stream, "role": "GONE" if gone else "FOLLOWER", "ending": "diverged", "failing": False, "lag": 4,
                   "position": 6, "snapshot": 5, "problem": "n3 differs" if gone else "", "version": "1"}  # fmt: skip
        return joined_services([{"rows": [instance_row("s", 0, figures)]}], 500, of_one=bool(service))

    def kept_events(self, node: str, said: dict[str, Any]) -> dict[str, Any]:
        if self.kept_by[node] != node:
            return {"at": [self.kept_by[node]]}
        before, limit = said["kept"]["before"] or [1 << 63, 0], said["limit"]
        found = [one for one in self.kept[::-1] if [one["index"], one["number"]] < before[:2] and fits(one, said["kept"])]
        last = [found[limit - 1]["index"], 0, 77] if len(found) > limit else None
        return {"kept": found[:limit], "more": len(found) > limit, "last": last}


class Clock:
    def __init__(self) -> None:
        self.now_s, self.wall_s = 50.0, WALL_S

    def go_on(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_s += seconds


def a_site(cluster: Cluster, clock: Clock | None = None) -> tuple[Site, ClusterPoller]:
    clock = clock or Clock()
    made = ClusterPoller("ns", cluster, None, lambda: clock.now_s, lambda: clock.wall_s)
    return Site(made), made


async def body(site: Site, path: str, query: bytes = b"") -> bytes:
    found = site.respond(path, query)
    assert found is not None
    answer = found if isinstance(found, bytes) else await found
    assert isinstance(answer, bytes)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    return answer.partition(b"\r\n\r\n")[2]


class Figures(HTMLParser):
    """Collect each number of a page with its path, and the elements of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.figures: dict[str, tuple[str, str]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._at = ("", "")
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.tags.append((tag, said))
        self._at = (str(said["data-v"]), str(said["data-f"])) if "data-v" in said else ("", "")

    def handle_data(self, data: str) -> None:
        if self._at[0]:
            self.figures[self._at[0]] = (self._at[1], data)
            self._at = ("", "")


@pytest.mark.parametrize("path", ["/", "/node/n2", "/stream/s", "/group/s", "/service/s"])
async def test_dashboard_page_shows_the_same_numbers_as_its_json(path: str) -> None:
    cluster, clock = Cluster(), Clock()
    site, _ = a_site(cluster, clock)
    await body(site, path)
    clock.go_on(1.0)
    cluster.records = 1234
    text = (await body(site, path)).decode()
    shown = json.loads(await body(site, "/api/cluster.json" if path == "/" else f"/api{path}.json"))
    found = Figures(text).figures
    assert len(found) >= 3
    for name, (kind, said) in found.items():
        assert said == figure(kind, value_at(shown, name)), name
    if path == "/":
        assert found["cluster.now.records_in_s"][1] == figure("rate", 3 * 1234)
        assert found["cluster.metadata.term"][1] == "4"
        for way in ("in", "out"):
            assert found[f"cluster.now.bytes_{way}_s"][1] == figure("bytes", value_at(shown, f"cluster.now.bytes_{way}_s"))
        assert found["cluster.feature.todo"][1] == "liftpy upgrade finalize"


async def test_dashboard_escapes_all_text_from_nodes() -> None:
    cluster = Cluster()
    cluster.stream = HOSTILE
    cluster.events = [
        {"kind": HOSTILE, "index": 1, "number": 0, "time_ns": int(WALL_S) * 10**9, "node": HOSTILE, "detail": HOSTILE}
    ]
    site, _ = a_site(cluster)
    for path, query in (
        *((path, b"") for path in ("/", "/node/n1", "/stream/s", "/groups", "/services", "/events")),
        ("/search", b"q=i"),
    ):
        text = (await body(site, path, query)).decode()
        assert "<img" not in text
        tags = {tag for tag, _ in Figures(text).tags}
        assert tags <= {
            "html", "head", "meta", "title", "link", "script", "body", "a", "header", "span", "nav", "main", "section", "p", "ul", "li",
            "dl", "dt", "dd", "div", "b", "small", "h1", "h2", "table", "thead", "tbody", "tr", "th", "td", "footer", "figure",
            "figcaption", "button", "noscript", "form", "input",
        }  # fmt: skip
        assert not [name for _, said in Figures(text).tags for name in said if name.startswith("on") or name == "style"]
    assert "&lt;img" in (await body(site, "/")).decode()


async def test_dashboard_group_page_shows_coordinator_lag_and_committed_offsets_of_the_group() -> None:
    site, _ = a_site(Cluster())
    listed = json.loads(await body(site, "/api/groups.json"))["page"]
    assert [(row["group"], row["coordinator"], row["lag_records"], row["problem"]) for row in listed["rows"]] == [
        ("s", "n2", 9, NO_MEMBERS)
    ], "a row with a value of the wrong type is left out"
    shown = json.loads(await body(site, "/api/group/s.json"))["page"]
    assert shown["group"]["coordinator"] == "n2"
    assert [(row["position"], row["end"], row["lag_s"]) for row in shown["positions"]] == [(1, 10, 2.5)]
    notes = [b"No node coordinates a group" in await body(site, f"/group/{name}") for name in ("s", "other")]
    assert notes == [False, True]
    text = (await body(site, "/groups")).decode()
    assert '<a href="/group/s">s</a>' in text
    assert '<a href="/groups" aria-current=page>' in text


async def test_dashboard_service_page_shows_each_instance_and_the_reason_of_an_ended_instance() -> None:
    site, _ = a_site(Cluster())
    [row] = json.loads(await body(site, "/api/services.json"))["page"]["rows"]
    assert (row["instances"], row["gone"], row["lag"], row["problem"]) == (2, 1, 4, "diverged: n3 differs")
    shown = json.loads(await body(site, "/api/service/s.json"))["page"]
    assert [(one["node"], one["state"]) for one in shown["instances"]] == [
        ("n3", "diverged"),
        ("n1", "follower"),
        ("n2", "follower"),
    ]
    assert shown["service"]["gone"] == 1
    other = json.loads(await body(site, "/api/service/other.json"))["page"]
    assert (other["instances"], other["service"]["lag"]) == ([], None), "a service that nobody runs has an empty page"


async def test_dashboard_search_lists_nodes_streams_groups_and_services() -> None:
    site, _ = a_site(Cluster())
    found = json.loads(await body(site, "/api/search.json", b"q=N1"))["page"]
    assert [row["node"] for row in found["nodes"]] == ["n1"]
    assert [[row[kind[:-1]] for row in found[kind]] for kind in ("streams", "groups", "services")] == [["s"], ["s"], ["s"]]
    assert b'<a href="/service/s">s</a>' in await body(site, "/search", b"q=N1")
    assert b"No node, stream" in await body(site, "/search", b"q=")
    text = (await body(site, "/search", b"q=" + quote(HOSTILE).encode())).decode()
    assert "<img" not in text
    refused = site.respond("/search", b"q=" + b"x" * 500)
    assert isinstance(refused, bytes)
    assert refused.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("made", [pages.node_page, pages.stream_page])
async def test_dashboard_escapes_the_page_title(made: Any) -> None:
    """No address has such a name (400): the page alone must not rely on that."""
    _, shown = a_site(Cluster())
    await shown.fresh(node="n1", stream="s")
    said = shown.node("n1") if made is pages.node_page else shown.stream("s")
    text = made(said, HOSTILE)
    assert "<img" not in text
    assert re.search(r"<title>[A-Z]+ · &lt;img", text)


def an_event(index: int, **more: Any) -> dict[str, Any]:
    at_s = int(WALL_S) - 1000 + index
    return {"kind": "election", "index": index, "number": 0, "time_ns": at_s * 10**9, "stream": "s", "now": "n1", **more}


async def test_dashboard_events_older_than_memory_are_read_from_the_events_stream_without_duplicates() -> None:
    cluster = Cluster()
    site, _ = a_site(cluster)
    cluster.events = [an_event(index) for index in range(800, 1000)]

    async def listed(query: str = "") -> tuple[list[int], dict[str, Any]]:
        shown = json.loads(await body(site, "/api/events.json", query.encode()))["page"]
        return [event["index"] for event in shown["events"]], shown

    found, shown = await listed()
    assert (found, shown["kept"], shown["older"]) == ([*range(999, 799, -1)], False, None), (
        "as from memory, where none are kept"
    )
    assert b"of the last four hours" in await body(site, "/events")
    cluster.kept = [an_event(index, stream="s" if index % 2 else "t") for index in range(950)]  # the newest are not written yet
    cluster.kept_by = {"n1": "n3", "n3": "n3"}
    found, shown = await listed()
    assert (found, shown["older"]) == ([*range(999, 499, -1)], "500.0.77")
    text = await body(site, "/events", b"kind=election")
    assert b'<a href="/events?kind=election&amp;before=500.0.77">Older</a>' in text
    assert b"as far back as they are kept" in text
    found, shown = await listed("before=500.0.77")
    assert (found, shown["older"]) == ([*range(499, -1, -1)], None)
    assert (await listed("before=900.0.5"))[0][:101] == [*range(899, 798, -1)], "the one it says is not told again"
    assert (await listed("before=900.0&stream=t"))[0][:102] == [*range(798, 594, -2)]
    cluster.asked.clear()
    assert len((await listed(f"since={int(WALL_S) - 150}"))[0]) == 150
    assert (await listed(f"since={int(WALL_S) - 150}"))[1]["kept"] is False, "memory reaches back far enough: nobody is asked"


async def test_dashboard_events_of_many_partitions_are_one_expandable_line() -> None:
    cluster = Cluster()
    site, _ = a_site(cluster)
    cluster.events = [an_event(800, kind="stream_created", detail="2 partitions")]
    cluster.events += [an_event(801, number=at, partition=at, was="n3", stream=HOSTILE) for at in range(40)]
    text = (await body(site, "/events")).decode()
    assert "40 partitions of &lt;img" in text
    assert ": n3 -&gt; n1 (40)" in text
    assert "<img" not in text
    assert text.count("<tr>") == 1 + 2
    assert '<a href="/events?each=1">Each of the 40 events</a>' not in text, "41 of them"
    assert '<a href="/events?each=1">Each of the 41 events</a>' in text
    text = (await body(site, "/events", b"each=1")).decode()
    assert text.count("<tr>") == 1 + 41
    assert '<a href="/events?">Together</a>' in text
    assert "stream created stream created" not in text
    text = (await body(site, "/events", b"kind=election&before=802.0")).decode()
    assert '<a href="/events?kind=election&amp;before=802.0&amp;each=1">Each of the 40 events</a>' in text


async def test_dashboard_events_query_that_is_invalid_is_rejected() -> None:
    cluster = Cluster()
    cluster.kept_by = {"n1": "nobody", "n2": "n2", "n3": "n3"}
    cluster.kept = [{"kind": 1, "index": "x"}, an_event(1)]  # type: ignore[list-item]
    site, _ = a_site(cluster)
    for query in (b"before=x", b"before=1", b"before=1.2.3.4", b"before=-1.0", b"since=-1", b"until=1e30", b"since=nan"):
        answer = site.respond("/events", query)
        assert isinstance(answer, bytes), query
        assert answer.startswith(b"HTTP/1.1 400"), query
    cluster.kept_events = lambda node, said: {"kept": cluster.kept, "more": 1, "last": ["x"]}  # type: ignore[method-assign]
    shown = json.loads(await body(site, "/api/events.json"))["page"]
    assert ([one["index"] for one in shown["events"]], shown["older"]) == ([1], None)
    cluster.kept_events = lambda node, said: {"at": [HOSTILE, "n1", 7]}  # type: ignore[method-assign]
    assert json.loads(await body(site, "/api/events.json"))["page"]["events"] == []


async def test_dashboard_polls_nodes_only_while_viewed_and_once_for_all_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_poller, "EVERY_S", 0.01)
    cluster, clock = Cluster(), Clock()
    site, made = a_site(cluster, clock)
    assert cluster.asked == []
    await asyncio.gather(*(body(site, "/api/cluster.json") for _ in range(8)))
    assert cluster.asked.count(("n1", "glance")) == 1
    clock.go_on(2.0)
    await asyncio.gather(*(body(site, "/api/cluster.json") for _ in range(8)))
    assert cluster.asked.count(("n1", "glance")) == 2
    assert cluster.asked.count(("n1", "events")) + cluster.asked.count(("n2", "events")) == 2, "one controller"
    assert made._task is not None
    clock.go_on(UNUSED_DATA_S)
    async with asyncio.timeout(10):
        await made._task
    assert made.cluster()["cluster"]["rows"] == [], "and then all is forgotten"


async def test_dashboard_poll_continues_while_another_viewer_selects_other_streams() -> None:
    """An error of the background task would end the node."""
    cluster, clock = Cluster(), Clock()
    site, made = a_site(cluster, clock)
    asked, answers = asyncio.Event(), asyncio.Event()
    answer = cluster.ask_node

    async def ask(node: str, said: bytes, timeout_s: float) -> dict[str, Any]:
        if b"streams" in said:
            asked.set()
            await answers.wait()
        return await answer(node, said, timeout_s)

    cluster.ask_node = ask  # type: ignore[method-assign]
    looks = asyncio.ensure_future(body(site, "/api/cluster.json"))
    await asyncio.wait_for(asked.wait(), 10)
    others = asyncio.ensure_future(body(site, "/api/cluster.json", b"after=%5B4%2C%22s%22%5D"))
    await asyncio.sleep(0)
    answers.set()
    for shown in await asyncio.wait_for(asyncio.gather(looks, others), 10):
        assert [row["stream"] for row in json.loads(shown)["page"]["streams"]["rows"]] == ["s"]
    assert made._task is not None
    assert not made._task.done()


async def test_dashboard_stream_lists_are_polled_while_viewed_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_poller, "MOST_LISTS", 3)
    cluster, clock = Cluster(), Clock()
    site, made = a_site(cluster, clock)
    for number in range(8):
        await body(site, "/", f"after=%5B{number}%2C%22s%22%5D".encode())
        clock.go_on(0.1)
    assert [place[0] for place in made._streams] == [5, 6, 7]
    clock.go_on(cluster_poller.VIEW_TIMEOUT_S)
    cluster.asked.clear()
    await body(site, "/")
    assert [place[0] for place in made._streams] == [-1], "nobody looks at the others any more"
    assert [kind for _, kind in cluster.asked].count("streams") == 1


async def test_dashboard_marks_a_silent_node_and_keeps_its_history() -> None:
    cluster, clock = Cluster(), Clock()
    for second in range(int(WALL_S) - 20, int(WALL_S)):
        for history in cluster.histories.values():
            history.add_values(second, [5.0] * len(NAMES))
    site, made = a_site(cluster, clock)
    await body(site, "/")
    rows = json.loads(await body(site, "/api/history.json", b"step=1"))
    assert (rows["count"], len(rows["series"])) == (20, 24)
    assert made.history(1).columns[0][-1] == 15.0
    cluster.silent.add("n3")
    clock.go_on(1.0)
    shown = json.loads(await body(site, "/api/cluster.json"))
    assert (shown["cluster"]["word"], shown["cluster"]["nodes"]["silent"]) == ("DEGRADED", 1)
    assert made.history(1, "n3").count == 20
    assert json.loads(await body(site, "/api/timeline.json"))["nodes"] == list(NODES)


def _add_second(cluster: Cluster, second: float, **shift_s: int) -> None:
    for node, history in cluster.histories.items():
        history.add_values(int(second) + shift_s.get(node, 0), [5.0] * len(NAMES))


async def test_dashboard_shows_new_values_of_a_node_after_its_clock_jumped_and_came_back() -> None:
    cluster, clock = Cluster(), Clock()
    _, made = a_site(cluster, clock)
    for number in range(40):
        _add_second(cluster, clock.wall_s - 1, n3=86_400 if 10 <= number < 20 else 0)
        clock.go_on(1.0)
        await made.fresh()
    assert made.history(1, "n3").columns[0][-1] == 5.0
    assert made.history(1).columns[0][-1] == 15.0, "the sum of all nodes"


@pytest.mark.parametrize("own_error_s", [-7_200, -120, 120, 7_200])
async def test_dashboard_of_a_host_with_a_wrong_clock_shows_history_and_new_values(own_error_s: int) -> None:
    cluster, clock = Cluster(), Clock()
    clock.wall_s += own_error_s
    site, made = a_site(cluster, clock)
    for _ in range(30):
        _add_second(cluster, clock.wall_s - own_error_s - 1)
        clock.go_on(1.0)
        await made.fresh()
    assert list(made.history(1).columns[0]) == [15.0] * 30
    shown = json.loads(await body(site, "/api/cluster.json"))
    assert made.live({})["tail"]["count"] > 0, "the open page gets new values"
    assert abs(shown["time_ms"] / 1000 - (clock.wall_s - own_error_s)) < 15, "the plots end at this time"


async def test_dashboard_shows_the_history_of_a_node_killed_before_the_first_view() -> None:
    cluster, clock = Cluster(), Clock()
    began = int(WALL_S) - 60
    for second in range(began, int(WALL_S) - 20):
        for history in cluster.histories.values():
            history.add_values(second, [5.0] * len(NAMES))
    made = cluster_poller.ClusterPoller(
        "liftpy", cluster, own=("n1", cluster.histories["n1"]), now=lambda: clock.now_s, wall=lambda: clock.wall_s
    )
    await made.copy_histories()
    for second in range(int(WALL_S) - 20, int(WALL_S)):
        for node in ("n1", "n2"):
            cluster.histories[node].add_values(second, [5.0] * len(NAMES))
    cluster.silent.add("n3")
    cluster.events = [{"time_ns": (int(WALL_S) - 15) * NS_PER_S, "index": 1, "number": 0, "kind": "node_fenced", "node": "n3"}]
    cluster.states = {"n1": "live", "n2": "live", "n3": "fenced"}
    await made.fresh()
    records = made.history(1).columns[0]
    assert list(records[:40]) == [15.0] * 40, "what the killed node did is there"
    assert all(value != value for value in records[40:46]), "nobody knows what it did until it was fenced"
    assert list(records[46:]) == [10.0] * 14
    assert made.timeline(1)["led"]["n3"]["led"] == [15.0] * 40


async def test_dashboard_of_a_later_node_shows_the_stored_history_of_a_killed_node() -> None:
    cluster, clock = Cluster(), Clock()
    cluster.keepers["n2", "n3"] = kept = History()
    for second in range(int(WALL_S) - 60, int(WALL_S) - 20):
        kept.add_values(second, [5.0] * len(NAMES))
    cluster.silent.add("n3")
    cluster.states["n3"] = "fenced"
    own = ("n1", cluster.histories["n1"])
    made = cluster_poller.ClusterPoller("liftpy", cluster, own=own, now=lambda: clock.now_s, wall=lambda: clock.wall_s)
    await made.fresh()
    assert list(made.history(1, "n3").columns[0]) == [5.0] * 40
    cluster.asked.clear()
    clock.go_on(60.0)
    await made.fresh()
    assert ("n2", "history") in cluster.asked
    assert len([one for one in cluster.asked if one[1] == "history"]) == 1, "it is asked for once"


async def test_dashboard_live_updates_send_one_object_per_poll_and_count_viewers() -> None:
    cluster, clock = Cluster(), Clock()
    site, made = a_site(cluster, clock)
    found = site.respond("/api/live", b"view=cluster")
    assert found is not None
    assert not isinstance(found, bytes)
    live = await found
    assert isinstance(live, EventStreamResponse)
    first = json.loads(await anext(live.events))
    assert {"seq", "cluster", "page", "tail", "timeline"} <= set(first)
    assert made.viewers == 1
    async with asyncio.timeout(10):
        second = json.loads(await anext(live.events))
    assert second["seq"] == first["seq"] + 1
    await live.events.aclose()
    assert made.viewers == 0


async def test_dashboard_live_updates_of_the_same_page_share_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    site, made = a_site(Cluster(), Clock())
    count, live_of = 0, made.live

    def counted(shown: dict[str, Any], node: str) -> dict[str, Any]:
        nonlocal count
        count += 1
        return live_of(shown, node)

    monkeypatch.setattr(made, "live", counted)
    lives = []
    for query in (b"view=cluster", b"view=cluster", b"view=cluster", b"view=node/n1"):
        found = site.respond("/api/live", query)
        assert found is not None
        assert not isinstance(found, bytes)
        live = await found
        assert isinstance(live, EventStreamResponse)
        lives.append(live)
    firsts = [json.loads(await anext(live.events)) for live in lives]
    assert count == 4, "whoever comes begins the asking"
    async with asyncio.timeout(10):
        seconds = [json.loads(text) for text in await asyncio.gather(*(anext(live.events) for live in lives))]
    assert count == 6, "one for the cluster, one for the node"
    assert {one["seq"] for one in seconds} == {firsts[3]["seq"] + 1}
    assert seconds[0] == seconds[1] == seconds[2] != seconds[3]
    for live in lives:
        await live.events.aclose()


@each(
    ("path", "query", "status"),
    [
        ("/nothing", b"", None), ("/static/../handler.py", b"", None), ("/static/page.py", b"", None), ("/runbook/../x", b"", None),
        ("/cluster", b"", None), ("/node/", b"", 400),
        ("/node/a%2Fb", b"", 400), ("/stream/%3Cb%3E", b"", 400), ("/api/x.json", b"", None),
        ("/node/n1", b"after=7", 400), ("/", b"after=%5B1%5D", 400), ("/api/history.json", b"step=2", 400),
        ("/events", b"since=x", 400),
        ("/node/n1", b"after=%5B%5B%5B", 400), ("/api/live", b"view=node/", 400), ("/api/live", b"view=x", None),
    ],
)  # fmt: skip
async def test_dashboard_request_with_an_unknown_path_or_an_invalid_query_is_rejected(
    path: str, query: bytes, status: int | None
) -> None:
    found = a_site(Cluster())[0].respond(path, query)
    if found is not None and not isinstance(found, bytes):
        try:
            found = await found
        except ValueError:
            found = None
        assert isinstance(found, bytes)
    assert found is None if status is None else int(found.split()[1]) == status  # type: ignore[union-attr]


# ---- serving ---------------------------------------------------------------------------------------------------------------
async def test_dashboard_number_of_live_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_LIVE", 2)
    ended: list[int] = []

    async def forever() -> Any:
        try:
            while True:
                yield b"{}"
                await asyncio.Event().wait()  # nothing more comes: that a visitor has gone is seen all the same
        finally:
            ended.append(1)

    async def live() -> EventStreamResponse:
        return EventStreamResponse(forever())

    made = HttpServer(lambda request: live())
    port = await made.open("127.0.0.1", 0)
    visitors = []
    for number in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readline()).split()[1] == (b"200" if number < 2 else b"503")
        visitors.append(writer)
    for writer in visitors:
        writer.close()
    await until(lambda: not made.connections)
    assert (made.live_count, len(ended)) == (0, 2)
    await made.close()


# ---- what pages are made of ------------------------------------------------------------------------------------------------
def test_dashboard_vendored_files_have_the_recorded_hashes() -> None:
    found = static()
    assert {name: hashlib.sha256(found[name]).hexdigest() for name in VENDORED} == VENDORED
    assert b"MIT License" in found["uPlot.LICENSE"]
    for name, text in found.items():
        if not name.startswith("uPlot"):
            assert text.count(b"\n") < 600, name
            assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", text), name


def test_dashboard_runbook_pages_and_their_links_exist() -> None:
    assert names() == {one.stem for one in (ROOT / "docs" / "runbooks").glob("*.md")}
    for name in names():
        text = runbook(name)
        assert not re.search(r"```|^#+ ", text, re.MULTILINE), name
        for page in re.findall(r'href="/runbook/([^"]*)"', text):
            assert page in names()
    assert as_html("# A <b>\n\nsee `x < y` and [z](under-replicated.md)") == (
        '<h1>A &lt;b&gt;</h1><p>see <code>x &lt; y</code> and <a href="/runbook/under-replicated">z</a></p>'
    )


@each(
    "written",
    ["{}", "# {}", "## {}", "- one\n- {}", "1. {}", "`{}`", "**{}**", "[{}](disk-full.md)", "[{}](https://x.test)", "```\n{}\n```",
     "```html\nfirst\n{}\n```", "`a` {} **b**"],
)  # fmt: skip
def test_dashboard_runbook_page_escapes_html_in_its_text(written: str) -> None:
    shown = as_html(written.format(HOSTILE))
    assert "<img" not in shown
    assert "&lt;img src=x onerror=" in shown


def test_dashboard_colors_have_enough_contrast_in_both_themes() -> None:
    def light(colour: str) -> float:
        colour = colour if len(colour) == 7 else "#" + "".join(2 * letter for letter in colour[1:])
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        above, below = sorted((light(one), light(other)), reverse=True)
        return (above + 0.05) / (below + 0.05)

    text = static()["page.css"].decode()
    schemes = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", block)) for block in re.findall(r":root \{([^}]*)\}", text)]
    assert len(schemes) == 2
    for colours in schemes:
        for ground in ("paper", "ground"):
            for ink in ("ink", "quiet", "accent", "ok", "warn", "bad"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for sign in ("ok", "warn", "bad"):
            assert contrast(colours[sign], colours[f"{sign}-soft"]) >= 4.5, sign
            assert contrast(colours["paper"], colours[sign]) >= 4.5, sign


# ---- figures, marks, metrics -----------------------------------------------------------------------------------------------


def test_dashboard_chart_marks_an_event_on_the_rows_of_its_nodes() -> None:
    assert marks_of({"kind": "election", "was": "n1", "now": "n2"}) == [("n2", "election")]
    assert marks_of({"kind": "isr_changed", "was": "n1 n2 n3", "now": "n1 n2"}) == [("n3", "isr")]
    assert marks_of({"kind": "node_fenced", "node": "n1"}) == [("n1", "fenced")]
    assert marks_of({"kind": "partition_offline", "was": "n1", "now": ""}) == [("n1", "offline")]
    versions = {"was": "incarnation 1 of 0.1.0", "node": "n1", "kind": "node_registered"}
    assert marks_of({**versions, "now": "incarnation 2 of 0.1.0"}) == [("n1", "restart")]
    assert marks_of({**versions, "now": "incarnation 2 of 0.2.0"}) == [("n1", "upgrade")]
    assert marks_of({"kind": "stream_created", "stream": "s"}) == [("", "other")]
    many = [
        {"kind": kind, "now": "n2", "time_ns": 5 * 10**9 + number}
        for number, kind in enumerate(("election", "unclean_election"))
    ]
    assert marks(many, 10) == [(0, "n2", MARKS[0], 2)], "the most severe, and how many"
    beyond = [{"kind": "node_fenced", "node": "n1", "time_ns": number * 10**9} for number in range(MOST_MARKS + 5)]
    assert len(marks(beyond, 1)) == MOST_MARKS
    assert marks(beyond, 1)[-1][0] == MOST_MARKS + 4


def test_dashboard_merged_metrics_have_a_label_per_node() -> None:
    text = '# TYPE liftpy_h histogram\n# HELP liftpy_x X.\n# TYPE liftpy_x counter\nliftpy_x_total{a="1"} 3.0\nliftpy_y 4.0\n'
    more = 'liftpy_y 1.0\nliftpy_h_count 1.0\nevil{node="n1"} 7\n{}\nx y z\nliftpy_info{node="z\\"3",rack="r"} 1.0\n'
    made = together({"n2": text, "n1": text.replace("3.0", "5.0"), 'z"3': more})
    assert made.splitlines() == [
        "# TYPE liftpy_h histogram", 'liftpy_h_count{node="z\\"3"} 1.0', "# HELP liftpy_x X.", "# TYPE liftpy_x counter",
        'liftpy_x_total{a="1",node="n1"} 5.0', 'liftpy_x_total{a="1",node="n2"} 3.0',
        'liftpy_y{node="n1"} 4.0', 'liftpy_y{node="n2"} 4.0', 'liftpy_y{node="z\\"3"} 1.0', 'liftpy_info{node="z\\"3",rack="r"} 1.0',
    ]  # fmt: skip


def test_package_data_of_the_wheel_contains_the_dashboard_files() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["sidecar"]
    held = {path for pattern in data for path in (ROOT / "sidecar").glob(pattern) if path.is_file()}
    folder = ROOT / "sidecar" / "status" / "static"
    assert {path for path in folder.iterdir() if path.is_file()} | set((folder / "runbooks").glob("*.md")) <= held
