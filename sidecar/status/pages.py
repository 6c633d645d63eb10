"""HTML pages with all values in tables. A script (``static/app.js``) updates the values.

Attributes of HTML elements contain the data for the script. ``data-v`` is the path of a value in the JSON of the page,
and ``data-f`` is its format. Tables have ``data-rows`` and ``data-columns``. All names are escaped. The content
security policy (``http.py``) allows only scripts of this server.

Runbooks are pages, too. They are written in a subset of Markdown: headings, lists, code, links and paragraphs.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import check_name
from liftpy.core.base.strict_json import load_json
from liftpy.core.metadata.controller.cluster_events import KINDS, event_text
from liftpy.core.observe import node_events
from liftpy.core.observe.cluster_health import DEGRADED, OK
from liftpy.core.observe.history import LENGTHS
from liftpy.core.observe.page_model import FIRST, MOST_MATCH, figure, match_in, place_of, value_at
from liftpy.core.observe.timeline import FILTERS, group_events, summarize_group
from liftpy.errors import ConfigError
from sidecar.status.cluster_poller import ClusterPoller, place_before
from sidecar.status.http import HTML, JSON, TEXT, EventStreamResponse, http
from sidecar.status.records import RecordsBrowser, RecordsQuery, records_query

_SIGNS = {OK: "ok", DEGRADED: "degraded"}
_INLINE = re.compile(r"`([^`]+)`|\[([^\]]+)\]\(([\w-]+)\.md\)|\[([^\]]+)\]\([^)]*\)|\*\*([^*]+)\*\*")
_FOLDER = files("sidecar.status").joinpath("static", "runbooks")
_ITEM = re.compile(r"(?:\d+\.|-) ")
_KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "LICENSE": TEXT}
_CACHE_S = 3600
_VENDORED = "uPlot"
Fields = Mapping[str, str]


class Column(NamedTuple):
    """Column of an HTML table. ``link``: kind of page to which the cells link."""

    name: str
    title: str
    kind: str = "text"
    link: str = ""


def _columns(*definitions: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(Column(*one) for one in definitions)


NODE_COLUMNS = _columns(
    ("node", "node", "text", "node"), ("state", "state"), ("leads_metadata", "metadata leader"), ("leads", "leads", "int"),
    ("replicas", "replicas", "int"), ("records_in_s", "in /s", "rate"), ("bytes_in_s", "in B/s", "bytes"), ("records_out_s", "out /s", "rate"),
    ("ack_p50_s", "ack p50", "span"), ("ack_p99_s", "ack p99", "span"), ("lag_s", "lag", "span"), ("loop_p99_s", "loop lag p99", "span"),
    ("disk_free", "disk free", "share"), ("uptime_s", "up", "age"), ("version", "version"),
)  # fmt: skip
STREAM_COLUMNS = _columns(
    ("stream", "stream", "text", "stream"), ("problem", "problem"), ("partitions", "partitions", "int"), ("replicas", "replicas", "int"),
    ("offline", "offline", "int"), ("electing", "electing", "int"), ("under_min_isr", "under min_isr", "int"),
    ("under_replicated", "under-replicated", "int"), ("subject", "subject"),
)  # fmt: skip
PARTITION_COLUMNS = _columns(
    ("stream", "stream", "text", "stream"), ("partition", "partition", "int"), ("problem", "problem"), ("role", "role"),
    ("leader", "leader", "text", "node"), ("epoch", "epoch", "int"), ("isr", "in sync"), ("replicas", "replicas"),
    ("newest", "newest offset", "int"), ("high_watermark", "high watermark", "int"), ("records_in_s", "in /s", "rate"),
    ("lag_records", "lag", "int"), ("lag_s", "lag, time", "span"), ("log_bytes", "log", "bytes"),
)  # fmt: skip
GROUP_COLUMNS = _columns(
    ("group", "group", "text", "group"), ("kind", "kind"), ("problem", "problem"), ("members", "members", "int"),
    ("partitions", "partitions", "int"), ("lag_records", "lag", "int"), ("lag_s", "lag, time", "span"), ("in_flight", "without ack", "int"),
    ("streams", "streams"), ("coordinator", "coordinator", "text", "node"),
)  # fmt: skip
MEMBER_COLUMNS = _columns(
    ("member", "member"), ("client", "client"), ("instance", "instance"), ("partitions", "partitions", "int"), ("streams", "streams"),
    ("session_s", "session", "span"),
)  # fmt: skip
POSITION_COLUMNS = _columns(
    ("stream", "stream", "text", "stream"), ("partition", "partition", "int"), ("member", "member"), ("position", "next offset", "int"),
    ("end", "end offset", "int"), ("lag_records", "lag", "int"), ("lag_s", "lag, time", "span"), ("in_flight", "without ack", "int"),
    ("returned", "to deliver again", "int"), ("dead", "to dead letters", "int"),
)  # fmt: skip
SERVICE_COLUMNS = _columns(
    ("service", "service", "text", "service"), ("stream", "stream", "text", "stream"), ("problem", "problem"),
    ("instances", "instances", "int"), ("leaders", "leaders", "int"), ("blocked", "blocked", "int"), ("gone", "gone", "int"),
    ("lag", "lag", "int"), ("snapshot_age_s", "oldest snapshot", "age"), ("output_backlog", "outputs waiting", "int"), ("versions", "versions"),
)  # fmt: skip
INSTANCE_COLUMNS = _columns(
    ("node", "node", "text", "node"), ("stream", "stream", "text", "stream"), ("partition", "partition", "int"), ("state", "state"),
    ("problem", "problem"), ("position", "next offset", "int"), ("lag", "lag", "int"), ("snapshot", "snapshot at", "int"),
    ("snapshot_age_s", "snapshot age", "age"), ("output_backlog", "outputs waiting", "int"), ("queries_waiting", "queries waiting", "int"),
    ("timers_waiting", "timers", "int"), ("effects_waiting", "effects waiting", "int"), ("version", "version"),
)  # fmt: skip
RECORD_COLUMNS = _columns(
    ("offset", "offset", "int"), ("time", "time, UTC"), ("subject", "subject"), ("key", "key"), ("headers", "headers"), ("value", "value"),
)  # fmt: skip
SETTING_COLUMNS = _columns(("setting", "setting"), ("value", "value"))
EVENT_COLUMNS = _columns(
    ("time", "time, UTC", "text", "moment"), ("place", "entry"), ("kind", "kind"), ("text", "what happened")
)
_NAVIGATION = (("/", "Cluster"), ("/groups", "Groups"), ("/services", "Services"), ("/events", "Events"))
PLOTS = (
    ("records", "Records per second"), ("bytes", "Bytes per second"), ("acks", "Ack latency"), ("heat", "Acks by latency"),
    ("flush", "Log flush, p99"), ("lag", "Slowest replica"), ("isr", "Partitions by ISR"), ("loop", "Event loop lag, p99"),
)  # fmt: skip
LAG_PLOTS = (("group_lag", "Lag"), ("group_age", "Age of the first unread record"))


def cluster_page(shown: dict[str, Any]) -> str:
    """Return the HTML page ``/`` with the cluster. ``shown``: data of the page."""
    body = (
        f"{_render_overview(shown)}{_timeline()}{_plots('')}"
        f"{_section('Nodes', _table('nodes', 'cluster.rows', NODE_COLUMNS, shown))}"
        f"{_section('Streams, worst first', _table('streams', 'page.streams.rows', STREAM_COLUMNS, shown) + _further(shown, 'page.streams.after'))}"
    )
    return _page("Cluster", "cluster", body, shown)


def node_page(shown: dict[str, Any], node: str) -> str:
    """Return the HTML page ``/node/<id>``. ``shown``: data of the page."""
    facts = (
        ("state", "State", "text"), ("leads", "Leads", "int"), ("replicas", "Replicas", "int"), ("records_in_s", "Records in /s", "rate"),
        ("ack_p99_s", "Ack p99", "span"), ("lag_s", "Slowest replica", "span"), ("disk_free", "Disk free", "share"),
        ("queued", "Publish memory used", "share"), ("uptime_s", "Up", "age"), ("version", "Version", "text"),
    )  # fmt: skip
    return _page_of_one("node", node, facts, shown, _plots(node) + _partitions(shown))


def stream_page(shown: dict[str, Any], stream: str, *, has_records: bool = False) -> str:
    """Return the HTML page ``/stream/<name>``. ``shown``: data of the page. ``has_records``: True to add a link to its records."""
    records = f' <a class="aside" href="/records/{quote(stream, safe="")}">records</a>' if has_records else ""
    facts = (
        ("subject", "Subject", "text"), ("partitions", "Partitions", "int"), ("replicas", "Replicas", "int"),
        ("records_in_s", "Records in /s, of those shown", "rate"), ("size_bytes", "Size of one replica, of those shown", "bytes"),
        ("shown", "Partitions shown", "int"), ("problems", "With problems", "int"),
    )  # fmt: skip
    settings = _section("Settings that differ from the default", _table("settings", "page.settings", SETTING_COLUMNS, shown))
    return _page_of_one("stream", stream, facts, shown, _partitions(shown) + settings, aside=records)


def groups_page(shown: dict[str, Any]) -> str:
    """Return the HTML page ``/groups`` that lists the consumer groups. ``shown``: data of the page."""
    title = "Groups, queues and cursors, problems first, then the largest lag"
    body = f"<h1>Groups</h1>{_section(title, _table('groups', 'page.rows', GROUP_COLUMNS, shown) + _not_all(shown))}"
    return _page("Groups", "groups", body, shown)


def group_page(shown: dict[str, Any], group: str) -> str:
    """Return the HTML page ``/group/<name>``. ``shown``: data of the page."""
    facts = (
        ("members", "Members", "int"), ("lag_records", "Lag", "int"), ("lag_s", "Lag, time", "span"), ("in_flight", "Without ack", "int"),
        ("unknown", "Unknown ends", "int"), ("problem", "Problem", "text"), ("coordinator", "Coordinator", "text"),
    )  # fmt: skip
    note = "" if shown["page"]["group"] else "No node coordinates a group with this name."
    positions = _table("positions", "page.positions", POSITION_COLUMNS, shown) + _not_all(shown)
    body = (
        f'<section class="plots script-only" data-rows="history"><h2>At most four hours</h2>{_figures(LAG_PLOTS)}</section>'
        + _section("Members", _table("members", "page.members", MEMBER_COLUMNS, shown))
        + _section("Partitions, largest lag first", positions)
    )
    return _page_of_one("group", group, facts, shown, body, note=note)


def services_page(shown: dict[str, Any]) -> str:
    """Return the HTML page ``/services`` that lists the services. ``shown``: data of the page."""
    table = _table("services", "page.rows", SERVICE_COLUMNS, shown) + _not_all(shown)
    return _page("Services", "services", f"<h1>Services</h1>{_section('Problems first', table)}", shown)


def service_page(shown: dict[str, Any], service: str) -> str:
    """Return the HTML page ``/service/<name>``. ``shown``: data of the page."""
    facts = (
        ("instances", "Instances", "int"), ("leaders", "Leaders", "int"), ("blocked", "Blocked", "int"), ("gone", "Gone", "int"),
        ("lag", "Largest lag", "int"), ("output_backlog", "Outputs waiting", "int"),
    )  # fmt: skip
    table = _table("instances", "page.instances", INSTANCE_COLUMNS, shown) + _not_all(shown)
    note = "" if shown["page"]["instances"] else "No instance of a service with this name is connected to a node."
    return _page_of_one("service", service, facts, shown, _section("Instances, problems first", table), note=note)


def records_page(shown: dict[str, Any], query: RecordsQuery) -> str:
    """Return the HTML page ``/records/<stream>``. ``shown``: data of the page. ``query``: records that the viewer requested."""
    fields = "".join(
        f'<label>{title} <input name="{name}" value="{html.escape(str(getattr(query, name)))}" placeholder="{hint}"></label>'
        for name, title, hint in (
            ("partition", "Partition", "0"), ("start", "From", "newest, 1200, -10m"), ("subject", "Subject", "all"),
            ("key", "Key", "all"), ("limit", "Limit", "20"),
        )
    )  # fmt: skip
    note = _note(html.escape(shown["page"]["note"]))
    title = "From the start" if query.start else "Newest first"
    body = (
        f'<h1>Records of <a href="/stream/{quote(query.stream, safe="")}">{html.escape(query.stream)}</a></h1>'
        f'<form class="query" action="/records/{quote(query.stream, safe="")}">{fields}<button>Show</button></form>{note}'
        + _section(title, _table("records", "page.rows", RECORD_COLUMNS, shown))
    )
    return _page(f"Records of {query.stream}", f"records/{quote(query.stream, safe='')}", body, shown)


def search_page(shown: dict[str, Any]) -> str:
    """Return the HTML page ``/search?q=TEXT``. ``shown``: data of the page."""
    page = shown["page"]
    tables = (("nodes", NODE_COLUMNS), ("streams", STREAM_COLUMNS), ("groups", GROUP_COLUMNS), ("services", SERVICE_COLUMNS))
    sections = "".join(
        _section(name.capitalize(), _table(name, f"page.{name}", columns, shown)) for name, columns in tables if page[name]
    )
    note = _note("" if sections else "No node, stream, group or service has this text in its name.")
    return _page("Search", "search", f"<h1>Search: {html.escape(page['text'])}</h1>{sections}{note}", shown)


def events_page(shown: dict[str, Any], fields: Mapping[str, str]) -> str:
    """Return the HTML page ``/events`` with events of one kind or all."""
    page, kind = shown["page"], fields.get("kind", "")
    links = "".join(
        f'<a href="/events{f"?kind={one}" if one else ""}"{" aria-current=true" if one == kind else ""}>{one.replace("_", " ") or "all"}</a> '
        for one in ("", *KINDS, *node_events.KINDS)
        if one != "request"
    )
    note = _note("" if page["told"] else "No controller tells what happened.")
    each, groups = "each" in fields, group_events(page["events"])
    shown_so = [[event] for event in page["events"]] if each else groups
    rows = {"page": {"rows": [event_row(group) for group in shown_so]}}
    reach = "as far back as they are kept" if page["kept"] else "of the last four hours"
    table = _section(f"Newest first, {reach}", _table("events", "page.rows", EVENT_COLUMNS, rows))
    filters = {name: text for name, text in fields.items() if name in (*FILTERS, "since", "until")}
    further = ""
    if len(groups) < len(page["events"]):
        how, text = ({}, "Together") if each else ({"each": "1"}, f"Each of the {len(page['events']):,} events")
        before = {"before": fields["before"]} if "before" in fields else {}
        further = f'<p><a href="/events?{html.escape(urlencode(filters | before | how))}">{text}</a></p>'
    if page["older"] is not None:
        query = urlencode(filters | ({"each": "1"} if each else {}) | {"before": page["older"]})
        further += f'<p><a href="/events?{html.escape(query)}">Older</a></p>'
    body = f'<h1>Events</h1><nav class="kinds" aria-label="kinds of events">{links}</nav>{note}{table}{further}'
    return _page("Events", "events", body, shown)


def event_row(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the table row of a group of related events, or of a single event."""
    event = group[0]
    moment = datetime.fromtimestamp(event["time_ns"] / 1e9, UTC)
    place = f"{event.get('index')}.{event.get('number')}"
    kind = str(event.get("kind", "?")).replace("_", " ")
    text = summarize_group(group) if len(group) > 1 else event_text(event, named=False)
    at = event["time_ns"] // NS_PER_S
    return {"time": moment.strftime("%Y-%m-%d %H:%M:%S"), "at": at, "place": place, "kind": kind, "text": text}


