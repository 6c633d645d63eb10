"""The short form of ``python -m tests.system.garbage``: garbage on every subject costs nothing but counting it [A5, A6].

And the garbage leaves no subject out, nor is it an order that names real things.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire.permissions import USES
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ProtocolError
from tests.system.garbage.__main__ import send_floods, send_garbage
from tests.system.garbage.floods import FLOODS
from tests.system.garbage.making import Maker, Overheard, Said
from tests.system.garbage.run import STARVED_FOR_S, Outcome
from tests.system.garbage.targets import Place, matches, targets

SHORT_FRAMES = 3_000
PLACE = Place(Subjects("ns"), ("n1", "n2"), "s", "data.s", 2)


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(120)
def test_garbage_on_every_subject_changes_no_leader_and_loses_no_record() -> None:
    outcome = send_garbage(SHORT_FRAMES, seed=7)
    assert outcome.wrong() == [], outcome.text()
    assert outcome.frames == SHORT_FRAMES
    assert all(outcome.by_row.values())
    assert {
        "checksum",
        "no envelope",
        "message type",
        "version",
        "invalid reply subject",
        "metadata: subject",
    } <= outcome.refused.keys()


SHORT_PER_S = 800
"""Beside three other workers the nodes get a third of a core each: at 3,000 the sessions of all of them end sometimes, by right."""


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.long
def test_flood_of_valid_control_requests_is_limited_and_counted() -> None:
    outcome = send_floods({name: flood.short for name, flood in FLOODS.items()}, per_s=SHORT_PER_S)
    assert outcome.wrong() == [], outcome.text()
    assert outcome.refused["metadata: control request above the rate limit of the controller"] > 0
    assert outcome.refused["metadata: control request"] >= FLOODS["large-requests"].short
    made = FLOODS["streams"].short + FLOODS["ghosts"].short
    done = outcome.described - 4 - 2
    assert 0 < done <= made
    late = sum(
        outcome.refused.get(f"metadata: control request {why}", 0)
        for why in ("that waited too long", "above the rate limit of operators")
    )
    assert done + late >= made, "what was whole was done or counted, and the cluster can still say so"


def test_garbage_verdict_ignores_changes_only_shortly_after_the_machine_was_starved() -> None:
    outcome = Outcome(acked=1, read=1, described=1, terms={1}, refused={"checksum": 1}, isr_sizes={2, 3})
    outcome.leaderships = {(0, "n1", 1), (1, "n2", 1), (1, "n3", 2)}
    outcome.changes = [(20.0, "leader of 1: ('n3', 2)"), (20.5, "ISR of 0: ['n1', 'n2']")]
    outcome.starved = [(18.0, 20.1), (20.1, 22.2)]
    assert outcome.wrong() == []
    for early_or_late in (17.9, 20.1 + STARVED_FOR_S + 0.1):
        outcome.changes.append((early_or_late, "no ack for 3.5 s"))
        assert ["no ack for 3.5 s" in text for text in outcome.wrong()] == [True]
        outcome.changes.pop()


def test_garbage_targets_cover_every_row_of_the_permission_table() -> None:
    found = targets(PLACE)
    assert set(found) == {use.built_by for use in USES if use.built_by}
    for use in USES:
        if use.built_by in found and use.built_by not in ("data_subject", "inbox", "control_admin"):
            pattern = use.pattern.format(ns="ns", stream="*", principal="", data="", inbox="", queried="*")
            assert all(matches(pattern, subject) for subject in found[use.built_by]), use


def test_garbage_frames_contain_no_valid_delete_or_fence_request_of_the_cluster() -> None:
    heard = Overheard()
    orders = [
        cluster_pb2.ControlRequest(deleteStream=cluster_pb2.DeleteStream(name="s")),
        cluster_pb2.ControlRequest(removeNode=cluster_pb2.RemoveNode(nodeId="n1")),
        cluster_pb2.ControlRequest(fenceNode=cluster_pb2.FenceNode(nodeId="n2", incarnation=1)),
    ]
    for row, order in zip(("control_admin", "control_admin", "control_node"), orders, strict=True):
        heard.hear(row, Said(f"ns.{row}", "_INBOX.x", frames.seal(order)))
    maker = Maker(random.Random(1), PLACE, heard, 1 << 16)
    for number in range(5000):
        row = ("control_admin", "control_node")[number % 2]
        line, _, payload = maker.frame(row, f"ns.{row}").partition(b"\r\n")
        if line.startswith(b"PUB"):
            with contextlib.suppress(ProtocolError):
                assert frames.decode(payload[:-2], cluster_pb2.ControlRequest) not in orders
