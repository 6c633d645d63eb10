"""Decoders of texts: JSON, names, positions, options."""

from __future__ import annotations

import json
import random
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from liftpy.client.multi_consumer import positions_from
from liftpy.client.placement_plans import assignment_from_json, plan_from_pb
from liftpy.client.positions import parse_start, parse_until
from liftpy.config import FlushPolicy
from liftpy.core.base.ids import check_data_subject, check_name, check_publisher_subject
from liftpy.core.base.strict_json import load_json
from liftpy.core.metadata.controller import cluster_events
from liftpy.core.observe.history import History, select_rows
from liftpy.core.observe.node_events import NodeEvents
from liftpy.core.observe.trace_context import parse_traceparent
from liftpy.core.observe.tracing import traced_in
from liftpy.core.wire._pb.cluster_pb2 import PlacementPlan, PlannedNode
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.frames import decode_presence, encode_presence
from liftpy.errors import ConfigError
from liftpy.spark.offsets import StreamOffsets, parse_spec, parse_times
from liftpy.spark.options import OPTIONS, SINK_OPTIONS, SinkOptions, SourceOptions
from sidecar.metadata import cluster_events as events_desk
from sidecar.node.jetstream_protocol import JsRejection, parse_request
from sidecar.partition.deletions import MOST_UNKNOWN, is_directory
from sidecar.runtime import contexts
from sidecar.status import answers
from sidecar.status import pages as page_site
from sidecar.status import status_api as status_desk
from sidecar.transport import ingest_connection
from tests.batches import build_batch
from tests.fuzz import meanings
from tests.fuzz.decoder import Decoder, damaged_json
from tests.fuzz.mutate import bytes_of


def asked_for_a_page(payload: bytes) -> object:
    """The question, and of a history what it asks for: that is made where the message arrives."""
    question = answers.question_of(payload)
    return select_rows(History(), question[1]) if question is not None and question[0] == "history" else question


def _kept(data: bytes) -> list[dict[str, Any]]:
    """What a page shows of a record of the events' stream."""
    question = answers.StoredEventsRequest.of({"kept": {"before": [9, 0], "kind": "election", "node": "n2"}})
    found = answers._newest_first([parse_batch(build_batch([data]))], 1)
    return [event for _, event in found if answers._is_wanted(event, question)]


class _Unknown:
    """In the place of the node's directories of streams that the cluster does not know."""

    async def remove(self, names: list[str]) -> dict[str, Any]:
        assert 0 < len(names) <= MOST_UNKNOWN
        assert all(map(is_directory, names))
        return {"removed": names}


def _removed(data: bytes) -> dict[str, Any]:
    """What is answered to whoever asks to remove directories."""
    handler: Any = status_desk.StatusHandler.__new__(status_desk.StatusHandler)
    handler.unknown = _Unknown()
    asking = handler._remove_data(data)
    try:
        asking.send(None)
    except StopIteration as end:
        answer: dict[str, Any] = end.value
        json.dumps(answer).encode()
        return answer
    raise AssertionError("it waits for nothing")


def _desk_with_events() -> Any:
    handler: Any = status_desk.StatusHandler.__new__(status_desk.StatusHandler)
    handler.events = NodeEvents("n1", lambda: 9, lambda: 7)
    return handler


def _node_events(data: bytes) -> dict[str, Any] | None:
    """The events of a node that an operator asks for."""
    handler = _desk_with_events()
    handler.events.add("records_read", detail="a query")
    answer: dict[str, Any] | None = handler.node_events_answer(data)
    json.dumps(answer).encode()
    return answer


def _records_read(data: bytes) -> dict[str, Any] | None:
    """The event of a person who reads records, as an operator is shown it."""
    handler = _desk_with_events()
    answer: dict[str, Any] | None = handler.records_read_answer(data)
    shown = handler.events.after(-1, 0, 9)
    assert len(shown["events"]) == (answer is not None)
    assert len(json.dumps(shown)) < 16_000
    return answer


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


