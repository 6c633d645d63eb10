"""Figures and their reasons: between what they may be. One that is wrong by a factor breaks nothing at once, and so nobody notices."""

from __future__ import annotations

import importlib

import pytest

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MS = 1_000_000
S = 1000 * MS

Figures = dict[str, dict[str, tuple[float, float]]]
"""Module -> name -> (least, most)."""

PEOPLE_WAIT: Figures = {
    "liftpy.client.client": {"_PLACED_POLL_S": (0.1, 0.5)},
    "liftpy.client.sync": {"_CLOSE_S": (10, 30)},
    "liftpy.client.transport": {"_CLOSE_S": (1, 5)},
    "sidecar.cli.asking": {"_NODE_TIMEOUT_S": (1, 5)},
    "sidecar.cli.controllers": {"_POLL_S": (0.1, 0.5)},
    "sidecar.cli.dev": {"_WATCH_S": (0.1, 0.5)},
    "sidecar.cli.movement": {"POLL_S": (0.5, 2)},
    "sidecar.cli.node": {"_POLL_S": (0.05, 0.5)},
    "sidecar.cli.partition": {"_POLL_S": (0.02, 0.25)},
    "sidecar.cli.pipes": {"_LOOK_S": (0.1, 0.5)},
    "sidecar.cli.service": {"_CONNECT_AGAIN_S": (0.2, 2)},
    "sidecar.cli.service_orders": {"_POLL_S": (0.1, 0.5)},
}
"""Somebody sits before it: a command goes on soon after what it waits for is there, and asks no node more than some times a second."""

LOOKS: Figures = {
    "liftpy.service.acting": {"_LOOK_S": (0.005, 0.02), "_SOON_S": (0.02, 0.1), "_IDLE_LOOK_S": (10, 60)},
    "liftpy.service.answering": {"_LOOK_S": (0.002, 0.01), "_JOIN_LOOK_S": (0.05, 0.25), "_IDLE_LOOK_S": (10, 60)},
    "liftpy.service.keeping": {"_NOTICED_S": (0.005, 0.05)},
    "liftpy.service.replying": {"_LOOK_S": (0.001, 0.005), "_IDLE_LOOK_S": (10, 60)},
    "liftpy.service.feeding": {"_PAUSE_S": (0.1, 0.5)},
    "liftpy.service.giving": {"_LOOK_S": (2, 15)},
    "sidecar.partition.set": {"_POLL_S": (0.002, 0.01)},
    "sidecar.partition.proposals": {"_GATHER_S": (0.001, 0.005)},
    "sidecar.partition.timers": {"GRID_NS": (2 * MS, 10 * MS), "FAR_GRID_NS": (50 * MS, 200 * MS), "FAR_NS": (200 * MS, S)},
    "liftpy.client.publisher": {"_SWEEP_S": (0.02, 0.1), "_TICKS_PER_DEADLINE_CHECK": (5, 20)},
}
"""A loop looks: late by so much at most, and a look costs some 20 us."""

TURNS: Figures = {
    "sidecar.partition.slices": {"SLICE_S": (0.004, 0.02)},
    "sidecar.partition.timers": {"SLICE_NS": (4 * MS, 20 * MS)},
    "sidecar.partition.housekeeping": {"_AT_ONCE": (8, 64)},
    "sidecar.partition.recovery": {"_AT_ONCE": (16, 128)},
    "sidecar.partition.scrub": {"PIECE_BYTES": (32 * KIB, 512 * KIB)},
    "liftpy.cluster.steps": {"PER_STEP": (100, 1000)},
    "liftpy.cluster.batch_bounds": {"SENT_TOGETHER": (40, 200)},
    "liftpy.cluster.placement.rendezvous": {"HASHES_PER_STEP": (1000, 20_000)},
    "liftpy.cluster.moving": {"_LOOKED_AT": (5000, 50_000)},
    "liftpy.cluster.waiting": {"AT_ONCE": (8, 8)},
    "liftpy.cluster.pages": {"DEFAULT_PAGE_BYTES": (32 * KIB, 256 * KIB)},
    "liftpy.ingest.derived": {"REPLAY_BYTES": (16 * KIB, 256 * KIB)},
    "liftpy.client.parser": {"READ_BYTES": (256 * KIB, 4 * MIB)},
    "liftpy.service.feeding": {"_FIRST_CHUNK_RECORDS": (16, 64), "_MAX_CHUNK_RECORDS": (64, 512)},
    "liftpy.service.replying": {"_MAX_TURN": (64, 1024)},
    "liftpy.service.router": {"_CHUNK_RECORDS": (1024, 16_384), "_BATCH_RECORDS": (256, 4096)},
    "liftpy.service.emitter": {"_BATCH_RECORDS": (256, 4096)},
}
"""Pieces of work between two turns of an event loop: a few ms of a core each, and few enough that the turns themselves cost nothing."""