def _page_of_one(
    kind: str,
    name: str,
    facts: Sequence[tuple[str, str, str]],
    shown: dict[str, Any],
    body: str,
    *,
    note: str = "",
    aside: str = "",
) -> str:
    """Return the HTML page of one node, stream, group or service: its name, its facts, and ``body`` below them.

    ``facts``: (field of ``page.<kind>``, title, format). ``aside``: HTML next to the name.
    """
    tiles = _tiles([(f"page.{kind}.{field}", title, form, "") for field, title, form in facts], shown)
    body = f"<h1>{html.escape(name)}{aside}</h1>{_note(note)}{tiles}{body}"
    return _page(name, f"{kind}/{quote(name, safe='')}", body, shown)


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>' if text else ""


def _partitions(shown: dict[str, Any]) -> str:
    table = _table("partitions", "page.partitions.rows", PARTITION_COLUMNS, shown)
    return _section("Partitions, worst first", table + _further(shown))


def _page(title: str, view: str, body: str, shown: dict[str, Any]) -> str:
    cluster = shown["cluster"]
    namespace, sign = html.escape(str(cluster["namespace"])), _SIGNS.get(cluster["word"], "unavailable")
    here = {"cluster": "/", "node": "/", "stream": "/", "records": "/", "group": "/groups", "service": "/services"}.get(
        view.partition("/")[0], f"/{view}"
    )
    links = "".join(
        f'<a href="{where}"{" aria-current=page" if where == here else ""}>{text}</a>' for where, text in _NAVIGATION
    )
    json_link = "" if view.startswith("records/") else f'<a href="/api/{view}.json">JSON</a> '
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(cluster["word"])} · {html.escape(title)} · liftpy {namespace}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/static/uPlot.min.css"><link rel="stylesheet" href="/static/page.css">'
        '<script src="/static/uPlot.iife.min.js" defer></script><script type="module" src="/static/app.js"></script></head>'
        f'<body data-view="{html.escape(view)}" data-seq="{shown["seq"]}" data-sign="{sign}"><a class="skip" href="#main">Skip to content</a>'
        f'<header><span class="brand">liftpy</span><span class="namespace">{namespace}</span><nav aria-label="pages">{links}</nav>'
        f'<form action="/search" role="search"><input type="search" name="q" aria-label="search" placeholder="search" maxlength="{MOST_MATCH}">'
        f'</form><span class="chip" id="chip">{html.escape(cluster["word"])}</span><span id="live" class="quiet" role="status">as of '
        f"{datetime.fromtimestamp(shown['time_ms'] / 1000, UTC):%H:%M:%S} UTC</span></header>"
        f'<main id="main">{body}</main><footer class="quiet">Read-only. {json_link}<a href="/metrics">metrics</a></footer>'
        "</body></html>"
    )


