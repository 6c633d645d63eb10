"""``liftpy top``: show a summary of the cluster in a terminal once per second, over NATS. It needs the role ``status``.

The module formats the model as a frame of lines for a terminal of a given size. Colors never carry information alone: words and
numbers say the same. Lines do not wrap. If there is not enough room, the least important columns are dropped first, and
shortened texts end with ``…``.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import sys
import termios
import textwrap
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from liftpy.client import Client
from liftpy.core.observe.cluster_health import DEGRADED, OK, Reason, reason
from liftpy.core.observe.cluster_model import HISTORY, ClusterMonitor, Model, NodeRow
from liftpy.core.observe.page_model import (
    checked_streams,
    figure,
    names_question,
    shown_groups,
    shown_services,
    streams_question,
)
from liftpy.errors import LiftError, UnavailableError
from sidecar.cli.help import HelpCommand
from sidecar.cli.node_reports import ask_summaries
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.output import print_json, wait_for_closed_pipe
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target
from sidecar.runtime.tasks import start_attended
from sidecar.status.cluster_poller import EVERY_S, TIMEOUT_S
from sidecar.status.pages import GROUP_COLUMNS, SERVICE_COLUMNS, STREAM_COLUMNS

SORTS = ("rate", "lag", "p99", "name")
SHOWS = ("nodes", "streams", "groups", "services")
"""Lists that the screen can show, by the keys 1 to 4."""
_STYLES = {OK: "bold green", DEGRADED: "bold yellow"}
_BARS = "▁▂▃▄▅▆▇█"
_REASON_LINES = 3
"""Maximum number of lines for the text of one problem."""
_REASONS = 3
"""Maximum number of problems above the table. The screen shows the number of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """State of the screen.

    ``page``: '' for the table, 'help', or 'node' for the selected node. ``typing``: True while the user types the filter.
    ``shows``: one of ``SHOWS``.
    """

    shows: str = "nodes"
    sort: str = "rate"
    reverse: bool = False
    filter: str = ""
    typing: bool = False
    selected: int = 0
    page: str = ""
    ended: bool = False


def view_after_key(view: View, key: str, count: int) -> View:
    """Return the state of the screen after the user has pressed ``key``. ``count``: number of table rows."""
    if key == END:
        return replace(view, ended=True)
    if view.typing:
        if key in ("\r", "\n", "\x1b"):
            return replace(view, typing=False, filter="" if key == "\x1b" else view.filter)
        if key in ("\x7f", "\b"):
            return replace(view, filter=view.filter[:-1])
        return replace(view, filter=view.filter + key, selected=0) if key.isprintable() else view
    if key in ("q", "\x03"):
        return replace(view, ended=True)
    if key in "1234":
        return replace(view, shows=SHOWS[int(key) - 1], page="", selected=0)
    if key == "s":
        return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
    if key == "r":
        return replace(view, reverse=not view.reverse)
    if key == "/":
        return replace(view, typing=True, page="", filter="")
    if key == "?":
        return replace(view, page="" if view.page == "help" else "help")
    if key in ("\r", "\n"):
        return replace(view, page="" if view.page else "node")
    if key == "\x1b":
        return replace(view, page="", filter="")
    if key in ("j", "k"):
        step = 1 if key == "j" else -1
        return replace(view, selected=min(max(0, view.selected + step), max(0, count - 1)))
    return view


_BY: dict[str, Callable[[NodeRow], Any]] = {
    "rate": lambda row: -(row.records_in_s or 0.0),
    "lag": lambda row: -(row.glance.lag_s if row.glance is not None else 0.0),
    "p99": lambda row: -(row.ack_p99_s or 0.0),
    "name": lambda row: row.node,
}


def rows_of(model: Model, view: View) -> list[NodeRow]:
    """Return the nodes that match the filter, in the selected order. Nodes with equal values are sorted by name."""
    matching_rows = [row for row in model.rows if view.filter in row.node]
    return sorted(sorted(matching_rows, key=lambda row: row.node), key=_BY[view.sort], reverse=view.reverse)