ROUNDS: Figures = {
    "sidecar.partition.housekeeping": {
        "RETENTION_EVERY_S": (2, 10), "_TRIES_AGAIN_EVERY_S": (30, 300), "_COMPACT_FROM_DIRTY_RATIO": (0.25, 0.75),
    },
    "sidecar.partition.scrub": {
        "PASS_EVERY_S": (1800, 14_400), "_STORE_EVERY_S": (5, 60), "_LOOK_EVERY_S": (0.5, 5), "SEALED_FASTER": (8, 32),
        "_REST": (19, 99),
        "_REST_SEALED": (4, 9),
    },
    "sidecar.partition.garbage": {"OPENED": (64, 512), "CLOSED": (128, 1024), "YOUNG": (5000, 50_000)},
    "liftpy.cluster.member": {"LOOK_EVERY_NS": (50 * MS, 200 * MS), "HEAD_EVERY_NS": (250 * MS, S)},
    "liftpy.cluster.moving": {"LOOK_EVERY_NS": (50 * MS, S), "AGAIN_AFTER_NS": (2 * S, 10 * S)},
    "liftpy.cluster.waiting": {"LOOK_EVERY_NS": (200 * MS, 300 * MS), "AGAIN_AFTER_NS": (5 * S, 20 * S)},
}  # fmt: skip
"""What comes round: its cost in a round, over the time of one, is a few percent of a core at most; and it is not forgotten for long."""