def _render_overview(shown: dict[str, Any]) -> str:
    cluster = shown["cluster"]
    reasons = "".join(
        f'<li class="{"stops" if reason["stops"] else "todo"}"><b>{html.escape(reason["word"])}</b> <span>{html.escape(reason["text"])}</span> '
        f'<a href="/runbook/{quote(reason["runbook"])}">runbook</a>{_event_link(reason)}</li>'
        for reason in cluster["reasons"]
    )
    facts = (  # (path, format, text before the value, text after it)
        ("Nodes", (("cluster.nodes.live", "int", "", "live"), ("cluster.nodes.fenced", "int", "", "fenced"),
                   ("cluster.nodes.drained", "int", "", "drained"), ("cluster.nodes.silent", "int", "", "silent"))),
        ("Metadata", (("cluster.metadata.leader", "text", "", "leads"), ("cluster.metadata.term", "int", "term", ""),
                      ("cluster.metadata.members", "int", "", "members"), ("cluster.metadata.lag", "int", "", "entries behind"))),
        ("Feature level", (("cluster.feature.level", "int", "", "finalized"),
                           ("cluster.feature.all_speak", "int", "all nodes speak", ""), ("cluster.feature.todo", "text", "", ""))),
    )  # fmt: skip
    rows = "".join(
        f"<dt>{title}</dt><dd>"
        + " ".join(f"<span>{before} {_value(path, form, shown)} {after}</span>" for path, form, before, after in parts)
        + "</dd>"
        for title, parts in facts
    )
    tiles = _tiles(
        [
            ("cluster.now.records_in_s", "Records in /s", "rate", "cluster.now.bytes_in_s"),
            ("cluster.now.records_out_s", "Records out /s", "rate", "cluster.now.bytes_out_s"),
            ("cluster.now.ack_p50_s", "Ack p50", "span", ""),
            ("cluster.now.ack_p99_s", "Ack p99", "span", ""),
            ("cluster.now.lag_s", "Slowest replica", "span", ""),
        ],
        shown,
    )
    counts = "".join(
        f'<div class="count" data-bad="{severity}"><dt>{title}</dt><dd>{_value(f"cluster.partitions.{name}", "int", shown)}</dd></div>'
        for name, title, severity in (
            ("led", "partitions led", ""), ("offline", "offline", "stops"), ("electing", "electing", "stops"),
            ("under_min_isr", "under min_isr", "stops"), ("under_replicated", "under-replicated", "todo"), ("damaged", "damaged", "todo"),
        )
    )  # fmt: skip
    return (
        '<h1 class="offscreen">Cluster</h1><section class="glance" aria-label="at a glance"><div class="verdict"><p class="word" id="word" aria-live="polite">'
        f'{html.escape(cluster["word"])}</p><ul id="reasons" aria-live="polite">{reasons}</ul></div><dl class="facts">{rows}</dl></section>'
        f'{tiles}<dl class="counts" aria-label="partitions">{counts}</dl>'
    )