_PLAN = PlacementPlan(
    nodes=[PlannedNode(nodeId="n1", rack="r", weight=1.5, replicas=3, leaders=1, fenced=True), PlannedNode(nodeId="n2")],
    firstPartition=2,
    replicationFactor=2,
    replicas=[0, 1, 1, 0],
    notes=["note"],
    waits="why",
)


def _names(data: bytes) -> None:
    text = _text(data)
    for check, is_one in (
        (lambda: check_name(text, "x"), meanings.is_name(text)),
        (lambda: check_data_subject(text, "liftpy"), meanings.is_data_subject(text, "liftpy")),
        (lambda: check_publisher_subject(text), meanings.is_subject(text, forbidden="\"'\\")),
    ):
        said = ""
        try:
            assert check() == text
        except ConfigError as error:
            said = str(error)
        assert (said == "") is is_one, "a plain reading of the rule says otherwise"
        assert len(said) < 800, "a name is shown shortened"


def _traceparent(data: bytes) -> None:
    """A plain reading says the same; and whatever it is, the message that bears it is stored with it as it is."""
    found = parse_traceparent(data)
    assert found == meanings.traceparent(data), "a plain reading of the rule says otherwise"
    batch = build_batch([b"v", b"w"], headers=[[("traceparent", data)], [("tracestate", data), ("x", b"")]])
    assert traced_in(batch) == ((found,) if found is not None and found.sampled else ())
    assert [r.headers for r in parse_batch(batch).records()] == [(("traceparent", data),), (("tracestate", data), ("x", b""))]


_OPTIONS: dict[str, bytes] = {
    "startingOffsets": b'{"orders": {"0": 5}}', "endingOffsets": b"latest", "assign": b'{"orders": [0]}',
    "subscribePattern": b"ord.*",
    "columns": b"value,key", "minPartitions": b"5", "patience": b"1.5", "nats": b"nats://x:4222,y", "maxOffsetsPerTrigger": b"7",
    "startingTimestamp": b"1700000000000", "readFrom": b"leader", "failOnDataLoss": b"false", "includeHeaders": b"true",
    "startingOffsetsByTimestamp": b'{"orders": {"0": 5}}', "maxTriggerDelay": b"15m", "maxRecordsPerPartition": b"9",
}  # fmt: skip
_TOGETHER = [
    {
        "stream": "orders",
        "nats": "nats://x:1,tls://y",
        "namespace": "ns",
        "nats.user": "u",
        "nats.passwordFile": "/p",
        "patience": "2",
    },
    {
        "subscribe": "a, b",
        "startingOffsets": '{"a": {"0": -2, "uid": "u1"}}',
        "endingTimestamp": "1700000000000",
        "readFrom": "leader",
    },
    {
        "assign": '{"a": [0, 2], "b": [1]}',
        "endingOffsets": '{"a": {"0": 7}}',
        "columns": "value,headers",
        "includeHeaders": "true",
    },
    {
        "subscribePattern": "a.*|b",
        "minPartitions": "9",
        "maxOffsetsPerTrigger": "5",
        "failOnDataLoss": "FALSE",
        "nats.tlsCa": "/c",
    },
    {
        "stream": "orders",
        "startingOffsets": "-10m",
        "endingOffsets": "-7",
        "topicColumn": "true",
        "maxTriggerDelay": "90s",
        "minOffsetsPerTrigger": "3",
        "onRecreated": "earliest",
        "maxRecordsPerPartition": "8",
    },
    {
        "stream": "a",
        "startingOffsetsByTimestamp": '{"a": {"0": 7}}',
        "startingOffsetsByTimestampStrategy": "error",
        "endingOffsetsByTimestamp": '{"a": {"0": 7, "uid": "u"}}',
    },
]


_SINK_OPTIONS = (b"orders", b"plan", b"tombstone", b"load-1", b"1000000", b"2.5", b"nats://h:4222")
"""For the first of SINK_OPTIONS, in their order."""


