"""Test the documented range of each constant. A wrong constant breaks no other test."""

from __future__ import annotations

import importlib

from tests.each import each

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MS = 1_000_000
S = 1000 * MS

Figures = dict[str, dict[str, tuple[float, float]]]
"""Module -> name -> (least, most)."""

PEOPLE_WAIT: Figures = {
    "liftpy.client.admin": {"_PLACED_POLL_S": (0.1, 0.5)},
    "liftpy.client.sync": {"_CLOSE_S": (10, 30)},
    "liftpy.nats.transport": {"_CLOSE_S": (1, 5)},
    "sidecar.cli.node_reports": {"_NODE_TIMEOUT_S": (1, 5)},
    "sidecar.cli.controllers": {"_POLL_S": (0.1, 0.5)},
    "sidecar.cli.dev": {"_WATCH_S": (0.1, 0.5)},
    "sidecar.cli.reassignment": {"POLL_S": (0.5, 2)},
    "sidecar.cli.node": {"_POLL_S": (0.05, 0.5)},
    "sidecar.cli.partition": {"_POLL_S": (0.02, 0.25)},
    "sidecar.cli.output": {"_CHECK_INTERVAL_S": (0.1, 0.5)},
    "sidecar.cli.service": {"_CONNECT_AGAIN_S": (0.2, 2), "_POLL_S": (0.1, 0.5)},
}
"""Somebody sits before it: a command goes on soon after what it waits for is there, and asks no node more than some times a second."""

LOOKS: Figures = {
    "liftpy.service.effect_runner": {"_CHECK_INTERVAL_S": (0.005, 0.02), "_SOON_S": (0.02, 0.1), "_IDLE_CHECK_S": (10, 60)},
    "liftpy.service.query_server": {
        "_CHECK_INTERVAL_S": (0.002, 0.01),
        "_JOIN_CHECK_S": (0.05, 0.25),
        "_IDLE_CHECK_S": (10, 60),
    },
    "liftpy.service.snapshots": {"_NOTICED_S": (0.005, 0.05), "_CHECK_INTERVAL_S": (2, 15)},
    "liftpy.service.reply_sender": {"_CHECK_INTERVAL_S": (0.001, 0.005), "_IDLE_CHECK_S": (10, 60)},
    "liftpy.service.record_feeder": {"_PAUSE_S": (0.1, 0.5)},
    "sidecar.partition.leadership": {"_POLL_S": (0.002, 0.01)},
    "sidecar.partition.proposals": {"_GATHER_S": (0.001, 0.005)},
    "sidecar.runtime.timers": {"GRID_NS": (2 * MS, 10 * MS), "FAR_GRID_NS": (50 * MS, 200 * MS), "FAR_NS": (200 * MS, S)},
    "liftpy.client.publisher": {"_SWEEP_S": (0.02, 0.1), "_TICKS_PER_DEADLINE_CHECK": (5, 20)},
}
"""A loop looks: late by so much at most, and a look costs some 20 us."""

TURNS: Figures = {
    "sidecar.runtime.tasks": {"SLICE_S": (0.004, 0.02)},
    "sidecar.runtime.timers": {"SLICE_NS": (4 * MS, 20 * MS)},
    "sidecar.partition.housekeeping": {"_AT_ONCE": (8, 64)},
    "sidecar.partition.recovery": {"_AT_ONCE": (16, 128)},
    "sidecar.partition.scrub": {"PIECE_BYTES": (32 * KIB, 512 * KIB)},
    "liftpy.core.base.cooperative_apply": {"PER_STEP": (100, 1000)},
    "liftpy.core.metadata.request_limits": {"SENT_TOGETHER": (40, 200)},
    "liftpy.core.metadata.placement.policies": {"HASHES_PER_STEP": (1000, 20_000)},
    "liftpy.core.metadata.controller.reassignment": {"_MAX_CHECKED": (5000, 50_000)},
    "liftpy.core.metadata.controller.streams": {"AT_ONCE": (8, 8)},
    "liftpy.core.metadata.describe": {"DEFAULT_PAGE_BYTES": (32 * KIB, 256 * KIB)},
    "liftpy.core.publish.log_state": {"REPLAY_BYTES": (16 * KIB, 256 * KIB)},
    "liftpy.nats.parser": {"READ_BYTES": (256 * KIB, 4 * MIB)},
    "liftpy.service.record_feeder": {"_FIRST_CHUNK_RECORDS": (16, 64), "_MAX_CHUNK_RECORDS": (64, 512)},
    "liftpy.service.reply_sender": {"_MAX_TURN": (64, 1024)},
    "liftpy.service.output_writer": {
        "_CHUNK_RECORDS": (1024, 16_384),
        "_BATCH_RECORDS": (256, 4096),
    },
}
"""Pieces of work between two turns of an event loop: a few ms of a core each, and few enough that the turns themselves cost nothing."""