def render(model: Model, width: int, height: int, view: View, listed: Sequence[Mapping[str, Any]] = ()) -> Group:
    """Return the screen as exactly ``height`` lines, none wider than ``width`` characters."""
    lines = [_head(model), *_reasons(model, width), *_totals(model, width), Text("")]
    foot = _foot(view)
    room = max(0, height - len(lines) - 1)
    rows = rows_of(model, view)
    if view.page == "help":
        body = [Text(line) for line in _HELP]
    elif view.shows != "nodes":
        body = _table_of(listed, width, room, view)
    elif view.page == "node" and rows:
        body = _detail(rows[min(view.selected, len(rows) - 1)])
    else:
        body = _table(rows, width, room, view)
    shown = [*lines[: max(0, height - 1)], *body[:room]]
    shown += [Text("")] * (height - 1 - len(shown))
    for line in (*shown, foot):
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return Group(*shown, foot)


def spark(values: Sequence[float | None], width: int = HISTORY) -> str:
    """Return the newest ``width`` values as a line of bars, newest on the right. A gap is a space, and zero is a low bar."""
    newest = list(values)[-width:]
    top = max((value for value in newest if value is not None), default=0.0)
    bars = "".join(" " if value is None else _BARS[round(value / top * (len(_BARS) - 1)) if top else 0] for value in newest)
    return bars.rjust(width)


def _head(model: Model) -> Text:
    states = [row.state for row in model.rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("live", "fenced", "drained", "silent") if state in states)
    word = model.verdict.word
    line = Text.assemble(f"{model.namespace}  ", (word, _STYLES.get(word, "bold red")), f"  nodes: {counts or 'none known'}")
    line.append(f"  metadata: {model.metadata_leader or 'no leader'}")
    if model.streams is not None:
        line.append(f"  streams: {model.streams:,}")
    return line


def _reasons(model: Model, width: int) -> list[Text]:
    reasons = model.verdict.reasons
    lines = [line for one in reasons[:_REASONS] for line in _reason(one, width)]
    if len(reasons) > _REASONS:
        lines.append(Text(f"  and {len(reasons) - _REASONS} more: liftpy status"))
    return lines


def _reason(entry: Reason, width: int) -> list[Text]:
    """Return the text of one problem, wrapped to ``width`` characters, on at most ``_REASON_LINES`` lines."""
    text = f"{'!' if entry.stops else '-'} {entry.line}"
    wrapped = textwrap.wrap(text, max(width, 20), subsequent_indent="  ", max_lines=_REASON_LINES, placeholder=" …")
    return [Text(line) for line in wrapped]


def _totals(model: Model, width: int) -> list[Text]:
    shown = max(0, min(HISTORY, width - 34))
    acks = f"acks    p50 {_ms(model.ack_p50_s)}  p99 {_ms(model.ack_p99_s)}"
    return [
        Text.assemble(
            f"in  {_rate(model.records_in_s):>10}/s {_size(model.bytes_in_s):>9}/s  ", (spark(model.history_in, shown), "cyan")
        ),
        Text.assemble(
            f"out {_rate(model.records_out_s):>10}/s {_size(model.bytes_out_s):>9}/s  ",
            (spark(model.history_out, shown), "cyan"),
        ),
        Text(acks),
    ]


_COLUMNS: tuple[tuple[str, int, int, Callable[[NodeRow], str]], ...] = (
    ("in/s", 9, 0, lambda row: _rate(row.records_in_s)),
    ("out/s", 9, 2, lambda row: _rate(row.records_out_s)),
    ("p99", 8, 0, lambda row: _ms(row.ack_p99_s)),
    ("lag", 7, 0, lambda row: _of(row, lambda glance: f"{glance.lag_s:.1f} s")),
    ("leads", 6, 1, lambda row: _of(row, lambda glance: f"{glance.leads:,}")),
    ("copies", 6, 3, lambda row: _of(row, lambda glance: f"{glance.replicas:,}")),
    ("short", 6, 1, lambda row: _of(row, lambda glance: f"{glance.under_replicated:,}")),
    ("disk", 5, 2, lambda row: _of(row, lambda glance: f"{1 - glance.disk_free:.0%}")),
    ("loop p99", 8, 4, lambda row: _ms(row.loop_p99_s)),
)
"""Columns: (heading, width, removal priority, function that returns the text of a cell).

If the terminal is too narrow, the columns with the highest removal priority are left out first.
"""
_NAME, _STATE, _LEAST_SPARK = 12, 9, 8


