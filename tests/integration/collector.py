"""An OTLP collector on loopback that keeps the spans that it is sent, for tests."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


@dataclass(frozen=True)
class Seen:
    """One span. Ids as whole numbers; ``parent`` 0: none. ``node``: whose it is."""

    name: str
    trace: int
    span: int
    parent: int
    node: str
    links: tuple[tuple[int, int], ...]
    attributes: dict[str, Any]
    error: str
    start_ns: int
    end_ns: int


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class Collector:
    """``spans``: all that came, in the order of their arrival. Use as a context manager."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        take = self._take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Where spans are sent."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def _take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            facts = {pair.key: _value(pair.value) for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    Seen(
                        span.name,
                        int.from_bytes(span.trace_id),
                        int.from_bytes(span.span_id),
                        int.from_bytes(span.parent_span_id),
                        facts.get("service.instance.id", ""),
                        tuple((int.from_bytes(link.trace_id), int.from_bytes(link.span_id)) for link in span.links),
                        {pair.key: _value(pair.value) for pair in span.attributes},
                        span.status.message,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )
                    for span in scope.spans
                ]

    def of(self, trace: int) -> dict[str, Seen]:
        """The spans of a trace, by name."""
        return {span.name: span for span in self.spans if span.trace == trace}

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