ROUNDS: Figures = {
    "sidecar.partition.housekeeping": {
        "RETENTION_EVERY_S": (2, 10), "_TRIES_AGAIN_EVERY_S": (30, 300), "_COMPACT_FROM_DIRTY_RATIO": (0.25, 0.75),
    },
    "sidecar.partition.scrub": {
        "PASS_EVERY_S": (1800, 14_400), "_STORE_EVERY_S": (5, 60), "_CHECK_EVERY_S": (0.5, 5), "SEALED_FASTER": (8, 32),
        "_REST": (19, 99),
        "_REST_SEALED": (4, 9),
    },
    "liftpy.client.closest_replica": {"CHECK_EVERY_S": (10, 60), "AWAY_S": (5, 30)},
    "sidecar.runtime.memory": {"OPENED": (64, 512), "CLOSED": (128, 1024), "YOUNG": (5000, 50_000)},
    "liftpy.core.metadata.controller.quorum_member": {"PROBE_EVERY_NS": (50 * MS, 200 * MS), "HEAD_EVERY_NS": (250 * MS, S)},
    "liftpy.core.metadata.controller.reassignment": {"PLAN_EVERY_NS": (50 * MS, S), "REPEAT_AFTER_NS": (2 * S, 10 * S)},
    "liftpy.core.metadata.controller.streams": {"CHECK_EVERY_NS": (200 * MS, 300 * MS), "AGAIN_AFTER_NS": (5 * S, 20 * S)},
}  # fmt: skip
"""What comes round: its cost in a round, over the time of one, is a few percent of a core at most; and it is not forgotten for long."""