def _table(rows: list[NodeRow], width: int, room: int, view: View) -> list[Text]:
    columns = list(_COLUMNS)
    name = min(_NAME, max([4, *(len(row.node) for row in rows)]))
    fixed = 2 + name + 1 + _STATE
    while columns and fixed + sum(column[1] + 1 for column in columns) > width:
        columns.remove(max(columns, key=lambda column: column[2]))
    left = width - fixed - sum(column[1] + 1 for column in columns) - 2
    sparks = min(HISTORY, left) if left >= _LEAST_SPARK else 0
    head = (
        "  " + "node".ljust(name) + " " + "state".ljust(_STATE) + "".join(f" {title:>{size}}" for title, size, _, _ in columns)
    )
    lines = [Text(head + (f"  in, {sparks} s" if sparks else ""), style="bold")]
    fits = rows if len(rows) < room else rows[: max(0, room - 2)]
    for number, row in enumerate(fits):
        mark = ">" if number == view.selected else " "
        text = f"{mark} {_shorten(row.node, name)} {_shorten(row.state + ('*' if row.leads_metadata else ''), _STATE)}"
        text += "".join(f" {show(row):>{size}}" for _, size, _, show in columns)
        lines.append(
            Text.assemble(
                (text, "" if row.state == "live" else "yellow"), ("  " + spark(row.history, sparks), "cyan") if sparks else ""
            )
        )
    if len(fits) < len(rows):
        lines.append(Text(f"  and {len(rows) - len(fits)} more: / finds one"))
    if not rows:
        lines.append(Text("  no such node" if view.filter else "  no node has answered yet"))
    return lines


_LISTS = {"streams": STREAM_COLUMNS, "groups": GROUP_COLUMNS, "services": SERVICE_COLUMNS}
_WIDEST = 24
"""Maximum width of a column in the tables of streams, groups and services, in characters."""


def _table_of(listed: Sequence[Mapping[str, Any]], width: int, room: int, view: View) -> list[Text]:
    """Return the table of streams, groups or services, with at most ``room`` lines.

    Columns that do not fit into ``width`` characters are left out, the rightmost first.
    """
    columns = _LISTS[view.shows]
    matching_rows = [row for row in listed if view.filter in str(row[columns[0].name])]
    fits = matching_rows if len(matching_rows) < room else matching_rows[: max(0, room - 2)]
    cells = [[figure(column.kind, row.get(column.name)) for column in columns] for row in fits]
    lines = [""] * (len(fits) + 1)
    for number, column in enumerate(columns):
        texts = [column.title, *(row[number] for row in cells)]
        size = min(_WIDEST, max(map(len, texts)))
        if len(lines[0]) + 2 + size > width and number:
            break
        shown = [_shorten(text, size) if column.kind == "text" else text.rjust(size) for text in texts]
        lines = [f"{line}{'  ' if line else ''}{text}" for line, text in zip(lines, shown, strict=True)]
    styles = ["bold", *("yellow" if row.get("problem") else "" for row in fits)]
    table_lines = [Text(line, style=style) for line, style in zip(lines, styles, strict=True)]
    if len(fits) < len(matching_rows):
        table_lines.append(Text(f"  and {len(matching_rows) - len(fits)} more: / finds one"))
    if not matching_rows:
        table_lines.append(Text(f"  no {view.shows[:-1]} has this in its name" if view.filter else f"  no {view.shows}"))
    return table_lines


def _detail(row: NodeRow) -> list[Text]:
    glance = row.glance
    lines = [f"node {row.node}: {row.state}" + (", leads the metadata group" if row.leads_metadata else "")]
    if glance is None:
        lines.append(reason("silent", who=row.node).line)
    else:
        lines += [
            f"version {glance.version or '?'}, incarnation {glance.incarnation}, up {glance.uptime_s:,.0f} s"
            + (", a controller" if glance.is_controller else ""),
            f"in  {_rate(row.records_in_s)}/s, {_size(row.bytes_in_s)}/s; total {glance.records_in:,} records",
            f"out {_rate(row.records_out_s)}/s, {_size(row.bytes_out_s)}/s; total {glance.records_out:,} records",
            f"acks p50 {_ms(row.ack_p50_s)}, p99 {_ms(row.ack_p99_s)}; event loop late p99 {_ms(row.loop_p99_s)}",
            f"leads {glance.leads:,} of {glance.replicas:,} replicas; slowest: {glance.lag_records:,} records, {glance.lag_s:.1f} s",
            f"under-replicated {glance.under_replicated:,}, at min_isr {glance.at_min_isr:,}, under it {glance.under_min_isr:,}, "
            f"failed {glance.failed:,}, services blocked {glance.services_blocked:,}",
            f"services ended {glance.services_ended:,}" + "".join(f"; {one}" for one in glance.ended_services),
            f"disk {1 - glance.disk_free:.0%} used, room for publishes {glance.queued:.0%} used, "
            f"NATS {'connected' if glance.nats_connected else 'disconnected'}",
        ]
    return [Text(line) for line in lines]


