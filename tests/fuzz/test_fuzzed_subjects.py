"""Test the messages of ``python -m tests.fuzz.subjects``: they reach every subject, and are no valid requests of the cluster."""

from __future__ import annotations

import contextlib
import random

from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire.permissions import USES
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ProtocolError
from tests.fuzz.messages import Maker, Overheard, Said
from tests.fuzz.targets import Place, matches, targets

PLACE = Place(Subjects("ns"), ("n1", "n2"), "s", "data.s", 2)


def test_fuzzed_subjects_cover_every_row_of_the_permission_table() -> None:
    found = targets(PLACE)
    assert set(found) == {use.built_by for use in USES if use.built_by}
    for use in USES:
        if use.built_by in found and use.built_by not in ("data_subject", "inbox", "control_admin"):
            pattern = use.pattern.format(ns="ns", stream="*", principal="", data="", inbox="", queried="*")
            assert all(matches(pattern, subject) for subject in found[use.built_by]), use


def test_fuzzed_messages_contain_no_valid_delete_or_fence_request_of_the_cluster() -> None:
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