def _event_link(reason: Mapping[str, Any]) -> str:
    events = reason["events"]
    return f' <a href="/events?kind={quote(events[0])}">events</a>' if events else ""


def _value(path: str, kind: str, shown: dict[str, Any]) -> str:
    return f'<b data-v="{path}" data-f="{kind}">{html.escape(figure(kind, value_at(shown, path)))}</b>'


def _tiles(tiles: Sequence[tuple[str, str, str, str]], shown: dict[str, Any]) -> str:
    tiles_html = "".join(
        f'<div class="tile"><dt>{title}</dt><dd>{_value(path, kind, shown)}'
        + (f"<small>{_value(beside, 'bytes', shown)}/s</small>" if beside else "")
        + "</dd></div>"
        for path, title, kind, beside in tiles
    )
    return f'<dl class="tiles">{tiles_html}</dl>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _table(name: str, path: str, columns: Sequence[Column], shown: dict[str, Any]) -> str:
    heads = "".join(f'<th scope="col"{_right(one)}>{one.title}</th>' for one in columns)
    rows = "".join("<tr>" + "".join(_cell(one, row) for one in columns) + "</tr>" for row in value_at(shown, path) or ())
    spec = html.escape(json.dumps([one._asdict() for one in columns]))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table id="{name}" data-rows="{path}" data-columns="{spec}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _right(column: Column) -> str:
    return "" if column.kind == "text" else ' class="number"'


