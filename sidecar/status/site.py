"""The pages of a cluster by their addresses: HTML, JSON, the live stream, and what pages are made of. Reads only.

``/`` the cluster, ``/node/<id>``, ``/stream/<name>``, ``/events``, ``/runbook/<name>``, ``/static/<file>``. Below ``/api/``:
``cluster.json``, ``node/<id>.json``, ``stream/<name>.json``, ``events.json``, ``history.json``, ``timeline.json``, and ``live``: one
JSON object a second, as Server-Sent Events.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, unquote

from liftpy.core.base.ids import check_name
from liftpy.core.base.strict_json import load_json
from liftpy.core.observe.cluster_health import FIRST, Place, place_of
from liftpy.core.observe.history import LENGTHS
from liftpy.core.observe.timeline import FILTERS
from liftpy.errors import ConfigError
from sidecar.status import pages
from sidecar.status.cluster_poller import Viewing, place_before
from sidecar.status.http import HTML, JSON, TEXT, Live, http
from sidecar.status.pages import names, runbook

_KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "LICENSE": TEXT}
_KEPT_S = 3600
_VENDORED = "uPlot"
Fields = Mapping[str, str]


@cache
def static() -> dict[str, bytes]:
    """Return all static files by name."""
    folder = files("sidecar.status").joinpath("static")
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file() and one.name.rpartition(".")[2] in _KINDS}


class Site:
    """The status web site. ``viewing`` has its data."""

    def __init__(self, viewing: Viewing) -> None:
        self._viewing = viewing
        self._live_made: dict[tuple[tuple[str, str], ...], tuple[int, bytes]] = {}
        """Data of this second for viewers of the same page. It is built once for all of them."""

    def respond(self, path: str, query: bytes) -> Awaitable[bytes | Live] | bytes | None:
        """Return the answer to a GET, None if there is no such page."""
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
        """Return a function that builds the data of a page.

        Raise KeyError for an unknown page, ValueError or ConfigError for an invalid name.
        """
        viewing = self._viewing
        kind, _, what = name.partition("/")
        what = unquote(what)

        async def cluster() -> dict[str, Any]:
            await viewing.fresh(streams_after=streams_after)
            return viewing.cluster(streams_after)

        async def events() -> dict[str, Any]:
            await viewing.fresh()
            return await viewing.happened(
                **{key: fields[key] for key in (*FILTERS, "since", "until", "before") if key in fields}
            )

        async def node() -> dict[str, Any]:
            await viewing.fresh(node=what, after=after)
            return viewing.node(what, after)

        async def stream() -> dict[str, Any]:
            await viewing.fresh(stream=what, after=after)
            return viewing.stream(what, after)

        if name == "cluster":
            streams_after = _streams_after(fields)
            return cluster
        if name == "events":
            for key in ("since", "until"):
                moment_s = float(fields.get(key) or 0)
                if not 0 <= moment_s < 1e10:
                    raise ValueError(f"Invalid parameter {key}. Use seconds since 1970.")
            place_before(fields.get("before", ""))
            return events
        found = {"node": node, "stream": stream}[kind]
        after = _after(fields)
        check_name(what, kind)
        return found

    async def _json(self, view: Callable[[], Awaitable[dict[str, Any]]]) -> bytes:
        return http("200 OK", JSON, json.dumps(await view()).encode())

    async def _page(self, view: Callable[[], Awaitable[dict[str, Any]]], name: str, fields: Fields) -> bytes:
        shown = await view()
        kind, _, what = name.partition("/")
        if kind == "cluster":
            made = pages.cluster_page(shown)
        elif kind == "events":
            made = pages.events_page(shown, fields)
        elif kind == "node":
            made = pages.node_page(shown, unquote(what))
        else:
            made = pages.stream_page(shown, unquote(what))
        return http("200 OK", HTML, made.encode())

    async def _live(self, view: Callable[[], Awaitable[dict[str, Any]]], fields: Fields) -> Live:
        return Live(self._events(view, tuple(sorted(fields.items()))))

    async def _events(
        self, view: Callable[[], Awaitable[dict[str, Any]]], asked: tuple[tuple[str, str], ...]
    ) -> AsyncGenerator[bytes, None]:
        viewing, comes = self._viewing, True
        name = dict(asked).get("view", "cluster")
        node = unquote(name.partition("/")[2]) if name.startswith("node/") else ""
        viewing.viewers += 1
        try:
            while True:
                seq, made = self._live_made.get(asked, (-1, b""))
                if comes or seq != viewing.seq:
                    shown = await view()  # whoever comes also begins the asking, which may have ended
                    made = json.dumps(viewing.live(shown, node)).encode()
                    kept = {key: one for key, one in self._live_made.items() if one[0] == viewing.seq}
                    self._live_made = {**kept, asked: (viewing.seq, made)}
                comes = False
                yield made
                await viewing.changed()
        finally:
            viewing.viewers -= 1

    async def _plots(self, path: str, step: int, node: str) -> bytes:
        await self._viewing.fresh()
        timeline = path == "/api/timeline.json"
        found = self._viewing.timeline(step) if timeline else self._viewing.history(step, node).as_object()
        return http("200 OK", JSON, json.dumps(found).encode())


def _static(name: str) -> bytes | None:
    body = static().get(name)
    if body is None:
        return None
    kept_s = _KEPT_S if name.startswith(_VENDORED) else 0
    return http("200 OK", _KINDS[name.rpartition(".")[2]], body, kept_s=kept_s)


def _after(fields: Fields) -> Place:
    return place_of(asked_place(fields["after"])) if "after" in fields else FIRST


def _streams_after(fields: Fields) -> tuple[int, str]:
    if "after" not in fields:
        return -1, ""
    match asked_place(fields["after"]):
        case [int(rank), str(name)]:
            return rank, name
    raise ValueError("Invalid parameter after. Use [urgency, name].")


def asked_place(text: str) -> object:
    """The JSON in ``?after=``. Raises ValueError."""
    return load_json(text.encode())