_HELP = (
    "q        end",
    "1 2 3 4  show nodes, streams, groups and queues, services",
    f"s        sort by the next of: {', '.join(SORTS)}",
    "r        the other way round",
    "/        show names with this text in them; Esc: all",
    "j k      select the next, the previous node",
    "Enter    the selected node, and back",
    "?        this, and back",
    "",
    "*: leads the metadata group. in, out: records. p99: of acks. lag: of the slowest",
    "follower. short: partitions with replicas out of sync. disk: used.",
)


def _foot(view: View) -> Text:
    if view.typing:
        return Text(f"/{view.filter}_   Enter: keep   Esc: all", style="reverse")
    order = view.sort + (", reversed" if view.reverse else "") + (f"   filter: {view.filter}" if view.filter else "")
    if view.shows != "nodes":
        lists = "  ".join(f"{number} {f'[{name}]' if name == view.shows else name}" for number, name in enumerate(SHOWS, 1))
        return Text(f"q end   {lists}   / find{f': {view.filter}' if view.filter else ''}   ? keys", style="reverse")
    return Text(f"q end   1-4 lists   s sort: {order}   r reverse   / find   Enter node   ? keys", style="reverse")


def _shorten(text: str, size: int) -> str:
    return text.ljust(size) if len(text) <= size else text[: size - 1] + "…"


def _of(row: NodeRow, show: Callable[[Any], str]) -> str:
    return "?" if row.glance is None else show(row.glance)


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}" if value < 1e7 else f"{value / 1e6:,.0f}M"


def _size(value: float | None) -> str:
    if value is None:
        return "?"
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"


END = ""
"""Key that stands for the end of the input. It ends the command, also while the user types the filter."""
_ARROWS = {"\x1b[A": "k", "\x1b[B": "j", "\x1bOA": "k", "\x1bOB": "j"}


@click.command(cls=HelpCommand, example="liftpy top --sort lag")
@click.option("--sort", type=click.Choice(SORTS), default="rate", show_default=True, help="Column to sort by.")
@click.option("--show", "shows", type=click.Choice(SHOWS), default="nodes", show_default=True, help="List below the summary.")
@click.option("--once", is_flag=True, help="Print one measurement over one second, then exit.")
@json_option
@connection_options
def top(sort: str, shows: str, once: bool, as_json: bool, target: Target) -> None:
    """Watch the cluster: state, rates, ack latency and lag, with its nodes, streams, groups or services, once per second.

    With --json, print one object per line.
    """
    with_client(
        target,
        lambda client: _watch(client, target.namespace, View(sort=sort, shows=shows), once=once, as_json=as_json),
        needs_majority=False,
    )


async def _watch(client: Client, namespace: str, view: View, *, once: bool, as_json: bool) -> None:
    looking = SummaryPoller(client, ClusterMonitor(namespace))
    looking.shows = view.shows
    await looking.poll()
    if not looking.knows_any:
        raise UnavailableError("The metadata group does not answer, so no node is known. Check `liftpy health`.")
    if once or not (as_json or sys.stdout.isatty()):
        await asyncio.sleep(EVERY_S)
        await looking.poll()
        _print(looking, view, as_json)
    elif as_json:
        pipe_closed = start_attended(wait_for_closed_pipe(sys.stdout))
        while not pipe_closed.done():
            await asyncio.wait((pipe_closed,), timeout=EVERY_S)
            await looking.poll()
            _print(looking, view, as_json)
    else:
        await _live(looking, view)