def _cell(column: Column, row: dict[str, Any]) -> str:
    value = row.get(column.name)
    text = html.escape(figure(column.kind, value))
    if column.link == "moment":
        text = f'<a href="/?at={int(row["at"])}" title="Show this moment in the plots">{text}</a>'
    elif column.link and value:
        text = f'<a href="/{column.link}/{quote(str(value), safe="")}">{text}</a>'
    state = f' data-is="{html.escape(str(value))}"' if column.name in ("state", "problem") and value else ""
    return f"<td{_right(column)}{state}>{text}</td>"


def _further(shown: dict[str, Any], path: str = "page.partitions.after") -> str:
    after = value_at(shown, path)
    where = f"?after={quote(json.dumps(after), safe='')}" if after else ""
    return f'<p><a href="{where}">the next ones</a></p>' if where else ""


def _not_all(shown: dict[str, Any]) -> str:
    return _note("There are more rows than this page shows." if shown["page"].get("more") else "")


def _timeline() -> str:
    return (
        '<section class="timeline"><h2>Leaderships and elections</h2><div id="timeline" class="script-only"></div>'
        '<div id="at-mark" aria-live="polite"></div><noscript><p class="note">Plots and the timeline need scripts; '
        '<a href="/events">events</a> lists the same.</p></noscript></section>'
    )


