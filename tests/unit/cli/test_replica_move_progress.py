"""Progress of replica moves: plans, tables, sentences, and the rate of requests to the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.partition import MoveReason, PartitionStatus
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.reassignment_progress import Movement, Phase, movement_of
from liftpy.errors import OutcomeUnknownError, ProtocolError, UnavailableError
from sidecar.cli import reassignment, rebalance
from sidecar.cli import stream as alter
from sidecar.cli.node import _reasons_that_replicas_stay
from sidecar.cli.node_reports import ask_nodes
from sidecar.cli.reassignment import (
    Estimate,
    MoveProgress,
    follow,
    has_no_move,
    movement_json,
    progress_of,
    remaining_bytes,
    sentence,
)
from sidecar.cli.rebalance import RebalancePlan, plan_of
from tests.flat_client import FlatClient
from tests.unit.metadata.small_images import a_partition, a_stream, an_image

MOVING = a_partition(target=("a", "b", "d"), moved_for=MoveReason.DRAINED)


def moving(**more: Any) -> Movement:
    found = movement_of(a_stream(), replace(MOVING, **more))
    assert found is not None
    return found


def said(**sizes_bytes: int) -> Any:
    return {node: {("u1", 0): {"log_bytes": size}} for node, size in sizes_bytes.items()}


# ---- how far it is -------------------------------------------------------------------------------------------------------
def test_move_left_bytes_are_the_log_bytes_missing_on_new_replicas() -> None:
    assert remaining_bytes(moving(), {}) == 0, "nobody said"
    assert remaining_bytes(moving(), said(a=10, b=30, c=20)) == 30, "as large as the largest"
    assert remaining_bytes(moving(joining="d"), said(a=10, d=4)) == 6
    assert remaining_bytes(moving(joining="d"), said(a=10, d=14)) == 0
    two = moving(target=("a", "d", "e"), joining="d")
    assert remaining_bytes(two, said(a=10, d=4, e=3)) == 16, "what e holds is of an older copy: it begins anew"
    assert remaining_bytes(moving(replicas=("a", "b", "c", "d")), said(a=10, d=4)) == 0, "d is there"
    assert remaining_bytes(moving(), {"a": {("u2", 0): {"log_bytes": 9}, ("u1", 1): {"log_bytes": 8}}}) == 0, "of others"
    assert remaining_bytes(moving(), {"a": {("u1", 0): {}}}) == 0


def test_move_progress_sums_copies_and_left_bytes_of_all_partitions() -> None:
    copying = moving(joining="d")
    drops = moving(replicas=("a", "b", "d", "c"), isr=("a", "b", "d", "c"))
    assert progress_of([drops], said(a=10)) == MoveProgress(partitions=1, copying=0, remaining_bytes=0)
    assert progress_of([copying, moving(), copying], said(a=10, d=4)) == MoveProgress(
        partitions=3, copying=2, remaining_bytes=18
    )
    assert progress_of([], {}) == MoveProgress(partitions=0, copying=0, remaining_bytes=0)
    assert movement_json(copying, said(a=10, d=4)) == {
        "stream": "s", "uid": "u1", "partition": 0, "replicas": ["a", "b", "c"], "target": ["a", "b", "d"], "phase": "copies",
        "into": "d", "out": "c", "why": "drain", "left_bytes": 6,
    }  # fmt: skip


def test_move_time_estimate_uses_the_average_rate_since_the_first_check() -> None:
    estimate = Estimate()
    assert [estimate.seconds(*look) for look in ((10.0, 8), (11.0, 8), (12.0, 6))] == [None, None, 6.0]
    assert estimate.seconds(13.0, 9) is None, "something was added: it begins anew"
    assert estimate.seconds(14.0, 6) == 2.0


def test_move_progress_sentence_contains_partitions_copies_left_bytes_and_time() -> None:
    now = MoveProgress(partitions=3, copying=2, remaining_bytes=12_345_678)
    assert sentence(now, None) == "3 partitions move, 2 are being copied, 12.3 MB left"
    assert sentence(now, 0.4) == "3 partitions move, 2 are being copied, 12.3 MB left, about 0 s"
    nothing = MoveProgress(partitions=0, copying=0, remaining_bytes=5)
    assert sentence(nothing, 3.0) == "nothing moves yet: the move waits for nodes that can take the replicas"


class Looked(FlatClient):
    """A cluster that is described image after image, the last one again and again; time goes by only where it is slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *images: ClusterImage, **sizes_bytes: int) -> None:
        self.images = list(images)
        self.sizes_bytes = sizes_bytes
        self.asked: list[list[str]] = []
        self.slept: list[float] = []
        self.now_s = 100.0

        async def sleep(wait_s: float) -> None:
            self.slept.append(round(wait_s, 6))
            self.now_s += wait_s

        async def ask(_client: Any, nodes: list[str]) -> Any:
            self.asked.append(nodes)
            return said(**self.sizes_bytes)

        monkeypatch.setattr(reassignment, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(reassignment, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(reassignment, "ask_nodes", ask)

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(image=self.images.pop(0) if len(self.images) > 1 else self.images[0])

    async def follow(self, concerns: Callable[[Movement], bool], timeout_s: float = 60.0, *, quiet: bool = False) -> None:
        def is_done(image: ClusterImage) -> bool:
            return not image.streams

        await follow(self, concerns, is_done, timeout_s, quiet=quiet)  # type: ignore[arg-type]


THERE = an_image(a_stream(MOVING), "abcd")
COPIES = an_image(a_stream(replace(MOVING, joining="d", copy_epoch=6)), "abcd")
DONE = an_image(None, "abcd")


async def test_move_follow_checks_once_per_second_and_prints_only_changed_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = Looked(monkeypatch, THERE, THERE, COPIES, DONE, a=2_000_000)
    await looked.follow(lambda found: found.partition == 0)
    assert looked.slept == [1.0, 1.0, 1.0]
    assert looked.asked == [["a", "b", "c", "d"]] * 3
    assert capsys.readouterr().out.splitlines() == [
        "1 partition moves, 0 are being copied, 2.0 MB left",
        "1 partition moves, 1 is being copied, 2.0 MB left",
    ]
    looked = Looked(monkeypatch, COPIES, DONE, a=2_000_000)
    await looked.follow(lambda found: True, quiet=True)
    assert capsys.readouterr().out == ""


async def test_move_follow_estimates_the_time_from_the_rate_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = Looked(monkeypatch, COPIES, COPIES, DONE, a=8_000_000)

    async def ask(_client: Any, _nodes: list[str]) -> Any:
        looked.sizes_bytes["d"] = looked.sizes_bytes.get("d", -2_000_000) + 2_000_000
        return said(**looked.sizes_bytes)

    monkeypatch.setattr(reassignment, "ask_nodes", ask)
    await looked.follow(lambda found: True)
    assert capsys.readouterr().out.splitlines() == [
        "1 partition moves, 1 is being copied, 8.0 MB left",
        "1 partition moves, 1 is being copied, 6.0 MB left, about 3 s",
    ]


async def test_move_follow_requests_sizes_only_from_existing_nodes_of_its_partitions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = Looked(monkeypatch, THERE, DONE)
    await looked.follow(lambda found: found.partition == 1)
    assert looked.asked == [[]]
    assert capsys.readouterr().out.startswith("nothing moves yet")
    looked = Looked(monkeypatch, an_image(a_stream(MOVING), "abd"), DONE)
    await looked.follow(lambda found: True)
    assert looked.asked == [["a", "b", "d"]]


async def test_move_follow_timeout_raises_unavailable_with_the_remaining_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(monkeypatch, THERE, a=1_000_000)
    with pytest.raises(UnavailableError) as failed:
        await looked.follow(lambda found: True, 2.5)
    assert str(failed.value) == (
        "The move is not complete after 2.5 s (--timeout): 1 partition moves, 0 are being copied, 1.0 MB left. It continues in the background: `liftpy status` shows the progress."  # noqa: E501
    )
    assert looked.slept == [1.0, 1.0, 0.5]
    late = Looked(monkeypatch, THERE, DONE)
    late.now_s = 0.0
    with pytest.raises(UnavailableError):
        await late.follow(lambda found: True, 0.0)
    assert late.slept == []


async def test_move_follow_ignores_nodes_whose_status_request_fails() -> None:
    asked: list[tuple[str, float]] = []
    one = {"uid": "u1", "partition": 4, "log_bytes": 7}
    answers: dict[str, Any] = {
        "a": {"partitions": [one]}, "b": UnavailableError("b"), "c": OutcomeUnknownError("c"), "d": ProtocolError("d"), "e": {},
    }  # fmt: skip

    class Nodes(FlatClient):
        async def node_status(self, node_id: str, timeout_s: float) -> Any:
            asked.append((node_id, timeout_s))
            if isinstance(answers[node_id], Exception):
                raise answers[node_id]
            return answers[node_id]

    assert await ask_nodes(Nodes(), list("abcde")) == {"a": {("u1", 4): one}, "e": {}}  # type: ignore[arg-type]
    assert asked == [(node_id, 2.0) for node_id in "abcde"]


# ---- rebalance -----------------------------------------------------------------------------------------------------------
def test_rebalance_leader_plan_omits_partitions_that_move_or_have_no_leader() -> None:
    def of(number: int, **more: Any) -> Any:
        return a_partition(partition=number, **more)

    image = an_image(
        a_stream(
            of(0), of(1), of(2, isr=("a", "c")), of(3, incomplete=("b",)), of(4, replicas=("b", "a", "c"), isr=("b", "a", "c")),
            of(5, status=PartitionStatus.ELECTION, leader=""), of(6, target=("a", "b", "d")), of(7, joining="d", copy_epoch=6),
        ),
        "abcd",
    )  # fmt: skip
    plan = plan_of(image, "leaders", [], {})
    assert (plan.by, plan.unit, plan.fewest, plan.moved) == ("leaders", "leaderships", 3, 3)
    assert plan.before == {"a": 5, "b": 0, "c": 0, "d": 0}
    assert plan.after == {"a": 2, "b": 1, "c": 2, "d": 0}
    assert list(plan.moves) == [
        {"stream": "s", "partition": 0, "out": "a", "into": "b"},
        {"stream": "s", "partition": 1, "out": "a", "into": "c"},
        {"stream": "s", "partition": 2, "out": "a", "into": "c"},
    ]
    assert plan.targets == {("s", 0): ("b", "a", "c"), ("s", 1): ("c", "a", "b"), ("s", 2): ("c", "a", "b")}
    assert plan.stuck == ()
    assert rebalance._leader_first(a_partition(leader="b", isr=("a", "b", "c"), incomplete=("c",))) == ("b", "a")


def test_rebalance_byte_plan_uses_the_log_size_of_the_leader_and_the_target_replicas() -> None:
    image = an_image(
        a_stream(
            a_partition(replicas=("a", "b"), isr=("a", "b")),
            a_partition(partition=1, replicas=("a", "b"), isr=("a", "b")),
            a_partition(partition=2, replicas=("a",), isr=("a",), target=("c",)),
            a_partition(partition=3, replicas=("a",), isr=("a",)),
        ),
        "abcd",
    )
    reports: Any = {
        "a": {("u1", 0): {"log_bytes": 100}, ("u1", 2): {"log_bytes": 30}},
        "b": {("u1", 0): {"log_bytes": 900}, ("u1", 1): {"log_bytes": 60}},
        "d": {("u1", 0): {"log_bytes": 5000}},
    }
    assert dict(rebalance._sizes(image, reports)) == {("s", 0): 100, ("s", 1): 60, ("s", 2): 30}
    plan = plan_of(image, "bytes", [], reports)
    assert (plan.by, plan.unit, plan.stuck) == ("bytes", "bytes", ())
    assert plan.before == {"a": 160, "b": 160, "c": 30, "d": 0}
    assert plan.after == {"a": 100, "b": 100, "c": 90, "d": 60}
    assert (plan.moved, plan.fewest) == (120, 142)
    assert sorted((m["partition"], m["bytes"], m["into"]) for m in plan.moves) == [(1, 60, "c"), (1, 60, "d")]
    assert {key: set(target) for key, target in plan.targets.items()} == {("s", 1): {"c", "d"}}


def test_rebalance_replica_plan_treats_moves_in_progress_as_complete() -> None:
    ones = [a_partition(partition=n, replicas=("a",), isr=("a",), target=("b",) if n < 2 else ()) for n in range(4)]
    plan = plan_of(an_image(a_stream(*ones), "ab"), "replicas", [], {})
    assert (plan.by, plan.unit, plan.moved, plan.fewest, list(plan.moves)) == ("replicas", "replicas", 0, 0, [])
    assert plan.before == plan.after == {"a": 2, "b": 2}
    plan = plan_of(an_image(a_stream(*ones), "ab"), "replicas", ["b"], {})
    assert (plan.moved, plan.before, plan.after) == (2, {"a": 2, "b": 2}, {"a": 4, "b": 0})
    assert plan.targets == {("s", 0): ("a",), ("s", 1): ("a",)}
    plan = plan_of(an_image(a_stream(*ones), "a"), "replicas", ["a"], {})
    assert set(plan.stuck) >= {("s", 2), ("s", 3)}


MOVES = [
    {"stream": "s", "partition": 0, "out": "a", "into": "b", "leads": True},
    {"stream": "s", "partition": 11, "out": "c", "into": "d", "leads": False},
]
PLAN = RebalancePlan(
    by="replicas", unit="replicas", moves=MOVES, targets={}, fewest=1, moved=2, before={"a": 1234, "c": 1}, after={"a": 1233, "b": 1},
    stuck=[("t", 7)],
)  # fmt: skip


def shown(capsys: pytest.CaptureFixture[str], plan: RebalancePlan, dry_run: bool) -> list[list[str]]:
    """The words of each line that has any, rules left out."""
    rebalance._show(plan, dry_run)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [words for words in lines if words and not set("".join(words)) <= set("─-")]


def test_rebalance_command_prints_each_move_and_marks_moves_of_a_leader(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert shown(capsys, PLAN, True) == [
        ["moves"],
        ["partition", "from", "to", "leads"],
        ["s/0", "a", "b", "yes"],
        ["s/11", "c", "d"],
        ["nodes"],
        ["node", "replicas", "then"],
        ["a", "1,234", "1,233"],
        ["b", "0", "1"],
        ["t/7", "does", "not", "move:", "no", "other", "node", "can", "take", "it"],
        ["2", "moves", "(minimum:", "1).", "Dry", "run:", "nothing", "changed."],
    ]
    assert shown(capsys, PLAN, False)[-1] == ["2", "moves", "(minimum:", "1)."]
    leaders = replace(PLAN, by="leaders", unit="leaderships", moves=[{**move} for move in MOVES], stuck=())
    assert shown(capsys, leaders, False)[1:4] == [["partition", "from", "to"], ["s/0", "a", "b"], ["s/11", "c", "d"]]
    of_bytes = replace(PLAN, by="bytes", unit="bytes", moved=12345, fewest=1000)
    assert shown(capsys, of_bytes, False)[-1] == ["12,345", "bytes", "in", "2", "moves", "(minimum:", "1,000)."]


def test_rebalance_partition_size_without_a_leader_report_is_the_largest_replica_size() -> None:
    image = an_image(a_stream(a_partition(isr=("a",))))
    reports: Any = {"b": {("u1", 0): {"log_bytes": 70}}, "c": {("u1", 0): {"log_bytes": 60}}}
    assert dict(rebalance._sizes(image, reports)) == {("s", 0): 70}
    assert rebalance._SHOWN == 1000


def test_rebalance_command_prints_at_most_1000_moves_and_the_number_of_other_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rebalance, "_SHOWN", 1)
    assert ["and", "1", "more,", "shown", "by", "--json"] in shown(capsys, PLAN, False)
    monkeypatch.setattr(rebalance, "_SHOWN", 2)
    assert not any(words[-1:] == ["all"] for words in shown(capsys, PLAN, False))
    assert not any(words == ["moves"] for words in shown(capsys, replace(PLAN, moves=[]), False))


class Decided(FlatClient):
    """A client that refuses partition 0, and is described as ``image``."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    async def reassign_all(self, wishes: Any) -> list[str]:
        self.batches.append(list(wishes))
        return ["s/0: no"] if any(wish.partition == 0 for wish in wishes) else []


@pytest.mark.parametrize(
    ("by", "wait", "sizes", "waited"),
    [("leaders", True, [33], [33]), ("leaders", False, [33], []), ("bytes", True, [33], [33]), ("replicas", False, [33], [])],
)
async def test_rebalance_command_requests_all_moves_and_waits_unless_no_wait_is_set(
    monkeypatch: pytest.MonkeyPatch, by: str, wait: bool, sizes: list[int], waited: list[int]
) -> None:
    client, followed = Decided(), []

    async def until_done(_client: Any, wishes: Any, timeout_s: float, quiet: bool) -> None:
        followed.append((len(wishes), timeout_s, quiet))

    monkeypatch.setattr(rebalance, "_wait_until_done", until_done)
    targets: dict[Any, Any] = {("s", n): ("b", "a") for n in reversed(range(33))}
    plan = replace(PLAN, by=by, targets=targets)
    image = an_image(a_stream(*(a_partition(partition=n) for n in range(33))))
    assert await rebalance._do(client, image, plan, wait, 7.0, False) == ["s/0: no"]  # type: ignore[arg-type]
    assert [len(batch) for batch in client.batches] == sizes
    assert followed == [(count, 7.0, False) for count in waited]
    wishes = [wish for batch in client.batches for wish in batch]
    assert [wish.partition for wish in wishes] == list(range(33))
    assert {(w.stream, w.uid, w.replicas, w.reason) for w in wishes} == {("s", "u1", ("b", "a"), MoveReason.REBALANCED)}
    nothing = await rebalance._do(client, image, replace(plan, targets={}), True, 7.0, False)  # type: ignore[arg-type]
    assert (nothing, len(followed)) == ([], len(waited)), "nothing to be waited for"


@pytest.mark.parametrize(
    ("more", "done"),
    [({}, True), ({"target": ("a", "b", "d")}, False), ({"joining": "d", "copy_epoch": 6}, False),
     ({"status": PartitionStatus.CANDIDATE_FOUND, "candidate": "a", "leader": "", "moved_for": MoveReason.LEADERSHIPS}, False),
     ({"moved_for": MoveReason.LEADERSHIPS}, True), ({"leader": "b", "moved_for": MoveReason.LEADERSHIPS}, False),
     ({"leader": "b"}, True), ({"status": PartitionStatus.OFFLINE, "leader": ""}, True)],
)  # fmt: skip
async def test_rebalance_wait_ends_when_no_requested_move_is_in_progress(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], done: bool
) -> None:
    asked: list[Any] = []

    async def follow(client: Any, concerns: Any, is_done: Any, timeout_s: float, *, quiet: bool) -> None:
        asked.append((client, concerns, is_done, timeout_s, quiet))

    monkeypatch.setattr(rebalance, "follow", follow)
    wish = rebalance.ReplicaMove(stream="s", uid="u1", partition=0, replicas=("b",))
    gone = rebalance.ReplicaMove(stream="s", uid="gone", partition=0, replicas=("b",))
    await rebalance._wait_until_done("client", [wish, gone], 3.0, True)  # type: ignore[arg-type]
    ((client, concerns, is_done, timeout_s, quiet),) = asked
    assert (client, timeout_s, quiet) == ("client", 3.0, True)
    assert is_done(an_image(a_stream(a_partition(**more)))) == done
    assert [concerns(replace(moving(), partition=n, uid=uid)) for n, uid in ((0, "u1"), (1, "u1"), (0, "u2"), (0, "gone"))] == [
        True, False, False, True,
    ]  # fmt: skip


# ---- drain, alter, move --------------------------------------------------------------------------------------------------
def test_node_drain_prints_three_names_of_streams_that_no_other_node_can_host() -> None:
    def image(count: int, **facts: Any) -> ClusterImage:
        streams = (replace(a_stream(), name=f"s{n}", uid=f"u{n}", subject=f"x{n}") for n in range(count))
        made = an_image(None, "abcd").with_streams(streams)
        leaving = replace(made.nodes["b"], leaving=True)
        other = replace(made.nodes["d"], **facts)
        return replace(made, nodes=made.nodes.set("b", leaving).set("d", other))

    assert _reasons_that_replicas_stay(image(5), "b") == [], "a, c and d"
    end = ": more replicas than the 2 other nodes that may take them. They stay until there are more nodes"
    assert _reasons_that_replicas_stay(image(5, weight=0.0), "b") == [f"s0, s1, s2 and 2 more{end}"]
    assert _reasons_that_replicas_stay(image(3, fenced=True), "b") == [f"s0, s1, s2{end}"]
    assert _reasons_that_replicas_stay(image(4, leaving=True), "b") == [f"s0, s1, s2 and 1 more{end}"]
    assert _reasons_that_replicas_stay(image(4, fenced=True), "d") == [], "it holds nothing"


def test_stream_alter_replicas_prints_only_changed_partitions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    stream = a_stream(a_partition(), replace(MOVING, partition=1))
    alter._show(stream, stream, 3, {}, True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "a", "b", "c", "a", "b", "d"] in lines
    assert not any(words[:1] == ["0"] for words in lines)
    assert lines[-1] == ["1", "partition", "changes;", "nothing", "was", "done:", "this", "is", "a", "dry", "run"]
    alter._show(a_stream(), a_stream(), 3, {}, False)
    assert capsys.readouterr().out == "0 partitions change; the new number of replicas is 3\n"
    config = StreamConfig(read_only=True, retention_age_s=60.0)
    settled = replace(a_stream(), config=config, config_version=7)
    alter._show(a_stream(), settled, None, {"read_only": True, "retention_age_s": 60.0}, False)
    changes = "retention_age_s: 0.0 -> 60.0\nread_only: False -> True\n"
    assert capsys.readouterr().out == f"{changes}s is at version 7 of its settings\n"
    alter._show(settled, settled, None, {"read_only": True}, True)
    same = "nothing changes: the settings already have these values. "
    assert capsys.readouterr().out == f"{same}s would be at version 7 of its settings\n"


def test_partition_move_is_complete_when_the_partition_or_stream_has_no_move() -> None:
    stream = a_stream(a_partition(), replace(MOVING, partition=1))
    assert has_no_move(None, "u1", 1)
    assert has_no_move(stream, "u2", 1), "it was made anew"
    assert not has_no_move(stream, "u1", 1)
    assert has_no_move(stream, "u1", 0)


def test_rebalance_plan_json_contains_all_moves_and_the_replica_counts() -> None:
    assert json.loads(json.dumps(rebalance._json(PLAN, True))) == {
        "dry_run": True, "by": "replicas", "moves": MOVES, "fewest": 1, "moved": 2, "stuck": [["t", 7]],
        "before": {"a": 1234, "c": 1}, "held": {"a": 1233, "b": 1},
    }  # fmt: skip
    assert Phase.COPIES.value == "copies"