AGAIN: Figures = {
    "sidecar.partition.deletions": {"_ATTEMPT_S": (1, 5), "_PAUSE_S": (0.1, 1), "_GIVE_UP_AFTER_S": (15, 120)},
    "sidecar.partition.proposals": {"_TIMEOUT_S": (2, 10)},
    "sidecar.partition.set": {"_RETRY_S": (2, 15)},
    "sidecar.partition.chatter": {"SELDOM_S": (0.5, 5)},
    "liftpy.client.addressing": {"_FIRST_WAIT_S": (0.1, 1), "_LONGEST_WAIT_S": (5, 30)},
    "liftpy.client.admin": {"DEADLINE_S": (10, 30), "ATTEMPT_S": (1, 3)},
    "liftpy.client.calling": {"_ATTEMPT_S": (1, 5)},
    "liftpy.client.consumer": {"_HEDGE_S": (0.1, 0.5), "_EXISTS_S": (1, 5), "_MOST_HEDGES": (3, 8)},
    "liftpy.client.ending": {"_TRY_AGAIN_S": (0.05, 0.5), "_TRIES": (20, 100)},
    "liftpy.client.in_flight": {"FIRST_WAIT_S": (0.02, 0.2), "LONGEST_WAIT_S": (0.5, 2)},
    "liftpy.client.publisher": {"_FIRST_ATTEMPT_S": (1, 5), "_OF_THE_WINDOW": (0.5, 0.9)},
    "liftpy.client.queries": {"_ATTEMPT_S": (2.1, 6)},
    "liftpy.client.retrying": {"FIRST_WAIT_S": (0.01, 0.05), "LONGEST_WAIT_S": (0.25, 1)},
    "liftpy.client.transport": {"REQUEST_TIMEOUT_S": (1, 5)},
    "liftpy.cluster.election_timers": {
        "DEFAULT_ELECTION_WAIT_S": (0.1, 0.5), "DEFAULT_RETRY_S": (0.5, 2), "GETS_ON_WITHIN_S": (0.25, 1), "PATIENCE": (10, 30),
    },
    "liftpy.cluster.feed_subscription": {"RETRY_AFTER_NS": (S // 2, 2 * S)},
    "liftpy.cluster.leaderless": {"LONG_NS": (S, 4 * S), "_STOOD_STILL_NS": (S // 4, 2 * S)},
    "liftpy.cluster.predecessor": {"DEFAULT_WAIT_S": (10, 30), "DEFAULT_SILENCES": (3, 3)},
    "liftpy.cluster.session": {"COLD_START_S": (5, 30), "_DRIFT_SHARE": (20, 100)},
    "liftpy.service.acting": {"_APPLIED_WITHIN_S": (5, 30), "_FIRST_WAIT_S": (0.5, 2), "_LONGEST_WAIT_S": (30, 120)},
    "liftpy.service.emitter": {"_AGAIN_S": (0.02, 0.2), "_LOST_AFTER_S": (2, 10)},
    "liftpy.service.fetching": {
        "_ANSWER_S": (1, 5), "_FIRST_PAUSE_S": (0.1, 1), "_LONGEST_PAUSE_S": (2, 15), "_BEGINS_SLOWLY_S": (5, 30),
        "_BARRED_S": (30, 300),
        "_SLOWEST_BYTES_PER_S": (16 * KIB, 256 * KIB), "_TRIES": (3, 3),
    },
    "liftpy.service.giving": {"_HELD_S": (30, 120)},
    "liftpy.service.host": {"_READ_PATIENCE_S": (1, 5), "_CANCEL_AGAIN_S": (0.05, 0.5), "_AHEAD_S": (2, 15), "_ASK_S": (0.1, 0.5)},
    "liftpy.service.keeping": {"_LONGEST_TURN_S": (2, 15), "_TURN": (1.2, 3)},
    "liftpy.service.poison": {"FIRST_WAIT_S": (0.5, 2), "LONGEST_WAIT_S": (30, 120), "DECIDED_WAIT_S": (5, 30)},
    "liftpy.service.queries": {"PATIENCE_S": (1, 2.5)},
    "liftpy.service.replies": {"_MAX_AGE_NS": (30 * S, 300 * S)},
    "liftpy.service.upgrading": {"AGAIN_S": (5, 30)},
    "liftpy.service.versions": {"_BELIEVED_S": (2, 10)},
    "liftpy.service.wellness": {"REPORT_EVERY_S": (0.5, 2), "REST_S": (30, 120), "_BELIEVED_S": (3, 10)},
}  # fmt: skip
"""What has no answer, or failed, is tried again: not in a hurry that makes it worse, and before its user gives up."""

BOUNDS: Figures = {
    "sidecar.partition.deletions": {"_REMEMBERED": (2000, 50_000)},
    "sidecar.partition.driver": {
        "MAX_QUEUE": (16_384, 262_144), "STORY_STEPS": (32, 256), "ALL_STORY_STEPS": (16_384, 262_144), "_FEWEST_STEPS": (8, 16),
        "_MOST_OF_A_STEP": (200, 2000),
    },
    "sidecar.partition.replication": {"_MAX_TOKENS": (1024, 16_384), "ASSEMBLING_BYTES": (64 * MIB, GIB)},
    "sidecar.partition.set": {"_STOPS_AT_ONCE": (32, 128), "_OPENED_AT_ONCE": (16, 128)},
    "liftpy.cluster.batch_bounds": {"MAX_BATCH_BYTES": (32 * KIB, 60 * KIB)},
    "liftpy.cluster.batches": {"MAX_DETAIL_LENGTH": (80, 400)},
    "liftpy.cluster.draft": {"MAX_DETAIL_LENGTH": (300, 2000)},
    "liftpy.cluster.feed": {
        "CHUNK_SIZE_BYTES": (64 * KIB, 512 * KIB), "MAX_ENTRY_SIZE_BYTES": (64 * KIB, 512 * KIB), "MAX_HELD_ENTRIES": (1024, 16_384),
        "MAX_HELD_RECORDS": (16_384, 262_144), "_MAX_STATE_SIZE_BYTES": (4096, 32_768), "_OVERHEAD_BYTES": (256, 2048),
        "MAX_SNAPSHOTS": (2, 2),
        "_SMALLEST_MESSAGE_BYTES": (512, 4096),
    },
    "liftpy.cluster.feed_subscription": {
        "MAX_WAITING_ENTRIES": (64, 1024), "MAX_WAITING_BYTES": (4 * MIB, 64 * MIB), "MAX_SNAPSHOT_SIZE_BYTES": (128 * MIB, GIB),
        "MAX_OTHER_CHUNKS": (16, 128), "MAX_HEADS_BELOW": (4, 10),
    },
    "liftpy.cluster.member": {"MAX_DUTY_ORDERS": (16, 256), "MAX_LOOKS": (16, 256), "MAX_QUESTIONS": (64, 1024)},
    "liftpy.cluster.membership": {"MAX_WAITING": (16, 256)},
    "liftpy.cluster.moving": {"TRANSFERS_AT_ONCE": (8, 64), "AHEAD": (2, 4)},
    "liftpy.cluster.operations": {
        "MAX_OPERATIONS": (16_384, 262_144), "MAX_AGE_NS": (300 * S, 3600 * S), "MAX_SIZE_BYTES": (8 * MIB, 128 * MIB),
        "_ENTRY_BYTES": (200, 800), "_EVICT_AT_ONCE": (8, 64), "MAX_STEP_NS": (5 * S, 30 * S),
    },
    "liftpy.cluster.pages": {"MAX_PAGE_BYTES": (256 * KIB, MIB), "_MIN_PAGE_BYTES": (256, 4096), "_NAMED": (5, 20)},
    "liftpy.cluster.placement.sizes": {"TOLERANCE": (0.01, 0.05), "_TAKERS_TRIED": (8, 64)},
    "liftpy.cluster.preferred": {"MOVES_AT_ONCE": (16, 128)},
    "liftpy.cluster.request_bounds": {
        "MAX_REQUEST_BYTES": (64 * KIB, 64 * KIB), "MAX_TEXT_BYTES": (512, 4096), "MAX_LIST_LENGTH": (128, 1024),
    },
    "liftpy.cluster.starts": {"MAX_EARLIER_NONCES": (8, 64)},
    "liftpy.cluster.trail": {"MAX_STEPS": (2048, 32_768)},
    "liftpy.client.credentials": {"_MAX_FILE_BYTES": (256 * KIB, 4 * MIB)},
    "liftpy.client.consumer": {"_PAYLOAD_RESERVE_BYTES": (1024, 16 * KIB)},
    "liftpy.client.parser": {
        "LONGEST_LINE_BYTES": (16 * KIB, 256 * KIB), "LARGEST_MESSAGE_BYTES": (64 * MIB, GIB), "_REMEMBERED_SUBJECTS": (256, 4096),
        "_REMEMBERED_BYTES": (128, 1024),
    },
    "liftpy.client.progress": {"_MOST_BEHIND": (5, 15)},
    "liftpy.client.transport": {"ROOM_BYTES": (256 * KIB, 2 * MIB)},
    "liftpy.ingest.in_hand": {"RECORD_OVERHEAD_BYTES": (24, 64)},
    "liftpy.ingest.ingest": {"_BATCH_OVERHEAD_BYTES": (2048, 16 * KIB)},
    "liftpy.ingest.published_batch": {
        "MAX_BATCH_RECORDS": (65_536, 65_536), "MAX_HEADERS": (1024, 1024), "MAX_HEADER_BYTES": (64 * KIB, 64 * KIB),
    },
    "liftpy.ingest.recent_ids": {"MAX_ID_BYTES": (512, 4096), "_ID_BYTES": (100, 200), "_BATCH_BYTES": (200, 500)},
    "liftpy.service.agreement": {"MAX_POSITIONS": (8, 64), "MAX_NODES": (8, 64)},
    "liftpy.service.answering": {"_HEADERS_BYTES": (512, 4096)},
    "liftpy.service.effects": {"MAX_PENDING": (10_000, 10_000), "MAX_PENDING_BYTES": (8 * MIB, 8 * MIB), "MAX_NAME_BYTES": (256, 256)},
    "liftpy.service.fetching": {"_MAX_PEERS": (8, 64)},
    "liftpy.service.giving": {"_MAX_HELD": (4, 15), "_MAX_WAITING": (32, 256)},
    "liftpy.service.keeping": {"_KNOWN": (32, 256), "_TOLD": (3, 8)},
    "liftpy.service.log_timers": {"MAX_TIMERS": (10**6, 10**6), "MAX_NAME_BYTES": (1024, 1024)},
    "liftpy.service.machine": {"MAX_FIRES_PER_RECORD": (10**5, 10**5), "MAX_OUTPUTS_PER_CALLBACK": (1000, 1000)},
    "liftpy.service.outbox": {"MAX_OUTPUT_BYTES": (256 * KIB, 256 * KIB), "MAX_SAMPLES": (64, 1024), "_OVERHEAD_BYTES": (64, 256)},
    "liftpy.service.peers": {"MAX_OFFERS": (4, 15), "MAX_AGREED": (32, 256), "_CERTAIN": (2, 2), "_SAID_BYTES": (100, 400)},
    "liftpy.service.poison": {"MAX_ERROR_BYTES": (250, 1000), "MAX_SKIPS": (128, 1024)},
    "liftpy.service.queries": {"MAX_QUERIES": (256, 4096), "MAX_WAITING_BYTES": (2 * MIB, 32 * MIB)},
    "liftpy.service.replies": {
        "MAX_ID_BYTES": (256, 256), "MAX_ANSWERS": (10_000, 10_000), "MAX_ANSWERS_BYTES": (4 * MIB, 4 * MIB),
        "MAX_REPLIES": (1024, 16_384),
        "MAX_REPLIES_BYTES": (2 * MIB, 32 * MIB), "_OVERHEAD_BYTES": (32, 128),
    },
    "liftpy.service.rules": {"MAX_PARAMETERS_BYTES": (16 * KIB, 256 * KIB)},
    "liftpy.service.sessions": {"MAX_SERVICES": (16, 16), "_MAX_PROBLEM": (250, 1000)},
    "liftpy.service.versions": {"_MAX_TOLD": (128, 1024)},
    "liftpy.service.wellness": {"MAX_REPORTED": (16, 16), "QUIET_ROUNDS": (2, 2)},
    "sidecar.cli.placement": {"MAX_FILE_BYTES": (256 * KIB, 4 * MIB)},
    "sidecar.cli.publish": {"_CHUNK_BYTES": (16 * KIB, 256 * KIB), "_MAX_LINE_BYTES": (16 * MIB, 64 * MIB)},
    "sidecar.cli.rebalance": {"_SHOWN": (200, 5000)},
    "sidecar.cli.tables": {"_SHORT": (16, 40)},
}  # fmt: skip
"""What is held, remembered or taken: enough for every honest use, and far from what a node has. Where there is one value, every node
has to have the same: what a state or a log becomes depends on it."""

ALL = [
    (module, name, least, most)
    for figures in (PEOPLE_WAIT, LOOKS, TURNS, ROUNDS, AGAIN, BOUNDS)
    for module, rows in figures.items()
    for name, (least, most) in rows.items()
]


@pytest.mark.parametrize("module", sorted({module for module, *_ in ALL}))
def test_a_figure_is_what_its_reason_allows(module: str) -> None:
    found = importlib.import_module(module)
    rows = [(name, least, most) for of, name, least, most in ALL if of == module]
    assert [(name, value) for name, least, most in rows if not least <= (value := getattr(found, name)) <= most] == []


LESS: list[tuple[str, str, str]] = [
    (
        "liftpy.service.queries:PATIENCE_S",
        "liftpy.client.queries:_ATTEMPT_S",
        "a query is asked again when its service has given it up",
    ),
    (
        "liftpy.service.wellness:REPORT_EVERY_S",
        "liftpy.service.wellness:_BELIEVED_S",
        "a report that was lost does not count as silence",
    ),
    (
        "liftpy.service.versions:_BELIEVED_S",
        "liftpy.service.upgrading:AGAIN_S",
        "who has gone is forgotten before it is asked again",
    ),
    ("liftpy.cluster.batch_bounds:SENT_TOGETHER", "liftpy.cluster.batch_bounds:MAX_REQUESTS", "what is made is accepted"),
    (
        "liftpy.cluster.batch_bounds:MAX_BATCH_BYTES",
        "liftpy.cluster.request_bounds:MAX_REQUEST_BYTES",
        "what is made is accepted",
    ),
    ("liftpy.cluster.pages:DEFAULT_PAGE_BYTES", "liftpy.cluster.pages:MAX_PAGE_BYTES", "what nobody asks for is allowed"),
    ("liftpy.client.outgoing:_LONGEST_ID_BYTES", "liftpy.ingest.recent_ids:MAX_ID_BYTES", "an id of ours is an id"),
    (
        "liftpy.ingest.recent_ids:MAX_ID_BYTES",
        "liftpy.ingest.published_batch:MAX_HEADER_BYTES",
        "an id has room in the headers",
    ),
    ("liftpy.client.retrying:FIRST_WAIT_S", "liftpy.client.retrying:LONGEST_WAIT_S", "waits grow"),
    ("sidecar.partition.set:_ASIDE_S", "sidecar.metadata.questions:STEP_ASIDE_TIMEOUT_S", "who steps aside says so in time"),
    ("sidecar.partition.timers:GRID_NS", "sidecar.partition.timers:FAR_GRID_NS", "what is far off may be later"),
]


@pytest.mark.parametrize(("less", "more", "why"), LESS)
def test_one_is_less_than_the_other(less: str, more: str, why: str) -> None:
    one, other = (
        getattr(importlib.import_module(module), name) for module, name in (which.split(":") for which in (less, more))
    )
    assert one < other, why


def test_no_range_lets_a_factor_of_ten_pass() -> None:
    loose = []
    for module, name, least, most in ALL:
        value = getattr(importlib.import_module(module), name)
        if not (value / 10 < least and most < value * 10):
            loose.append((module, name, value))
    assert loose == []