def _figures(plots: Sequence[tuple[str, str]]) -> str:
    plots_html = "".join(f'<figure data-plot="{name}"><figcaption>{title}</figcaption></figure>' for name, title in plots)
    return f'<div class="grid">{plots_html}</div>'


def _plots(node: str) -> str:
    steps = (
        '<div class="steps" role="group" aria-label="time shown"><button type="button" data-step="1" aria-pressed="true">10 min</button>'
        '<button type="button" data-step="10" aria-pressed="false">4 h</button></div>'
    )
    return f'<section class="plots script-only" data-node="{html.escape(node)}"><h2>Last minutes</h2>{steps}{_figures(PLOTS)}</section>'


# ---- runbooks --------------------------------------------------------------------------------------------------------


@cache
def names() -> frozenset[str]:
    """Return the names of all runbooks."""
    return frozenset(one.name[:-3] for one in _FOLDER.iterdir() if one.name.endswith(".md"))


def runbook(name: str) -> str:
    """Return a runbook as HTML page. ``name``: one of ``names()``."""
    body = as_html(_FOLDER.joinpath(f"{name}.md").read_text(encoding="utf-8"))
    links = "".join(f'<a href="{where}">{text}</a>' for where, text in _NAVIGATION)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(name)} · liftpy</title>'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/static/page.css"></head>'
        '<body><header><span class="brand">liftpy</span>'
        f'<nav>{links}</nav></header><main class="prose">{body}</main></body></html>'
    )


def as_html(text: str) -> str:
    """Return ``text``, in the Markdown subset of the runbooks, as HTML. Everything else becomes plain text."""
    parts: list[str] = []
    for block in re.split(r"\n\s*\n(?=\S)", text.strip()):
        if block.startswith("```"):
            parts.append(f"<pre>{html.escape(block.split(chr(10), 1)[1].rsplit('```', 1)[0].rstrip())}</pre>")
        elif match := re.match(r"(#{1,3}) (.*)", block):
            parts.append(f"<h{len(match[1])}>{_inline(match[2])}</h{len(match[1])}>")
        elif _ITEM.match(block):
            kind = "ul" if block.startswith("-") else "ol"
            items = [_inline(_ITEM.sub("", item, count=1)) for item in re.split(r"\n(?=(?:\d+\.|-) )", block)]
            parts.append(f"<{kind}>" + "".join(f"<li>{item}</li>" for item in items) + f"</{kind}>")
        else:
            parts.append(f"<p>{_inline(block)}</p>")
    return "".join(parts)


