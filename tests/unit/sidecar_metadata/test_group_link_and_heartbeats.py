"""Test a node's heartbeats while its event loop is blocked, and the end of its membership."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata import membership
from tests.unit.scripted_group import ScriptedGroup


def a_membership(group: Any, told: list[Any]) -> membership.Membership:
    settings: Any = SimpleNamespace(node_id="n1", replication=ReplicationConfig(), rack="r", weight=2.0)
    return membership.Membership(settings, group, told.append, told.append)


@pytest.mark.parametrize(
    ("node", "seen", "incarnation", "ends"),
    [(None, 9, 3, True), (None, 8, 3, False), (None, 9, 0, False), ("n1", 9, 3, False)],
)
async def test_node_membership_of_a_removed_node_ends_when_the_image_confirms_the_removal(
    node: str | None, seen: int, incarnation: int, ends: bool
) -> None:
    group, told = ScriptedGroup(), list[Any]()
    made = a_membership(group, told)
    made._end_heartbeats = lambda: asyncio.sleep(0)  # type: ignore[assignment,return-value]
    made.incarnation = incarnation
    group.shown = replace(ClusterImage(), index=seen, nodes={node: None} if node else {})  # type: ignore[dict-item]
    made._image_changed(ClusterImage(), group.shown)
    assert told == [], "an image alone may be forged"
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.NOT_FOUND, index=9))
    assert len(told) == ends
    if ends:
        for words in ("Node 'n1' was removed from the cluster", "Its data directory was not deleted", "start it: it joins"):
            assert words in str(told[0])


@pytest.mark.parametrize(("own", "ends"), [(4, True), (3, False), (2, False), (None, False)])
async def test_node_membership_ends_when_a_newer_process_registers_the_node_id(own: int | None, ends: bool) -> None:
    group, told = ScriptedGroup(), list[Any]()
    made = a_membership(group, told)
    made._end_heartbeats = lambda: asyncio.sleep(0)  # type: ignore[assignment,return-value]
    made.incarnation = 3
    group.shown = replace(ClusterImage(), nodes={"n1": SimpleNamespace(incarnation=own)} if own else {})  # type: ignore[dict-item]
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.FENCED))
    assert len(told) == ends
    if ends:
        assert "another process has registered as n1" in str(told[0])
    made._end_heartbeats = None
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.FENCED))
    assert len(told) == ends, "after the last heartbeat nothing is heard any more"
