"""Scripts about OpenTelemetry spans of nodes."""

from __future__ import annotations

import asyncio
from typing import Any

from liftpy.core.observe.trace_context import SpanTree
from sidecar.tracing import exporting
from tests.simulation.world.scripts.stage import Stage, script

_TRACE = 0x0AF7651916CD43DD8448EB211C80319C
_HEADERS = {"traceparent": f"00-{_TRACE:032x}-b7ad6b7169203331-01"}


class _Collector:
    """Takes the place of the thread that exports the spans of a node."""

    def __init__(self, spans: list[SpanTree]) -> None:
        self._spans = spans

    def add(self, tree: SpanTree) -> None:
        """Add finished spans."""
        self._spans.append(tree)

    def settle(self) -> None:
        """Do nothing: all spans arrive."""

    end = close = settle


@script()
async def script_operator_traces_publishes(s: Stage) -> None:
    """Given running nodes, when an operator switches tracing on, the leader reports each step of publishes that the sender traces.

    Failovers and starts have spans, too.
    """
    spans: list[SpanTree] = []
    exporting.SpanThread = lambda *_: _Collector(spans)  # type: ignore[assignment,misc]
    await s.create("orders", leader="n2")

    async def publish_traced() -> None:
        await s.client.publish("orders", b"traced", headers=_HEADERS)
        await s.client.publish("orders", b"not traced")
        await asyncio.sleep(1)

    def roots() -> list[tuple[Any, ...]]:
        return [(tree.root.name, *map(tree.root.attributes.get, ("liftpy.offset", "liftpy.node"))) for tree in spans]

    await publish_traced()
    s.expect(roots(), [], "spans before tracing is on")
    for node in s.names:
        s.change_settings(node, trace="otlp")
    await publish_traced()
    s.expect(roots(), [("append orders/0", 2, "n2")], "spans of the traced publish")
    (tree,) = spans
    names = [span.name for span in tree.children]
    s.expect(sorted(names), ["ack", "commit", "flush", "replicate n1", "replicate n3"], "steps of the publish")
    s.expect((tree.parent.trace_id if tree.parent is not None else 0, tree.root.error), (_TRACE, ""), "trace of the sender")
    ends_ns = {span.name: span.end_ns for span in tree.children}
    s.expect(ends_ns["commit"] >= max(ends_ns["flush"], min(ends_ns["replicate n1"], ends_ns["replicate n3"])), True, "order")
    s.expect(tree.root.end_ns >= ends_ns["ack"] >= ends_ns["commit"], True, "the ack is the last step")
    spans.clear()
    s["n2"].kill()
    await s.becomes(lambda: s.leader("orders") in ("n1", "n3"), what="another node leads")
    leader = s.leader("orders")
    await publish_traced()
    await s.becomes(lambda: len(spans) == 3, what="the span of a publish that one replica does not get")
    s.expect(
        sorted(roots(), key=str),
        [
            ("append orders/0", 4, leader),
            ("election orders/0", None, leader),
            ("fail-over orders/0", None, await s.controller()),
        ],
        "spans of a failover",
    )
    spans.clear()
    await s.start("n2")
    s.expect(roots(), [("recovery", None, "n2")], "spans of a start")
    for node in s.names:
        s.change_settings(node, trace="off")
    await publish_traced()
    s.expect(len(spans), 1, "spans after tracing is off")