def _inline(text: str) -> str:
    parts, at = [], 0
    for match in _INLINE.finditer(text):
        parts.append(html.escape(text[at : match.start()]))
        code, title, page, elsewhere, strong = match.groups()
        if code:
            parts.append(f"<code>{html.escape(code)}</code>")
        elif title:
            parts.append(f'<a href="/runbook/{html.escape(page)}">{html.escape(title)}</a>')
        else:
            parts.append(f"<em>{html.escape(elsewhere)}</em>" if elsewhere else f"<strong>{html.escape(strong)}</strong>")
        at = match.end()
    return "".join(parts) + html.escape(text[at:])


# ---- the site --------------------------------------------------------------------------------------------------------


@cache
def static() -> dict[str, bytes]:
    """Return the content of all static files (scripts and styles), by file name."""
    folder = files("sidecar.status").joinpath("static")
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file() and one.name.rpartition(".")[2] in _KINDS}


class Site:
    """Answers the HTTP requests for the pages of the status port. ``poller``: data of the cluster. It only reads.

    ``records``: reads records for ``/records/<stream>``. None: there is no such page.

    The pages are ``/`` (the cluster), ``/node/<id>``, ``/stream/<name>``, ``/groups``, ``/group/<name>``, ``/services``,
    ``/service/<name>``, ``/search?q=TEXT``, ``/events``, ``/runbook/<name>`` and ``/static/<file>``. Below ``/api/`` are the
    same names with ``.json``, ``cluster.json``, ``history.json``, ``timeline.json``, and ``live``: one JSON object a second, as
    Server-Sent Events.
    """

    def __init__(self, poller: ClusterPoller, records: RecordsBrowser | None = None) -> None:
        self._poller = poller
        self._records = records
        self._live_bodies: dict[tuple[tuple[str, str], ...], tuple[int, bytes]] = {}
        """Query -> (second, data of a live page). It is shared by viewers of the same page."""

    def respond(self, path: str, query: bytes) -> Awaitable[bytes | EventStreamResponse] | bytes | None:
        """Return the answer to a GET request for ``path``, or None if there is no such page."""
        fields = dict(parse_qsl(query.decode("ascii", "replace"), keep_blank_values=True))
        if path.startswith("/static/"):
            return _static(path.removeprefix("/static/"))
        if path.startswith("/runbook/"):
            name = path.removeprefix("/runbook/")
            return http("200 OK", HTML, runbook(name).encode()) if name in names() else None
        try:
            if path == "/api/live":
                return self._live(self._view(fields.get("view", "cluster"), fields), fields)
            if path in ("/api/history.json", "/api/timeline.json"):
                step = int(fields.get("step", "1"))
                if step not in LENGTHS:
                    raise ValueError("Invalid parameter step. Use 1 or 10.")
                return self._plots(path, step, fields.get("node", ""))
            if path.startswith("/records/"):
                return self._records_page(records_query(unquote(path.removeprefix("/records/")), fields))
            as_json = path.startswith("/api/") and path.endswith(".json")
            name = path[5:-5] if as_json else "cluster" if path == "/" else path[1:]
            if not as_json and name == "cluster" and path != "/":
                return None
            view = self._view(name, fields)
        except (ValueError, ConfigError):
            return http("400 Bad Request", TEXT, b"that can't be asked for\n")
        except KeyError:
            return None
        return self._json(view) if as_json else self._page(view, name, fields)

    def _view(self, name: str, fields: Fields) -> Callable[[], Awaitable[dict[str, Any]]]:
        """Return a function that builds the data of the page ``name``. ``fields``: query of the request.

        Raise KeyError for an unknown page, ValueError or ConfigError for an invalid name.
        """
        poller = self._poller
        kind, _, what = name.partition("/")
        what = unquote(what)
        if name == "cluster":
            last = _streams_after(fields)
            return partial(self._shown, partial(poller.cluster, last), streams_after=last)
        if name == "search":
            text = fields.get("q", "").strip()
            match_in({"match": text})
            return partial(self._shown, partial(poller.search, text))
        if name == "events":
            return partial(self._shown, partial(poller.recent_events, **_event_filters(fields)))
        shows = {"groups": poller.groups, "services": poller.services}
        if name in shows:
            return partial(self._shown, shows[name], about=(name, ""))
        if kind in ("group", "service"):
            check_name(what, kind)
            return partial(self._shown, partial(shows[f"{kind}s"], what), about=(f"{kind}s", what))
        show = {"node": poller.node, "stream": poller.stream}[kind]
        after = place_of(decode_place(fields["after"])) if "after" in fields else FIRST
        check_name(what, kind)
        return partial(self._shown, partial(show, what, after), **{kind: what}, after=after)

    async def _shown(self, show: Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]], **wanted: Any) -> dict[str, Any]:
        await self._poller.fresh(**wanted)
        found = show()
        return found if isinstance(found, dict) else await found

    def _records_page(self, query: RecordsQuery) -> Awaitable[bytes] | None:
        browser = self._records
        if browser is None:
            return None

        async def made() -> bytes:
            await self._poller.fresh()
            page = await browser.read(query)
            return http("200 OK", HTML, records_page({**self._poller.cluster(), "page": page}, query).encode())

        return made()

    async def _json(self, view: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
        return http("200 OK", JSON, json.dumps(await view()).encode())

    async def _page(self, view: Callable[[], Awaitable[dict[str, Any]]], name: str, fields: Fields) -> bytes:
        shown = await view()
        kind, _, what = name.partition("/")
        if kind == "events":
            content = events_page(shown, fields)
        elif kind == "stream":
            content = stream_page(shown, unquote(what), has_records=self._records is not None)
        elif what:
            content = {"node": node_page, "group": group_page, "service": service_page}[kind](shown, unquote(what))
        else:
            of_all = {"cluster": cluster_page, "groups": groups_page, "services": services_page, "search": search_page}
            content = of_all[kind](shown)
        return http("200 OK", HTML, content.encode())

    async def _live(self, view: Callable[[], Awaitable[dict[str, Any]]], fields: Fields) -> EventStreamResponse:
        return EventStreamResponse(self._events(view, tuple(sorted(fields.items()))))

    async def _events(
        self, view: Callable[[], Awaitable[dict[str, Any]]], fields: tuple[tuple[str, str], ...]
    ) -> AsyncGenerator[bytes, None]:
        poller, comes = self._poller, True
        name = dict(fields).get("view", "cluster")
        node = unquote(name.partition("/")[2]) if name.startswith("node/") else ""
        poller.viewers += 1
        try:
            while True:
                seq, body = self._live_bodies.get(fields, (-1, b""))
                if comes or seq != poller.seq:
                    shown = await view()  # a new viewer also restarts the polling, which may have ended
                    body = json.dumps(poller.live(shown, node)).encode()
                    current_bodies = {key: one for key, one in self._live_bodies.items() if one[0] == poller.seq}
                    self._live_bodies = {**current_bodies, fields: (poller.seq, body)}
                comes = False
                yield body
                await poller.wait_for_refresh()
        finally:
            poller.viewers -= 1

    async def _plots(self, path: str, step: int, node: str) -> bytes:
        await self._poller.fresh()
        timeline = path == "/api/timeline.json"
        plot = self._poller.timeline(step) if timeline else self._poller.history(step, node).as_object()
        return http("200 OK", JSON, json.dumps(plot).encode())


def _static(name: str) -> bytes | None:
    body = static().get(name)
    if body is None:
        return None
    max_age_s = _CACHE_S if name.startswith(_VENDORED) else 0
    return http("200 OK", _KINDS[name.rpartition(".")[2]], body, kept_s=max_age_s)


def _event_filters(fields: Fields) -> dict[str, str]:
    for key in ("since", "until"):
        if not 0 <= float(fields.get(key) or 0) < 1e10:
            raise ValueError(f"Invalid parameter {key}. Use seconds since 1970.")
    place_before(fields.get("before", ""))
    return {key: fields[key] for key in (*FILTERS, "since", "until", "before") if key in fields}


def _streams_after(fields: Fields) -> tuple[int, str]:
    if "after" not in fields:
        return -1, ""
    match decode_place(fields["after"]):
        case [int(rank), str(name)]:
            return rank, name
    raise ValueError("Invalid parameter 'after'. Use [urgency, name].")


def decode_place(text: str) -> object:
    """Decode ``text``, the value of the query parameter ``?after=``, as JSON. Raises ValueError if it is invalid."""
    return load_json(text.encode())