def _options(data: bytes) -> Any:
    """The first byte says which option the rest is given for."""
    name = tuple(_OPTIONS)[(data or b"\0")[0] % len(_OPTIONS)]
    what = {} if name in ("assign", "subscribePattern") else {"subscribe": "orders"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of regular expressions
        return SourceOptions.parse({**what, name: _text(data[1:])})


def _sink_options(data: bytes) -> SinkOptions:
    """The first byte says which option the rest is given for."""
    name = tuple(SINK_OPTIONS)[(data or b"\0")[0] % len(SINK_OPTIONS)]
    return SinkOptions.parse({"path": "orders", name: _text(data[1:])})


def _options_together(data: bytes) -> SourceOptions:
    """JSON of names and texts."""
    try:
        document = json.loads(data)
        given = {str(name): str(value) for name, value in document.items()}
    except (ValueError, RecursionError, AttributeError):
        raise ConfigError("no options: Spark has texts only") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        options = SourceOptions.parse(given)
    written = json.loads(meanings.options_text(options))
    for name, text in given.items():
        meanings.check_option(next(known for known in OPTIONS if known.lower() == name.lower()), text, written)
    return options


def _checkpoint_offsets(data: bytes) -> Any:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ConfigError("no JSON: Spark reads it") from None
    if not isinstance(document, dict):
        raise ConfigError("no object")
    return StreamOffsets.from_json(document)


_STATUS_ASKED = [b"", b'{"after": ["orders", 3]}', b'{"after": ["x", 1e3]}']
_TOLD = json.dumps({"data": {"server_id": "S", "connections": [{"cid": 7, "pending_bytes": 1, "out_msgs": 2, "reason": "x"}]}})


_NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)


def _another_option(rng: random.Random, sample: bytes) -> bytes:
    """One option more, less, from elsewhere, or with a spoiled text."""
    given = json.loads(sample)
    name = rng.choice([*given, *OPTIONS])
    match rng.randrange(4):
        case 0:
            given.pop(name, None)
        case 1:
            given[name] = rng.choice([text for options in _TOGETHER for text in options.values()])
        case 2:
            given[name.upper()] = given.pop(name, "1")
        case _:
            given[name] = _text(bytes_of(rng, given.get(name, "1").encode()))
    return json.dumps(given).encode()


