"""Test constants that all nodes must share, and constants whose order matters. A wrong one breaks no other test."""

from __future__ import annotations

import importlib

from tests.each import each

KIB, MIB = 1 << 10, 1 << 20

SHARED: dict[str, dict[str, int]] = {
    "liftpy.core.metadata.request_limits": {"MAX_REQUEST_BYTES": 64 * KIB},
    "liftpy.core.publish.message_decoder": {"MAX_BATCH_RECORDS": 65_536, "MAX_HEADERS": 1024, "MAX_HEADER_BYTES": 64 * KIB},
    "liftpy.core.services.effects": {"MAX_PENDING": 10_000, "MAX_PENDING_BYTES": 8 * MIB, "MAX_NAME_BYTES": 256},
    "liftpy.core.services.machine": {
        "MAX_TIMERS": 10**6,
        "MAX_TIMER_NAME_BYTES": 1024,
        "MAX_FIRES_PER_RECORD": 10**5,
        "MAX_OUTPUTS_PER_CALLBACK": 1000,
    },
    "liftpy.core.services.outbox": {"MAX_OUTPUT_BYTES": 256 * KIB},
    "liftpy.core.services.replies": {"MAX_ID_BYTES": 256, "MAX_ANSWERS": 10_000, "MAX_ANSWERS_BYTES": 4 * MIB},
    "liftpy.core.services.sessions": {"MAX_SERVICES": 16, "MAX_REPORTED": 16},
}
"""Module -> constant -> value. The content of a log or a state depends on it, so a change needs a feature level."""


@each("module", SHARED)
def test_constant_that_all_nodes_share_has_its_value(module: str) -> None:
    found = importlib.import_module(module)
    assert {name: getattr(found, name) for name in SHARED[module]} == SHARED[module]


LESS: list[tuple[str, str, str]] = [
    (
        "liftpy.core.services.queries:PATIENCE_S",
        "liftpy.client.services:_QUERY_ATTEMPT_S",
        "a query is asked again when its service has given it up",
    ),
    (
        "liftpy.core.services.sessions:REPORT_EVERY_S",
        "liftpy.core.services.sessions:_BELIEVED_S",
        "a report that was lost does not count as silence",
    ),
    (
        "liftpy.core.services.versions:_BELIEVED_S",
        "liftpy.service.host:AGAIN_S",
        "who has gone is forgotten before it is asked again",
    ),
    (
        "liftpy.core.metadata.request_limits:SENT_TOGETHER",
        "liftpy.core.metadata.request_limits:MAX_REQUESTS",
        "what is made is accepted",
    ),
    (
        "liftpy.core.metadata.request_limits:MAX_BATCH_BYTES",
        "liftpy.core.metadata.request_limits:MAX_REQUEST_BYTES",
        "what is made is accepted",
    ),
    (
        "liftpy.core.metadata.describe:DEFAULT_PAGE_BYTES",
        "liftpy.core.metadata.describe:MAX_PAGE_BYTES",
        "what nobody asks for is allowed",
    ),
    (
        "liftpy.client.encode_publish:_LONGEST_ID_BYTES",
        "liftpy.core.publish.dedup_window:MAX_ID_BYTES",
        "an id of ours is an id",
    ),
    (
        "liftpy.core.publish.dedup_window:MAX_ID_BYTES",
        "liftpy.core.publish.message_decoder:MAX_HEADER_BYTES",
        "an id has room in the headers",
    ),
    ("liftpy.client.retrying:FIRST_WAIT_S", "liftpy.client.retrying:LONGEST_WAIT_S", "waits grow"),
    (
        "sidecar.partition.leadership:_TRANSFER_WAIT_S",
        "sidecar.metadata.controller:TRANSFER_REQUEST_TIMEOUT_S",
        "who steps aside says so in time",
    ),
    ("sidecar.runtime.timers:GRID_NS", "sidecar.runtime.timers:FAR_GRID_NS", "what is far off may be later"),
]


@each(("less", "more", "why"), LESS)
def test_code_constant_with_a_documented_order_is_less_than_the_other_constant(less: str, more: str, why: str) -> None:
    one, other = (
        getattr(importlib.import_module(module), name) for module, name in (which.split(":") for which in (less, more))
    )
    assert one < other, why