AGAIN: Figures = {
    "sidecar.partition.deletions": {"_ATTEMPT_S": (1, 5), "_PAUSE_S": (0.1, 1), "_GIVE_UP_AFTER_S": (15, 120)},
    "sidecar.partition.proposals": {"_TIMEOUT_S": (2, 10)},
    "sidecar.partition.replica_manager": {"_RETRY_S": (2, 15)},
    "sidecar.runtime.logs": {"SELDOM_S": (0.5, 5)},
    "liftpy.client.encode_publish": {"_FIRST_WAIT_S": (0.1, 1), "_LONGEST_WAIT_S": (5, 30)},
    "liftpy.client.metadata_requests": {"DEADLINE_S": (10, 30), "ATTEMPT_S": (1, 3)},
    "liftpy.client.queue_log": {"_FAILED_S": (0.1, 1)},
    "liftpy.client.consumer": {"_HEDGE_S": (0.1, 0.5), "_EXISTS_S": (1, 5), "_MOST_HEDGES": (3, 8)},
    "liftpy.nats.cancellation": {"_TRY_AGAIN_S": (0.05, 0.5), "_TRIES": (20, 100)},
    "liftpy.client.in_flight": {"FIRST_WAIT_S": (0.02, 0.2), "LONGEST_WAIT_S": (0.5, 2)},
    "liftpy.client.publisher": {"FIRST_ATTEMPT_S": (1, 5), "_OF_THE_WINDOW": (0.5, 0.9)},
    "liftpy.client.services": {"_QUERY_ATTEMPT_S": (2.1, 6), "_COMMAND_ATTEMPT_S": (1, 5)},
    "liftpy.client.retrying": {"FIRST_WAIT_S": (0.01, 0.05), "LONGEST_WAIT_S": (0.25, 1)},
    "liftpy.nats.transport": {"REQUEST_TIMEOUT_S": (1, 5)},
    "liftpy.core.metadata.controller.election_triggers": {
        "DEFAULT_ELECTION_WAIT_S": (0.1, 0.5), "DEFAULT_RETRY_S": (0.5, 2), "GETS_ON_WITHIN_S": (0.25, 1), "PATIENCE": (10, 30),
    },
    "liftpy.core.metadata.feed": {"RETRY_AFTER_NS": (S // 2, 2 * S)},
    "liftpy.core.metadata.controller.quorum_member": {"LONG_NS": (S, 4 * S), "_STOOD_STILL_NS": (S // 4, 2 * S)},
    "liftpy.core.metadata.node_identity": {"DEFAULT_WAIT_S": (10, 30), "DEFAULT_SILENCES": (3, 3)},
    "liftpy.core.metadata.sessions": {"COLD_START_S": (5, 30), "_DRIFT_SHARE": (20, 100)},
    "liftpy.service.effect_runner": {"_APPLIED_WITHIN_S": (5, 30), "_FIRST_WAIT_S": (0.5, 2), "_LONGEST_WAIT_S": (30, 120)},
    "liftpy.service.output_writer": {"_AGAIN_S": (0.02, 0.2), "_LOST_AFTER_S": (2, 10)},
    "liftpy.service.snapshots": {"_ANSWER_S": (1, 5), "_FIRST_PAUSE_S": (0.1, 1), "_LONGEST_PAUSE_S": (2, 15), "_RATE_CHECK_AFTER_S": (5, 30),
        "_BARRED_S": (30, 300),
        "_SLOWEST_BYTES_PER_S": (16 * KIB, 256 * KIB), "_TRIES": (3, 3), "_OPEN_SNAPSHOT_S": (30, 120), "_LONGEST_TURN_S": (2, 15), "_TURN": (1.2, 3)},
    "liftpy.service.host": {"_READ_PATIENCE_S": (1, 5), "_CANCEL_AGAIN_S": (0.05, 0.5), "_AHEAD_S": (2, 15), "_ASK_S": (0.1, 0.5), "AGAIN_S": (5, 30)},
    "liftpy.core.services.bad_records": {"FIRST_WAIT_S": (0.5, 2), "LONGEST_WAIT_S": (30, 120), "DECIDED_WAIT_S": (5, 30)},
    "liftpy.core.services.queries": {"PATIENCE_S": (1, 2.5)},
    "liftpy.core.services.replies": {"_MAX_AGE_NS": (30 * S, 300 * S)},
    "liftpy.core.services.versions": {"_BELIEVED_S": (2, 10)},
    "liftpy.core.services.sessions": {"REPORT_EVERY_S": (0.5, 2), "REST_S": (30, 120), "_BELIEVED_S": (3, 10)},
}  # fmt: skip
"""What has no answer, or failed, is tried again: not in a hurry that makes it worse, and before its user gives up."""

BOUNDS: Figures = {
    "sidecar.partition.deletions": {"_REMEMBERED": (2000, 50_000)},
    "sidecar.partition.worker": {
        "MAX_QUEUE": (16_384, 262_144), "RECENT_STEPS": (32, 256), "RECENT_STEPS_OF_NODE": (4096, 32_768), "_MIN_RECENT_STEPS": (8, 16),
        "_MAX_STEP_CHARS": (200, 2000),
    },
    "sidecar.partition.replication": {"_MAX_TOKENS": (1024, 16_384), "ASSEMBLING_BYTES": (64 * MIB, GIB)},
    "sidecar.partition.replica_manager": {"_STOPS_AT_ONCE": (32, 128), "_OPENED_AT_ONCE": (16, 128)},
    "liftpy.core.metadata.request_limits": {"MAX_BATCH_BYTES": (32 * KIB, 60 * KIB), "MAX_REQUEST_BYTES": (64 * KIB, 64 * KIB), "MAX_TEXT_BYTES": (512, 4096), "MAX_LIST_LENGTH": (128, 1024)},
    "liftpy.core.metadata.controller.request_batcher": {"MAX_DETAIL_LENGTH": (80, 400)},
    "liftpy.core.metadata.controller.record_builder": {"MAX_DETAIL_LENGTH": (300, 2000)},
    "liftpy.core.metadata.feed": {"CHUNK_SIZE_BYTES": (64 * KIB, 512 * KIB), "MAX_ENTRY_SIZE_BYTES": (64 * KIB, 512 * KIB), "MAX_BUFFERED_ENTRIES": (1024, 16_384),
        "MAX_BUFFERED_RECORDS": (16_384, 262_144), "_MAX_STATE_SIZE_BYTES": (4096, 32_768), "_OVERHEAD_BYTES": (256, 2048),
        "MAX_SNAPSHOTS": (2, 2),
        "_SMALLEST_MESSAGE_BYTES": (512, 4096), "MAX_WAITING_ENTRIES": (64, 1024), "MAX_WAITING_BYTES": (4 * MIB, 64 * MIB), "MAX_SNAPSHOT_SIZE_BYTES": (128 * MIB, GIB),
        "MAX_OTHER_CHUNKS": (16, 128), "MAX_HEADS_BELOW": (4, 10)},
    "liftpy.core.metadata.controller.quorum_member": {"MAX_DUTY_PROPOSALS": (16, 256), "MAX_PROBES": (16, 256), "MAX_QUESTIONS": (64, 1024)},
    "liftpy.core.metadata.sessions": {"MAX_WAITING": (16, 256)},
    "liftpy.core.metadata.controller.reassignment": {"TRANSFERS_AT_ONCE": (8, 64), "TARGETS_AHEAD": (2, 4)},
    "liftpy.core.metadata.idempotency": {
        "MAX_OPERATIONS": (16_384, 262_144), "MAX_AGE_NS": (300 * S, 3600 * S), "MAX_SIZE_BYTES": (8 * MIB, 128 * MIB),
        "_ENTRY_BYTES": (200, 800), "_EVICT_AT_ONCE": (8, 64), "MAX_STEP_NS": (5 * S, 30 * S),
    },
    "liftpy.core.metadata.describe": {"MAX_PAGE_BYTES": (256 * KIB, MIB), "_MIN_PAGE_BYTES": (256, 4096), "_NAMED": (5, 20)},
    "liftpy.core.metadata.placement.rebalance": {"TOLERANCE": (0.01, 0.05), "_MAX_RECIPIENTS_TRIED": (8, 64)},
    "liftpy.core.metadata.controller.election_triggers": {"MOVES_AT_ONCE": (16, 128)},
    "liftpy.core.metadata.node_identity": {"MAX_EARLIER_NONCES": (8, 64)},
    "liftpy.core.metadata.image": {"MAX_STEPS": (2048, 32_768)},
    "liftpy.nats.credentials": {"_MAX_FILE_BYTES": (256 * KIB, 4 * MIB)},
    "liftpy.client.consumer": {"_PAYLOAD_RESERVE_BYTES": (1024, 16 * KIB)},
    "liftpy.nats.parser": {
        "LONGEST_LINE_BYTES": (16 * KIB, 256 * KIB), "LARGEST_MESSAGE_BYTES": (64 * MIB, GIB), "_REMEMBERED_SUBJECTS": (256, 4096),
        "_REMEMBERED_BYTES": (128, 1024),
    },
    "liftpy.client.progress": {"_MOST_BEHIND": (5, 15)},
    "liftpy.nats.transport": {"ROOM_BYTES": (256 * KIB, 2 * MIB)},
    "liftpy.core.publish.ingest": {"RECORD_OVERHEAD_BYTES": (24, 64), "_BATCH_OVERHEAD_BYTES": (2048, 16 * KIB)},
    "liftpy.core.publish.message_decoder": {
        "MAX_BATCH_RECORDS": (65_536, 65_536), "MAX_HEADERS": (1024, 1024), "MAX_HEADER_BYTES": (64 * KIB, 64 * KIB),
    },
    "liftpy.core.publish.dedup_window": {"MAX_ID_BYTES": (512, 4096), "_ID_BYTES": (100, 200), "_BATCH_BYTES": (200, 500)},
    "liftpy.core.services.snapshot": {"MAX_POSITIONS": (8, 64), "MAX_NODES": (8, 64), "MAX_OFFERS": (4, 15), "MAX_AGREED": (32, 256), "_CERTAIN": (2, 2), "_MAX_STATUS_CHARS": (100, 400)},
    "liftpy.service.query_server": {"_HEADERS_BYTES": (512, 4096)},
    "liftpy.core.services.effects": {"MAX_PENDING": (10_000, 10_000), "MAX_PENDING_BYTES": (8 * MIB, 8 * MIB), "MAX_NAME_BYTES": (256, 256)},
    "liftpy.service.snapshots": {"_MAX_PEERS": (8, 64), "_MAX_OPEN_SNAPSHOTS": (4, 15), "_MAX_WAITING": (32, 256), "_MAX_STORED": (32, 256), "_MAX_DIGESTS": (3, 8)},
    "liftpy.core.services.machine": {"MAX_TIMERS": (10**6, 10**6), "MAX_TIMER_NAME_BYTES": (1024, 1024), "MAX_FIRES_PER_RECORD": (10**5, 10**5), "MAX_OUTPUTS_PER_CALLBACK": (1000, 1000)},
    "liftpy.core.services.outbox": {"MAX_OUTPUT_BYTES": (256 * KIB, 256 * KIB), "MAX_SAMPLES": (64, 1024), "_OVERHEAD_BYTES": (64, 256)},
    "liftpy.core.services.bad_records": {"MAX_ERROR_BYTES": (250, 1000), "MAX_SKIPS": (128, 1024)},
    "liftpy.core.services.queries": {"MAX_QUERIES": (256, 4096), "MAX_WAITING_BYTES": (2 * MIB, 32 * MIB)},
    "liftpy.core.services.replies": {
        "MAX_ID_BYTES": (256, 256), "MAX_ANSWERS": (10_000, 10_000), "MAX_ANSWERS_BYTES": (4 * MIB, 4 * MIB),
        "MAX_REPLIES": (1024, 16_384),
        "MAX_REPLIES_BYTES": (2 * MIB, 32 * MIB), "_OVERHEAD_BYTES": (32, 128),
    },
    "liftpy.core.services.rules": {"MAX_PARAMETERS_BYTES": (16 * KIB, 256 * KIB)},
    "liftpy.core.services.sessions": {"MAX_SERVICES": (16, 16), "_MAX_PROBLEM": (250, 1000), "MAX_REPORTED": (16, 16), "QUIET_ROUNDS": (2, 2)},
    "liftpy.core.services.versions": {"_MAX_VERSION_REPORTS": (128, 1024)},
    "sidecar.cli.stream_settings": {"MAX_FILE_BYTES": (256 * KIB, 4 * MIB)},
    "sidecar.cli.publish": {"_CHUNK_BYTES": (16 * KIB, 256 * KIB), "_MAX_LINE_BYTES": (16 * MIB, 64 * MIB)},
    "sidecar.cli.rebalance": {"_SHOWN": (200, 5000)},
    "sidecar.cli.output": {"_SHORT": (16, 40)},
}  # fmt: skip
"""What is held, remembered or taken: enough for every honest use, and far from what a node has. Where there is one value, every node
has to have the same: what a state or a log becomes depends on it."""

ALL = [
    (module, name, least, most)
    for figures in (PEOPLE_WAIT, LOOKS, TURNS, ROUNDS, AGAIN, BOUNDS)
    for module, rows in figures.items()
    for name, (least, most) in rows.items()
]


@each("module", sorted({module for module, *_ in ALL}))
def test_code_constant_is_within_its_documented_range(module: str) -> None:
    found = importlib.import_module(module)
    rows = [(name, least, most) for of, name, least, most in ALL if of == module]
    assert [(name, value) for name, least, most in rows if not least <= (value := getattr(found, name)) <= most] == []


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
        "sidecar.metadata.member:TRANSFER_REQUEST_TIMEOUT_S",
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


def test_code_constant_range_of_each_documented_constant_is_narrower_than_a_factor_of_ten() -> None:
    loose = []
    for module, name, least, most in ALL:
        value = getattr(importlib.import_module(module), name)
        if not (value / 10 < least and most < value * 10):
            loose.append((module, name, value))
    assert loose == []