def decoders() -> list[Decoder]:
    """Every one of them."""
    c = (ConfigError,)
    return [
        Decoder(
            "contexts",
            [
                b'{"selected": "prod", "contexts": {"prod": {"nats": "tls://a:4222", "creds_file": "/x"}, "b": {}}}',
                b'{"selected": "", "contexts": {}}',
            ],
            lambda d: contexts.decode_contexts(d, Path("contexts.json")),
            (ConfigError,),
            contexts.Contexts.encode,
            make=damaged_json,
            covers=("sidecar.runtime.contexts:decode_contexts",),
        ),
        Decoder(
            "context of the NATS CLI",
            [b'{"description": "d", "url": "nats://a:4222", "user": "u", "password": "p", "creds": "~/x", "nsc": "nsc://o"}'],
            lambda d: contexts.decode_nats_context(d, Path("old.json")),
            (ConfigError,),
            make=damaged_json,
            covers=("sidecar.runtime.contexts:decode_nats_context",),
        ),
        Decoder(
            "status question",
            _STATUS_ASKED,
            status_desk._decode_page_start,
            make=damaged_json,
            covers=("sidecar.status.status_api:_decode_page_start",),
        ),
        Decoder(
            "directories to remove",
            [b'{"remove_data": ["orders-1"]}', b'{"remove_data": ["orders-1", "u1-2"]}'],
            _removed,
            make=damaged_json,
            covers=("sidecar.status.status_api:StatusHandler._remove_data",),
        ),
        Decoder(
            "events of a node",
            [b'{"node_events": {"after": -1, "since_ns": 0}}', b'{"node_events": {"after": 3, "since_ns": 8}}'],
            _node_events,
            make=damaged_json,
            covers=("sidecar.status.status_api:StatusHandler.node_events_answer",),
        ),
        Decoder(
            "records that were read",
            [b'{"records_read": {"stream": "orders", "partition": 0, "sender": "ann", "query": "offset=3"}}'],
            _records_read,
            make=damaged_json,
            covers=("sidecar.status.status_api:StatusHandler.records_read_answer",),
        ),
        Decoder(
            "whether a node is there, and its time",
            [b"yes 1764166012345678901", b"yes"],
            decode_presence,
            again=lambda told: b"yes" if told is None else encode_presence(told),
            covers=("liftpy.core.wire.frames:decode_presence",),
        ),
        Decoder(
            "traceparent",
            [b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"cc-" + b"1" * 32 + b"-" + b"2" * 16 + b"-03-more"],
            _traceparent,
            covers=("liftpy.core.observe.trace_context:parse_traceparent", "liftpy.core.observe.tracing:_sampled_values"),
        ),
        Decoder(
            "place in a page's list",
            [b'[3, "s", 7]', b'[3, "s"]'],
            lambda d: page_site.decode_place(d.decode("utf-8", "replace")),
            (ValueError,),
            make=damaged_json,
            covers=("sidecar.status.pages:decode_place",),
        ),
        Decoder(
            "question for a page",
            [
                b'{"history": {"step": 1, "after": 1700000000}}',
                b'{"partitions": {"stream": "s", "after": [3, "s", 7], "limit": 20}}',
            ],
            asked_for_a_page,
            (ValueError,),
            make=damaged_json,
            covers=("sidecar.status.answers:question_of",),
        ),
        Decoder(
            "question for kept events",
            [
                b'{"kept": {"before": [7, 3, 20], "since_ns": 17000000000000, "until_ns": 18000000000000, "kind": "election"}}',
                b'{"kept": {"before": null, "stream": "s", "node": "n1"}, "limit": 20}',
            ],
            lambda d: answers.StoredEventsRequest.of(load_json(d)),
            (ValueError,),
            make=damaged_json,
        ),
        Decoder(
            "kept event",
            [
                b'{"index": 7, "number": 3, "time_ns": 1700000000000000000, "kind": "election", "was": "n1", "now": "n2"}',
                b'{"index": 7, "number": 0, "time_ns": 1, "kind": "isr_change", "stream": "s", "isr": ["n1"]}',
            ],
            _kept,
            (),
            make=damaged_json,
            covers=("sidecar.status.answers:_newest_first",),
        ),
        Decoder(
            "event in its stream",
            [b'{"index": 7, "number": 3, "kind": "node_up"}', b'{"index": 7, "number": -1}'],
            cluster_events.place_in,
            (ValueError,),
            make=damaged_json,
            covers=("liftpy.core.metadata.controller.cluster_events:place_in",),
        ),
        Decoder(
            "question for events",
            [b'{"after": [7, 3], "since_ns": 1700000000000000000, "count": 20}', b""],
            events_desk.decode_events_request,
            (ValueError,),
            make=damaged_json,
            covers=("sidecar.metadata.cluster_events:decode_events_request",),
        ),
        Decoder(
            "server's word on connections",
            [_TOLD.encode()],
            lambda d: ingest_connection._parse_stats(d, 1, "S", 7),
            make=damaged_json,
            covers=("sidecar.transport.ingest_connection:_parse_stats",),
        ),
        Decoder(
            "question of JetStream's read API",
            [
                b'{"seq": 4, "batch": 30, "max_bytes": 10}',
                b'{"multi_last": ["a", "b.*"], "up_to_time": "2026-01-31T12:00:00.5+02:00"}',
                b'{"start_time": "2026-01-31T12:00:00Z", "next_by_subj": "a.>"}',
            ],
            lambda d: parse_request("DIRECT.GET.orders", d),
            (JsRejection,),
            make=damaged_json,
            covers=("sidecar.node.jetstream_protocol:parse_request", "sidecar.node.jetstream_protocol:_fields"),
        ),
        Decoder(
            "positions",
            [
                b"earliest",
                b"latest",
                b"new",
                b"17",
                b"-1000",
                b"p1.u-1_x.17.3",
                b"2026-01-31T12:00:00",
                b"2026-01-31T12:00:00.5+02:00",
                b"-10m",
            ],
            lambda d: parse_start(_text(d), _NOW),
            c,
            meanings.position_text,
            covers=("liftpy.client.positions:parse_start", "liftpy.client.positions:Position.parse"),
        ),
        Decoder(
            "positions of many",
            [b'{"orders": {"0": "p1.u1.5.1", "1": "p1.u1.0.0"}, "pay": {"0": "p1.x.1.1"}}'],
            lambda d: positions_from(_text(d)),
            c,
            make=damaged_json,
            covers=("liftpy.client.multi_consumer:positions_from",),
        ),
        Decoder(
            "assignment in a file",
            [b'[{"id": 0, "replicas": ["n1", 5001]}, {"id": 1, "replicas": ["n2", "n1"]}]'],
            assignment_from_json,
            c,
            lambda f: json.dumps([{"id": number, "replicas": list(replicas)} for number, replicas in f]).encode(),
            make=damaged_json,
            covers=("liftpy.client.placement_plans:assignment_from_json",),
        ),
        Decoder(
            "plan of a placement",
            [_PLAN.SerializeToString()],
            lambda d: plan_from_pb(PlacementPlan.FromString(d)),
            (ValueError, DecodeError),
            covers=("liftpy.client.placement_plans:plan_from_pb",),
        ),
        Decoder(
            "ends",
            [b"end", b"17", b"2026-01-31T12:00:00", b"+1.5h"],
            lambda d: parse_until(_text(d), _NOW),
            c,
            meanings.position_text,
            covers=("liftpy.client.positions:parse_until",),
        ),
        Decoder(
            "flush policies",
            [b"always", b"interval:50", b"interval:1.5s", b"none"],
            lambda d: FlushPolicy.parse(_text(d)),
            c,
            lambda f: str(f).encode(),
            covers=("liftpy.config:FlushPolicy.parse",),
        ),
        Decoder(
            "stored flush policies",
            [b"always", b"interval:50", b"none"],
            lambda d: FlushPolicy.decode(_text(d)),
            c,
            lambda f: str(f).encode(),
            covers=("liftpy.config:FlushPolicy.decode",),
        ),
        Decoder(
            "names",
            [b"orders", b"data.*.x.>", b"n1", b"_INBOX.x", b"n" * 63, b"n" * 64, b"a." * 127 + b"a", b"a." * 126 + b"ab"],
            _names,
        ),
        Decoder(
            "Spark checkpoint",
            [b'{"orders": {"uid": "u1", "0": 5, "1": 7}}'],
            _checkpoint_offsets,
            c,
            lambda f: json.dumps(f.to_json()).encode(),
            make=damaged_json,
            covers=("liftpy.spark.offsets:StreamOffsets.from_json", "liftpy.spark.offsets:_decode"),
        ),
        Decoder(
            "Spark offsets",
            [b'{"orders": {"0": 5, "1": -2}}', b"earliest"],
            lambda d: parse_spec(_text(d), "startingOffsets", words=("earliest",), specials=(-2, -1)),
            c,
            make=damaged_json,
            covers=("liftpy.spark.offsets:parse_spec",),
        ),
        Decoder(
            "Spark times",
            [b'{"orders": {"0": 5, "1": 1767225600000}}'],
            lambda d: parse_times(_text(d), "startingOffsetsByTimestamp", must_match=False),
            c,
            make=damaged_json,
            covers=("liftpy.spark.offsets:parse_times",),
        ),
        Decoder(
            "Spark options",
            [bytes([number]) + text for number, text in enumerate(_OPTIONS.values())],
            _options,
            c,
            make=damaged_json,
            covers=(
                "liftpy.spark.options:SourceOptions.parse",
                "liftpy.spark.options:Option.parse",
                "liftpy.spark.options:_parse_assignment",
                "liftpy.spark.options:_parse_name",
            ),
        ),
        Decoder(
            "Spark options of writing",
            [bytes([number]) + text for number, text in enumerate(_SINK_OPTIONS)],
            _sink_options,
            c,
            covers=("liftpy.spark.options:SinkOptions.parse",),
        ),
        Decoder(
            "Spark options together",
            [json.dumps(options).encode() for options in _TOGETHER],
            _options_together,
            c,
            meanings.options_text,
            make=_another_option,
            covers=(
                "liftpy.spark.options:SourceOptions.parse",
                "liftpy.spark.options:Option.parse",
                "liftpy.spark.options:_parse_assignment",
                "liftpy.spark.options:_parse_name",
            ),
        ),
    ]