class SummaryPoller:
    """Requests the summaries of all nodes, and stores the answers in ``watching``."""

    def __init__(self, client: Client, watching: ClusterMonitor, now: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now = now
        self.watching = watching
        self._named: list[str] = []
        """Nodes that the metadata leader named at the start."""
        self.shows = "nodes"
        """One of ``SHOWS``. Streams, groups and services are requested only while they are shown."""
        self.listed: list[dict[str, Any]] = []
        """Rows of the table of streams, groups or services that the screen shows."""

    @property
    def knows_any(self) -> bool:
        return bool(self.watching.nodes(self._named))

    async def poll(self) -> None:
        """Request the summaries of all nodes, and the rows of the table that the screen shows."""
        if not self.knows_any:
            with suppress(LiftError):
                self._named = await self._client.admin.node_ids()
        nodes = self.watching.nodes(self._named)
        summaries = await ask_summaries(self._client.admin, nodes, TIMEOUT_S)
        is_lost = not any(summaries.values()) and not self._client.admin.is_connected
        self.watching.add_summaries(self._now(), summaries, is_nats_lost=is_lost)
        self.listed = await self._list(self.shows, [node for node, one in summaries.items() if one is not None])

    async def _list(self, shows: str, nodes: Sequence[str]) -> list[dict[str, Any]]:
        if shows == "nodes" or not nodes:
            return []
        if shows == "streams":
            leader = self.watching.model().metadata_leader
            return checked_streams(await self._rows_of(leader if leader in nodes else nodes[0], streams_question()))
        shown = {"groups": shown_groups, "services": shown_services}[shows]
        answers = await asyncio.gather(*(self._rows_of(node, names_question(shows)) for node in nodes))
        listed: list[dict[str, Any]] = shown(dict(zip(nodes, answers, strict=True)))["rows"]
        return listed

    async def _rows_of(self, node: str, question: dict[str, Any]) -> Any:
        with suppress(LiftError):
            answer = await self._client.admin.ask_node(node, json.dumps(question).encode(), TIMEOUT_S)
            return answer.get(next(iter(question)))
        return None


def _print(looking: SummaryPoller, view: View, as_json: bool) -> None:
    model = looking.watching.model()
    if as_json:
        listed = {view.shows: looking.listed} if view.shows != "nodes" else {}
        print_json({**as_object(model), **listed})
        return
    console = Console()
    lines = len(_reasons(model, console.width)) + max(len(model.rows), len(looking.listed)) + 9
    console.print(render(model, console.width, lines, view, looking.listed))


def as_object(model: Model) -> dict[str, Any]:
    """Return the state of the cluster as a JSON object, without the history."""
    fields = asdict(model)
    del fields["history_in"], fields["history_out"]
    for row in fields["rows"]:
        del row["history"]
    fields["verdict"] = model.verdict.as_object()
    return fields


async def _live(looking: SummaryPoller, view: View) -> None:
    changed = asyncio.Event()

    def show(live: Live) -> None:
        model = looking.watching.model()
        listed = looking.listed if looking.shows == view.shows else []
        live.update(render(model, live.console.width, live.console.height, view, listed), refresh=True)

    def key(text: str) -> None:
        nonlocal view
        view = view_after_key(view, text, len(rows_of(looking.watching.model(), view)))
        changed.set()

    with keys(key), Live(console=Console(), screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while not view.ended:
            show(live)
            changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), max(0.0, due + EVERY_S - time.monotonic()))
            is_other, looking.shows = looking.shows != view.shows, view.shows
            if is_other or not changed.is_set():
                due = time.monotonic()
                await looking.poll()


@contextmanager
def keys(pressed_key: Callable[[str], None]) -> Iterator[None]:
    """Call ``pressed_key`` with each key that the user presses during the block, and with ``END`` at the end of the input.

    A standard input that is a file or ``/dev/null`` has no keys. Bytes that are not UTF-8 are ignored.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    loop, where = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(where) if os.isatty(where) else None

    def read() -> None:
        try:
            data = os.read(where, 1024)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            loop.remove_reader(where)
            pressed_key(END)
            return
        text = decoder.decode(data)
        for sequence, letter in _ARROWS.items():
            text = text.replace(sequence, letter)
        for one in text:
            pressed_key(one)

    if before is not None:
        tty.setcbreak(where)
    with suppress(PermissionError):  # the system cannot wait for a file
        loop.add_reader(where, read)
    try:
        yield
    finally:
        loop.remove_reader(where)
        if before is not None:
            termios.tcsetattr(where, termios.TCSADRAIN, before)
