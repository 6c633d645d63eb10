"""Test that docs/limits.md has the values of the code, and docs/troubleshooting.md its error codes and texts."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator

from liftpy import config
from liftpy.client import metadata_requests, multi_consumer
from liftpy.client.consumer import ReadOptions
from liftpy.client.in_flight import PublishOptions
from liftpy.client.partition_sender import ProducerOptions
from liftpy.client.queue import QueueOptions
from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.base import ids, purge, worker_assignment
from liftpy.core.groups import commands as groups
from liftpy.core.groups import lag
from liftpy.core.log import compaction, recovery
from liftpy.core.metadata import controller_list, request_limits
from liftpy.core.metadata.controller import admission, cluster_events, nodes, streams
from liftpy.core.observe import trace_context
from liftpy.core.partition import reads
from liftpy.core.publish import dedup_window, jetstream_headers, last_per_subject, memory_budget, message_decoder, quota
from liftpy.core.services import effects, machine, outbox, queries, replies, sessions
from liftpy.core.wire import chunking, filters, producer_note, subjects
from liftpy.core.wire.rejections import RejectReason
from liftpy.nats import reconnect_backoff
from liftpy.service.settings import ServiceSettings
from liftpy.spark import options, range_reader
from sidecar.cli import publish
from sidecar.disk import files
from sidecar.node import jetstream_api as jetstream_node
from sidecar.node import jetstream_reads
from sidecar.partition import housekeeping, metric_sums
from sidecar.runtime.settings import defaults
from sidecar.status import answers, http, metric_names
from tests.docs.pages import DOCS, ROOT, blocks, pages, spans
from tests.sources import nodes as nodes_of
from tests.unit.status.test_metrics import MOST_SERIES

sys.path.insert(0, str(DOCS))
import from_code

R, S, P, PRODUCER, READ, Q = (
    ReplicationConfig(),
    StreamConfig(),
    PublishOptions(),
    ProducerOptions(),
    ReadOptions(),
    QueueOptions(),
)


def size(count: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor:g} {unit}"
    return f"{count:,} bytes"


def seconds(milliseconds: float) -> str:
    return f"{round(milliseconds / 1000, 3):,.12g} s"


LIMITS: dict[str, Iterable[str]] = {
    "nodes": [f"{nodes.MAX_NODES:,}"],
    "controllers": [f"{controller_list.MAX_CONTROLLERS} "],
    "streams": [f"{streams.MAX_STREAMS:,}"],
    "partitions of a stream": [f"{streams.MAX_PARTITIONS_PER_STREAM:,}"],
    "replicas of a partition": [f"{streams.MAX_REPLICATION_FACTOR} ", f"default {streams.DEFAULT_REPLICATION_FACTOR}"],
    "replicas on a node": [f"{files.budget_of(20_000).partitions:,} with 20,000", f"{files.RESERVE}"],
    "segment files that a node holds open": [f"{files.MOST_MAPS:,}"],
    "worker processes of a node": [f"{worker_assignment.MOST_WORKERS} ", f"default {defaults()['workers']}"],
    "length of a stream, node or service name": ["64 characters"] if ids.is_name("a" * 64) and not ids.is_name("a" * 65) else ["?"],
    "length of a subject of a stream": [f"{ids.MAX_SUBJECT_LENGTH} characters"],
    "pause before a reconnect to a NATS server that closes the connection at once": [
        f"{reconnect_backoff.MAX_PAUSE_S:g} s",
        "fourth" if reconnect_backoff.FREE_CLOSES == 3 else "?",
    ],
    "control requests of one principal": [f"{admission.PER_PRINCIPAL} a second", f"{admission.PRINCIPAL_AT_ONCE} at once"],
    "control requests of all principals": [f"{admission.IN_ALL} a second", f"{admission.ALL_AT_ONCE:,} at once"],
    "control requests and metadata reads that a controller accepts": [],
    "size of a control request": [size(request_limits.MAX_REQUEST_BYTES)],
    "replicas that are copied at a time, in the cluster": [f"{R.max_copies}"],
    "replicas that are copied at a time, into or out of a node": [f"{R.max_copies_per_node}"],
    "copy rate of a node": [size(R.copy_bytes_per_s)],
    "cluster events that a controller keeps in memory": [f"{cluster_events.MOST_EVENTS:,}"],
    "session, smallest and largest": [
        f"{seconds(config.MIN_SESSION_MS)} to {seconds(config.MAX_SESSION_MS)}", f"default {R.session_s:g} s",
    ],
    "lease, smallest": [seconds(config.MIN_LEASE_MS), f"default {R.lease_s:g} s"],
    "size of a published message": ["`max_payload`"],
    "size of a record or batch, as stored": [size(chunking.MAX_BATCH_BYTES)],
    "size of a message of one stream": ["none"] if not S.max_message_bytes else ["?"],
    "headers of a record": [f"{message_decoder.MAX_HEADERS:,}"],
    "size of the headers of a record": [size(message_decoder.MAX_HEADER_BYTES)],
    "size of a NATS header block": [size(jetstream_headers.MAX_BLOCK_BYTES)],
    "size of a `Nats-Msg-Id`": [f"{dedup_window.MAX_ID_BYTES:,} bytes"],
    "size of a correlation id in an envelope": [f"{message_decoder.MAX_CORRELATION_ID:,} characters"],
    "records of a batch that a producer sends": [f"{message_decoder.MAX_BATCH_RECORDS:,}"],
    "records of a batch that a leader makes": [f"{R.batch_max_records:,}"],
    "size of a batch that a leader makes": [size(R.batch_max_bytes)],
    "size of a producer's id": [f"{producer_note.MAX_NAME_BYTES} bytes"],
    "size of a reply subject": [f"{subjects.MAX_REPLY_BYTES} bytes"],
    "memory for publishes on a node": [f"{memory_budget.DEFAULT_SHARE:.0%}".replace("%", " %"), size(memory_budget.LEAST_LIMIT_BYTES)],
    "publishes read and not stored, of a node": [size(R.ingest_buffer_bytes)],
    "publishes read and not stored, of a partition": [size(R.ingest_queue_bytes), f"{R.ingest_queue_records:,} records"],
    "wait of the oldest publish before the node rejects others": [f"{R.max_queue_delay_s:g} s"],
    "appended and not committed, of a partition": [size(R.unreplicated_bytes)],
    "appended and not committed, of a node": [size(R.node_unreplicated_bytes)],
    "memory for message ids of a partition": [size(R.partition_message_id_bytes)],
    "memory for producers of a partition": [size(R.partition_producer_bytes)],
    "memory for last sequences of subjects of a partition": [size(R.partition_subject_index_bytes)],
    "memory for message ids, producers and subjects of a node": [size(R.node_dedup_state_bytes)],
    "deduplication window": [f"{S.dedup_window_s:g} s", "86,400 s"],
    "time until the stream forgets a silent producer": [f"{R.producer_expiry_s:,.12g} s"],
    "publishes that wait for the index of subjects, of a partition": [
        f"{last_per_subject.WAIT_PUBLISHES:,} publishes", size(last_per_subject.WAIT_BYTES), f"{last_per_subject.WAIT_NS // 10**9} s",
    ],
    "standby: messages that a follower keeps, of a partition": [size(R.standby_bytes), f"{R.standby_age_s:g} s"],
    "standby: messages that a node keeps": [size(R.node_standby_bytes)],
    "token values that a quota tells apart, of a partition": [f"{quota.MAX_BUCKETS:,}"],
    "purges of a partition at a time": [f"{purge.MAX_PURGES},", f"{purge.MAX_PURGE_BYTES:,} bytes"],
    "messages in flight of a publisher": [f"{P.window:,}"],
    "bytes in flight of a publisher": [size(P.window_bytes)],
    "wait for one ack": [f"{P.timeout_s:g} s"],
    "time in which a publisher tries again": [f"{P.patience_s:g} s"],
    "time in which a publisher tries again while the leader answers `OVERLOADED`": [
        f"{P.patience_s:g} s", f"{publish.OVERLOAD_PATIENCE_S:g} s",
    ],
    "batches in flight of a producer, of a partition": [f"{PRODUCER.window}"],
    "memory of a producer": [size(PRODUCER.buffer_bytes), f"{PRODUCER.buffer_records:,} records"],
    "time in which a producer tries again": [f"{PRODUCER.patience_s:g} s"],
    "time in which a command of the cluster tries again": [f"{metadata_requests.DEADLINE_S:g} s"],
    "subjects of a filter": [f"{filters.MAX_SUBJECTS}"],
    "keys of a filter": [f"{filters.MAX_KEYS}"],
    "size of a filter": [size(filters.MAX_FILTER_BYTES)],
    "long poll of a reader": [seconds(reads.MAX_WAIT_MS)],
    "readers in a long poll, of a partition": [f"{reads.MAX_WAITING:,}"],
    "memory for readers in a long poll, of a node": [size(reads.MAX_WAITING_BYTES)],
    "unsent answers to readers, of a node": [],
    "size of one answer": [size(READ.max_bytes), "64 MiB"],
    "time without an answer before a reader fails": [f"{READ.patience_s:g} s"],
    "partitions of one `consume_many`": [f"{multi_consumer.MAX_PARTITIONS:,}"],
    "memory of one `consume_many`": [size(multi_consumer.AHEAD_BYTES)],
    "JetStream reads that a node answers at a time": [f"{jetstream_node.AT_ONCE}"],
    "size of an answer of the JetStream read API": [size(jetstream_reads.MAX_BYTES)],
    "subjects of an answer to `multi_last` of the JetStream read API": [f"{jetstream_reads.MAX_SUBJECTS_OF_ANSWER:,}"],
    "groups of a coordinator": [f"{groups.MAX_GROUPS:,}"],
    "coordinators of a cluster": [f"{R.groups_partitions}"],
    "members of a group": [f"{groups.MAX_MEMBERS:,}"],
    "streams of all members of a group, counted for each member": [f"{groups.MAX_SUBSCRIPTIONS:,}"],
    "streams of one member": [f"{groups.MAX_STREAMS}"],
    "partitions of a group": [f"{groups.MAX_PARTITIONS:,}"],
    "state of a coordinator": [size(groups.MAX_STATE_BYTES)],
    "session of a member": [
        seconds(groups.SESSION_MS), f"from {seconds(groups.MIN_SESSION_MS)} to {seconds(groups.MAX_SESSION_MS)}",
    ],
    "partitions of which a group has a queue": [f"{groups.MAX_QUEUES:,}"],
    "ack wait of a queue": [seconds(groups.ACK_WAIT_MS), f"{seconds(groups.MIN_ACK_WAIT_MS)} to {seconds(groups.MAX_ACK_WAIT_MS)}"],
    "delay of a `nack`": [seconds(groups.MAX_DELAY_MS)],
    "deliveries before a record is a dead letter": [f"{Q.max_deliveries},", f"at most {groups.MAX_MAX_DELIVERIES:,}"],
    "unacknowledged records of a queue, of a partition": [f"{Q.max_ack_pending:,}", f"at most {groups.MAX_MAX_PENDING:,}"],
    "unacknowledged records of one worker, of a partition": [f"{Q.max_own_pending:,}", f"at most {groups.MAX_MAX_PENDING:,}"],
    "ranges in the state of a queue, of a partition": [f"{groups.MAX_QUEUE_RANGES:,}"],
    "ranges in the states of queues that one command changes": [f"{groups.MAX_SETTLED_RANGES:,}"],
    "records that wait for their key, of a partition": [f"{groups.MAX_BLOCKED_RECORDS:,}"],
    "services at a partition, on a node": [f"{sessions.MAX_SERVICES}"],
    "size of an output": [size(outbox.MAX_OUTPUT_BYTES)],
    "outputs of one callback": [f"{machine.MAX_OUTPUTS_PER_CALLBACK:,}"],
    "timers": [f"{machine.MAX_TIMERS:,}"],
    "effects that are not done": [f"{effects.MAX_PENDING:,}", size(effects.MAX_PENDING_BYTES)],
    "queries at a time": [f"{queries.MAX_QUERIES:,}", size(queries.MAX_WAITING_BYTES)],
    "size of a snapshot": [size(ServiceSettings.__dataclass_fields__["max_snapshot_bytes"].default)],
    "log that retention keeps for services": [size(R.service_log_retention_bytes)],
    "routes to further streams": [f"{outbox.MAX_ROUTES}"],
    "message ids whose answers are kept": [f"{replies.MAX_ANSWERS:,}", size(replies.MAX_ANSWERS_BYTES)],
    "size of a segment": [size(S.segment_bytes), "2 GiB"],
    "retention": ["none"] if not S.has_retention else ["?"],
    "keys of one round of compaction": [f"{compaction.MAX_KEYS:,}"],
    "free space at which a node with a full disk returns": [size(housekeeping.SPACE_AGAIN_BYTES)],
    "free inodes at which a node with a full disk returns": [f"{housekeeping.SPACE_AGAIN_FILES:,}"],
    "rate of the scrub": [size(int(str(defaults()["scrub_bytes_per_s"])))],
    "damaged segments that a partition keeps as evidence": [f"{recovery.MAX_QUARANTINED_FILES}"],
    "tasks of `minPartitions`": [f"{options.MAX_PARTITIONS:,}"],
    "rows of one task of an exactly-once write": [size(options.DEFAULT_TASK_BYTES)],
    "rows of an Arrow batch": [f"{range_reader.MAX_ROWS:,} rows", size(range_reader.MAX_BYTES)],
    "size of a `writeId`": [],
    "Prometheus series of a node": [f"{MOST_SERIES}"],
    "streams and groups with series of their own, of a node": [f"{n}" for n in (metric_sums.MAX_LABELS, lag.MOST_GROUPS)],
    "series of `/metrics/partitions`": [f"{metric_names.MOST_SERIES_OF_A_STREAM:,}"],
    "connections of the status page": [f"{http.MOST_CONNECTIONS}", f"{http.MOST_LIVE} live"],
    "status requests of one kind that wait at a node": [f"{answers.MOST_WAITING:,}", f"{answers.MOST_QUESTIONS} different"],
    "traced spans of a node": [f"{trace_context.SPANS_PER_S:g} a second"],
}  # fmt: skip
"""Row of the page -> what its value has to say; nothing where the code has the number under a private name."""


def rows_of(page: str) -> list[list[str]]:
    """Cells of all rows of three columns, without heads."""
    lines = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in pages()[page].splitlines() if line.startswith("| ")
    ]
    return [line for line in lines if len(line) == 3 and line[0] != "limit"]


def test_docs_limits_page_value_equals_the_value_in_the_code() -> None:
    found = {name: value for name, value, _ in rows_of("docs/limits.md")}
    assert set(found) == set(LIMITS)
    pairs = [(name, part) for name, parts in LIMITS.items() for part in parts]
    wrong = [f"{name}: {found[name]}, not {part!r}" for name, part in pairs if part not in f"{found[name]} "]
    assert not wrong, "\n".join(wrong)


def test_docs_troubleshooting_page_lists_every_error_ack_and_exit_code() -> None:
    text = pages()["docs/troubleshooting.md"]
    first_cells = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    codes = {error.code for error in from_code.errors_of_the_code()} - {"LIFT_ERROR"}
    reasons = {reason.name for reason in RejectReason}
    assert codes | reasons <= first_cells, codes | reasons - first_cells
    assert {"0", "1", "2", "3", "75", "78", "130"} <= set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))


def missing_texts(page: str, program: str) -> list[str]:
    """Quoted texts and check lines of ``liftpy health`` that ``program`` does not have. ``...`` is any text."""
    quoted = [text for _, text in spans(page) if text.count(" ") > 1 and not text.startswith("liftpy ")]
    checks = [line for block in blocks(page) if block.language == "text" for line in block.text.splitlines()]
    quoted += [re.sub(r"^\[.\] [\w ]+: (?:n\d )?|[\d.]+ ms$|\(.*\)$|^\[.\] n\d: \w+$", "...", line) for line in checks]
    parts = [part.strip() for text in quoted for part in re.split(r"\.\.\.(?:/\w+)?|'\w+'", text)]
    return [part for part in parts if part not in program]


def texts_of_the_program() -> Iterator[str]:
    """String literals of all modules that ship. A placeholder is a NUL character."""
    for path in (path for folder in ("liftpy", "sidecar") for path in (ROOT / folder).rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)


def test_docs_troubleshooting_page_quotes_texts_of_the_program() -> None:
    assert missing_texts("docs/troubleshooting.md", "\n".join(texts_of_the_program())) == []
    assert "too many requests" in missing_texts("docs/troubleshooting.md", "")
