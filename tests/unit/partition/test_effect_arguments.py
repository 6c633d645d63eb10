"""Test that the effect executor passes on each field of each effect."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import ANY

import pytest

from liftpy.core.log.compaction_point import Horizon
from liftpy.core.log.log import RecheckResult
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.wire.batch import build_batch
from sidecar.partition.executor import Executor, Tools
from tests.unit.partition.shell_parts import KEY, PARTS, filled


class Recorded:
    """Takes every call; ``calls`` has its name and what it was given."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], name: str, **more: Any) -> None:
        self.__dict__.update(more, _calls=calls, _name=name)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            self._calls.append((f"{self._name}.{name}", args, more))
            return {"complaint": RecheckResult.SOUND, "alone": False}.get(name, b"batch")

        return call


def executor(**replaced: Any) -> tuple[Executor, list[tuple[str, tuple[Any, ...], dict[str, Any]]], list[events.Event]]:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    fed: list[events.Event] = []
    parts: dict[str, Any] = {name: Recorded(calls, name) for name in PARTS}
    parts["fetches"] = Recorded(calls, "fetches", fetched={})
    parts["log"] = Recorded(calls, "log", log_end_offset=5, log_start_offset=0)
    parts |= {
        "key": KEY, "incarnation": 41, "counters": Counter(), "feed": fed.append, "high_watermark": lambda: 42,
        "leader": lambda: ("n9", 43), "step_aside": lambda key, leader_epoch, done: done(),
    }  # fmt: skip
    return Executor(Tools(**(parts | replaced))), calls, fed


