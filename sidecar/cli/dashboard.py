"""``liftpy dashboard``: serve the web page of a cluster over NATS. The nodes need no open port. It needs the role ``status``."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import Awaitable, Mapping
from functools import partial

import click

from liftpy.client import Client
from liftpy.errors import ConfigError, LiftError, NotAllowedError, UnavailableError
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.output import print_json, wait_for_closed_pipe
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target
from sidecar.runtime.tasks import start_attended
from sidecar.status.cluster_poller import ClusterPoller
from sidecar.status.http import FOREIGN_SITE, LOOPBACK, TEXT, EventStreamResponse, HttpServer, host_of, http, is_of_foreign_site
from sidecar.status.pages import Site
from sidecar.status.records import RecordsBrowser, RecordsQuery, query_text

DEFAULT_LISTEN = "127.0.0.1:8223"
_MOST_TRIED = 3
"""Maximum number of nodes that are asked to keep the event of a read."""
_METADATA_LINE = re.compile(r"# (HELP|TYPE) ([A-Za-z_:][\w:]*) [^\n]*")
_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)(?:\{((?:[A-Za-z_]\w*="(?:[^"\\\n]|\\.)*",?)*)\})? (-?[\d.eE+-]+|NaN|[+-]Inf)')
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_PARTS = ("_total", "_bucket", "_count", "_sum", "_created")


@click.command(cls=HelpCommand, example="liftpy dashboard --listen 127.0.0.1:8223")
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on. Port 0 means any free port.",
)
@click.option("--hostname", "hosts", multiple=True, metavar="NAME", help="Additional host name that browsers may use.")
@click.option(
    "--show-records",
    "has_records",
    is_flag=True,
    help="Also show records, at /records/STREAM. It needs operator permissions, because each read makes an event records_read.",
)
@json_option
@connection_options
def dashboard(listen: str, hosts: tuple[str, ...], has_records: bool, as_json: bool, target: Target) -> None:
    """Serve the web page of the cluster, and /metrics of all nodes, until Ctrl-C.

    The page needs no port of a node. The command requests data over NATS only while a browser or Prometheus reads it. Each metric
    has the label node.
    """
    address, _, port = listen.rpartition(":")
    if not address or re.fullmatch("[0-9]{1,5}", port) is None or int(port) > 65_535:
        raise ConfigError(f"Invalid value for --listen: {listen}. Use HOST:PORT.")
    names = (*LOOPBACK, address, *hosts)

    async def serve(client: Client) -> None:
        records = RecordsBrowser(client, partial(report_read, client)) if has_records else None
        await _serve(ClusterSite(client, target.namespace, names, records), address, int(port), as_json)

    with_client(target, serve, needs_majority=False)


async def report_read(client: Client, query: RecordsQuery) -> None:
    """Store an audit event of ``query`` on a node, and print it. Raises LiftError if no node stores the event."""
    text = query_text(query)
    failed: LiftError = UnavailableError("No node answers. Check `liftpy health`.")
    for node in (await client.admin.controller_ids())[:_MOST_TRIED]:
        try:
            await client.admin.note_records_read(node, query.stream, query.partition, text)
        except NotAllowedError:
            raise
        except LiftError as error:
            failed = error
            continue
        click.echo(f"records read stream={query.stream} partition={query.partition} {text} event_on={node}", err=True)
        return
    raise failed


async def _serve(shown: ClusterSite, address: str, port: int, as_json: bool) -> None:
    serving = HttpServer(shown.respond)
    try:
        bound = await serving.open(address.strip("[]"), port)
    except OSError as error:
        raise ConfigError(f"Cannot listen on --listen {address}:{port}: {error}. Choose another address or port.") from None
    url = f"http://{address}:{bound}"
    print_json({"event": "ready", "page": url}) if as_json else click.echo(f"The page is at {url}. Ctrl-C ends it.")
    sys.stdout.flush()
    stopped = asyncio.Event()
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    pipe_closed = start_attended(wait_for_closed_pipe(sys.stdout)) if as_json else None
    waits = [start_attended(stopped.wait()), *([pipe_closed] if pipe_closed is not None else [])]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await serving.close()


class ClusterSite:
    """HTTP answers of ``liftpy dashboard``.

    ``names``: host names under which the page may be requested. ``records``: serves the pages that show records. None: there are
    no such pages.
    """

    def __init__(self, client: Client, namespace: str, names: tuple[str, ...], records: RecordsBrowser | None = None) -> None:
        self._client = client
        self._names = frozenset(name.lower().encode() for name in names)
        self._site = Site(ClusterPoller(namespace, client.admin), records)

    def respond(self, request: bytes) -> bytes | Awaitable[bytes | EventStreamResponse]:
        words = request.split(b"\r\n", 1)[0].split()
        if host_of(request) not in self._names:
            return http("421 Misdirected Request", TEXT, b"this host name is not allowed; add it with --hostname\n")
        if is_of_foreign_site(request):
            return http("403 Forbidden", TEXT, FOREIGN_SITE)
        if len(words) != 3 or words[0] != b"GET":
            return http("405 Method Not Allowed", TEXT, b"GET only\n")
        path, _, query = words[1].partition(b"?")
        if path == b"/metrics":
            return self._metrics()
        response = self._site.respond(path.decode("ascii", "replace"), query)
        return (
            response
            if response is not None
            else http("404 Not Found", TEXT, b"/, /node/ID, /stream/NAME, /groups, /services, /search, /events, /metrics\n")
        )

    async def _metrics(self) -> bytes:
        with contextlib.suppress(LiftError):
            nodes = await self._client.admin.node_ids()
            answers = await asyncio.gather(
                *(self._client.admin.ask_node(node, b'{"metrics": true}', 2.0) for node in nodes), return_exceptions=True
            )
            texts = {
                node: one["metrics"]
                for node, one in zip(nodes, answers, strict=True)
                if isinstance(one, dict) and isinstance(one.get("metrics"), str)
            }
            return http("200 OK", TEXT, (await asyncio.to_thread(together, texts)).encode())
        return http("503 Service Unavailable", TEXT, b"the metadata group does not answer\n")


def together(texts: Mapping[str, str]) -> str:
    """Merge the metrics of all nodes into one text in Prometheus format, sorted by metric and node.

    Each sample gets a label ``node``. ``texts``: metrics of each node in Prometheus format, by node.

    Lines that do not have the exposition format are left out, so that no node can change the samples of another one.
    """
    metadata_lines: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for node, text in sorted(texts.items()):
        label = f'node="{node.translate(_ESCAPES)}"'
        for line in text.split("\n"):
            if found := _METADATA_LINE.fullmatch(line):
                metadata_lines.setdefault(found[2], {}).setdefault(found[1], line)
                samples.setdefault(found[2], [])
            elif found := _SAMPLE.fullmatch(line):
                name, labels, value = found.groups()
                parts = [part for part in (labels or "").rstrip(",").split(",") if part]
                own = next((part for part in parts if part.startswith('node="')), label)
                if own == label:  # otherwise the sample would name another node
                    labels = ",".join(parts if label in parts else [*parts, label])
                    samples.setdefault(_metric(name, samples), []).append(f"{name}{{{labels}}} {value}")
    lines = [line for name, found in samples.items() for line in (*metadata_lines.get(name, {}).values(), *found)]
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, known: Mapping[str, object]) -> str:
    """Return the metric to which the sample ``name`` belongs, for example ``x`` for ``x_bucket``. ``known``: known metrics."""
    bare = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
    return name if name in known or bare not in known else bare
