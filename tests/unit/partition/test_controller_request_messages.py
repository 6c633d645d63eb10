"""Test requests to the metadata group: complete fields, responses and retries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.replication import effects as do
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.partition.proposals import Proposals
from tests.unit.partition.shell_parts import KEY, filled
from tests.unit.scripted_group import ScriptedGroup
from tests.until import until

WISHES: dict[str, tuple[type[Any], Callable[[Proposals, Any], None], dict[str, str]]] = {
    "changeIsr": (do.ProposeIsr, lambda p, e: p.propose_isr(KEY, e, lambda _: None), {}),
    "reportLeader": (do.ReportLeader, lambda p, e: p.send(KEY, e), {"witness": "n1", "witnessIncarnation": "7"}),
    "leaveIsr": (do.LeaveIsr, lambda p, e: p.send(KEY, e), {"node": "n1", "incarnation": "7"}),
    "giveUpLeadership": (do.GiveUpLeadership, lambda p, e: p.send(KEY, e), {"leader": "n1", "incarnation": "7"}),
    "wakePartition": (do.WakePartition, lambda p, e: p.send(KEY, e), {"leader": "n1"}),
    "reportPromotion": (
        do.ReportPromotion,
        lambda p, e: p.send(KEY, e),
        {"candidate": "n1", "candidateIncarnation": "7"},
    ),
}


NAMES = {"replayed_end_offset": "replayedEndOffset", "newest_offset": "newestOffset", "high_watermark": "highWatermark",
         "leader_epoch": "leaderEpoch", "last_epoch": "lastEpoch", "leader_lacks": "leaderLacks"}  # fmt: skip


@pytest.mark.parametrize("kind", WISHES)
async def test_controller_request_has_all_fields_of_its_effect(kind: str) -> None:
    effect_kind, ask, ours = WISHES[kind]
    group, effect = ScriptedGroup(), filled(effect_kind)
    proposals = Proposals(group, "n1", 7)
    ask(proposals, effect)
    await until(lambda: group.asked)
    request = getattr(group.asked[0][0], kind)
    assert (request.stream, request.uid, request.partition) == ("orders", "u1", 3)
    for field in dataclasses.fields(effect_kind):
        value = getattr(effect, field.name)
        if field.name == "slow":
            continue  # for the log and a counter
        said = getattr(request, NAMES.get(field.name, field.name))
        if isinstance(value, frozenset):
            said = frozenset(said)
        elif field.name == "incarnations":
            said = tuple(said.items())
        assert said == value, field.name
    for name, value in ours.items():
        assert str(getattr(request, name)) == value
    await proposals.close()


async def test_controller_request_reports_a_finished_purge_once() -> None:
    wish = Purge(number=4, subjects=("x",), end_offset=9)
    state = PartitionState(partition=3, replicas=("n1",), isr=("n1",), leader="n1", leader_epoch=1, epoch=1, purges=(wish,))
    group = ScriptedGroup()
    proposals = Proposals(group, "n1", 7)
    proposals.report_purged(KEY, state, {3})
    proposals.report_purged(KEY, state, {4})
    await until(lambda: group.asked)
    said = pb.ReportPurged(stream="orders", uid="u1", partition=3, node="n1", incarnation=7, number=4)
    assert [request.reportPurged for request, _ in group.asked] == [said]