def flat(value: Any) -> Iterator[Any]:
    """All that is in it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        yield from flat([getattr(value, field.name) for field in dataclasses.fields(value)])
    elif isinstance(value, list | tuple | set | frozenset | dict):
        for item in value.items() if isinstance(value, dict) else value:
            yield from flat(item)
    else:
        yield value


SAID_OTHERWISE = {do.AppendFetched, do.DropFetched, do.RoleChanged}


@pytest.mark.parametrize("kind", [k for k in get_args(do.Effect) if k not in SAID_OTHERWISE], ids=lambda kind: kind.__name__)
async def test_effect_executor_passes_each_field_of_an_effect_to_the_component_that_handles_it(kind: type[Any]) -> None:
    runner, calls, _ = executor()
    effect = filled(kind)
    if kind is do.SetDeadline:
        runner._deadlines = {effect.kind._name_: effect.kind}  # type: ignore[dict-item]
    runner.execute(effect)
    given = list(flat([(args, more) for _, args, more in calls]))
    for field in dataclasses.fields(kind):
        wanted = [value for value in flat(getattr(effect, field.name)) if value not in ("", True)]
        missing = [value for value in wanted if value not in given and not any(callable(g) for g in given)]
        assert not missing, f"{field.name} of {effect} is in none of {calls}"
    assert calls, "nobody did anything"


CALLS: dict[type[Any], Any] = {
    do.AppendBatch: lambda e, feed: [
        ("ingest.seal", (e,)), ("log.append", (b"batch", ANY)), ("ingest.appended", (e, b"batch")), ("flusher.appended", ()),
    ],
    do.RejectPublishes: lambda e, feed: [("ingest.reject", (e.token, e.reason, "n9", 43))],
    do.DropPublishes: lambda e, feed: [("ingest.drop", (e.token, e.reason))],
    do.SendAcks: lambda e, feed: [("ingest.wall_ns", ()), ("acks.release", (e.policy, e.through_offset, e.leader_epoch, ANY))],
    do.DropPendingAcks: lambda e, feed: [("acks.drop", ())],
    do.SendFetch: lambda e, feed: [("fetches.send_fetch", (e, 41))],
    do.Quiesce: lambda e, feed: [("quiet.wait", (KEY, e, feed))],
    do.EndQuiescence: lambda e, feed: [("quiet.stop", (KEY,))],
    do.ConfirmQuiescence: lambda e, feed: [("quiet.confirm", (e,))],
    do.SendEpochQuery: lambda e, feed: [("fetches.send_epoch_query", (e,))],
    do.SendFetchResponse: lambda e, feed: [("replication.send_response", (e, "log", 42)), ("ingest.settle", ())],
    do.ParkFetch: lambda e, feed: [("replication.keep", (e,)), ("ingest.settle", ())],
    do.AnswerParkedFetch: lambda e, feed: [("replication.answer_parked_fetch", (e, "log", 42))],
    do.SendHighWatermark: lambda e, feed: [("replication.send_high_watermark", (e, 42))],
    do.SendFetchRefusal: lambda e, feed: [("replication.send_refusal", (e,))],
    do.SendEpochAnswer: lambda e, feed: [("replication.send_epoch_answer", (e,))],
    do.NotifyReplica: lambda e, feed: [("notifications.wake", (KEY, e))],
    do.ProbeReplica: lambda e, feed: [("probes.ask", (e.replica, ANY))],
    do.SendNotice: lambda e, feed: [("notifications.send_notice", (KEY, e))],
    do.ProposeIsr: lambda e, feed: [("proposals.propose_isr", (KEY, e, feed))],
    do.StepAside: lambda e, feed: [("proposals.give_up_leadership", (KEY, e))],
    do.ReportLeader: lambda e, feed: [("proposals.report_leader", (KEY, e))],
    do.LeaveIsr: lambda e, feed: [("proposals.leave_isr", (KEY, e))],
    do.GiveUpLeadership: lambda e, feed: [("proposals.give_up_leadership", (KEY, e))],
    do.WakePartition: lambda e, feed: [("proposals.wake_partition", (KEY, e))],
    do.ReportPromotion: lambda e, feed: [("proposals.report_promotion", (KEY, e))],
    do.ReplayLog: lambda e, feed: [("replay.run", (ANY,))],
    do.StartServing: lambda e, feed: [("replication.start", ())],
    do.OpenSubject: lambda e, feed: [("standby.replay", (ANY,))],
    do.RaiseHighWatermark: lambda e, feed: [
        ("log.raise_high_watermark", (e.high_watermark,)), ("ingest.committed", (e.high_watermark,)),
        ("derived.committed", (e.high_watermark,)),
        ("standby.committed", (e.high_watermark,)), ("reads.advanced", ()),
    ],
    do.PersistLeaderEpoch: lambda e, feed: [("promises.store", (KEY.folder, e.leader_epoch, ANY))],
    do.RecheckLog: lambda e, feed: [("log.complaint", (e.offset, e.replica, ANY))],
}  # fmt: skip
"""What is called for an effect, in order."""


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
async def test_effect_executor_passes_the_fields_of_an_effect_as_arguments_in_order(kind: type[Any]) -> None:
    runner, calls, _ = executor()
    effect = filled(kind)
    runner.execute(effect)
    told = [(name, tuple("log" if arg is runner._t.log else arg for arg in args)) for name, args, _ in calls]
    assert told == CALLS[kind](effect, runner._t.feed)
    assert [more for *_, more in calls] == [{}] * len(calls)


@pytest.mark.parametrize(("last_offset", "taken"), [(10, 3), (9, 2), (8, 2), (7, 1), (6, 1)])
def test_effect_executor_appends_fetched_batches_only_up_to_the_given_offset(last_offset: int, taken: int) -> None:
    runner, calls, _ = executor()
    data = b"".join(build_batch([b"a", b"b"], base_offset=offset, leader_epoch=1) for offset in (5, 7, 9))
    from liftpy.core.wire.batch import split_batches

    batches = split_batches(data)
    runner._t.fetches.fetched[1] = SimpleNamespace(buffer=memoryview(data), batches=batches)
    runner.execute(do.AppendFetched(token=1, last_offset=last_offset, leader_high_watermark=6, leader_epoch=4))
    name, args, more = calls[0]
    assert name == "log.append_batches"
    assert [batch.base_offset for batch in args[1]] == [5, 7, 9][:taken]
    assert len(args[0]) == sum(len(batch.view) for batch in batches[:taken])
    assert more == {"compacted": Horizon(7, 4)}, "all that the leader's compaction can have seen: up to HW, inclusive"
    assert calls[-1][0] == "flusher.appended"
    assert runner._t.fetches.fetched == {}


def test_effect_executor_role_change_discards_partial_batches() -> None:
    runner, calls, _ = executor()
    runner.execute(do.RoleChanged(role="FOLLOWER", phase="FOLLOWER_FETCH", leader_epoch=3))
    assert {"fetches.forget_pieces", "services.role_changed"} <= {name for name, *_ in calls}


def test_effect_executor_close_subject_stops_ingest_standby_and_replication() -> None:
    runner, calls, _ = executor()
    runner.execute(do.CloseSubject())
    assert [name for name, *_ in calls] == ["standby.cancel", "ingest.stop", "replay.forget", "replication.stop"]
