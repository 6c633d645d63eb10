"""Test the answers of a node to the dashboard: worst partitions first, in pages, in slices, and with a rate limit."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import NO_QUOTA, SessionTimes, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterRules, StreamImage
from liftpy.core.observe.history import History, question
from liftpy.core.observe.page_model import (
    FIRST,
    MOST_ROWS,
    PROBLEMS,
    checked_row,
    checked_stream,
    names_question,
    partitions_question,
    stream_about,
    stream_rows,
    streams_question,
)
from sidecar.runtime import tasks
from sidecar.status import answers as module
from sidecar.status.answers import PageAnswers, SharedAnswers, question_of
from tests.each import each
from tests.only_in import only_in
from tests.unit.status.fake_reporter import a_reporter, a_worker, gathered


def a_state(partition: int = 0, isr: tuple[str, ...] = ("n1", "n2", "n3"), **more: Any) -> PartitionState:
    return PartitionState(
        partition=partition,
        replicas=("n1", "n2", "n3"),
        isr=isr,
        leader=more.pop("leader", "n1"),
        leader_epoch=4,
        epoch=5,
        **more,
    )


def shown_worker(stream: str, partition: int, **more: Any) -> Any:
    worker = a_worker(stream, partition, **more)
    worker.log.log_start_offset = 3
    return worker


def a_cluster(*workers: Any, **streams: tuple[PartitionState, ...]) -> Any:
    reporter = a_reporter(list(workers))
    config = StreamConfig(min_isr=2)
    reporter.group.image.streams = {
        name: StreamImage(name=name, uid=f"u-{name}", subject=f"s.{name}", config=config, partitions=states)
        for name, states in streams.items()
    }
    return reporter


def the_answers(reporter: Any, **more: Any) -> PageAnswers:
    async def gather(_: Any) -> Any:
        return gathered_now

    gathered_now = gathered(reporter)
    return PageAnswers(History(), lambda: reporter, gather, **more)


def asked(answers: PageAnswers, what: dict[str, Any]) -> Any:
    kind = next(iter(what))
    return json.loads(asyncio.run(answers.answer(json.dumps(what).encode())))[kind]


def test_dashboard_partitions_answer_lists_the_worst_partitions_first_in_pages_without_gaps() -> None:
    workers = [shown_worker("s", number) for number in range(7)] + [shown_worker("t", 0)]
    for number, isr in ((5, ("n1",)), (3, ("n1", "n2"))):
        workers[number].state = a_state(number, isr)
    workers[6].storage_failed = True
    reporter = a_cluster(*workers)
    reporter.partitions.failed[PartitionKey("a", "u", 9)] = "no log"
    answers = the_answers(reporter)
    seen, after = [], FIRST
    while True:
        page = asked(answers, partitions_question(after=after, limit=2))
        seen += [(row["stream"], row["partition"], PROBLEMS[row["urgency"]]) for row in page["rows"]]
        assert (page["count"], page["problems"]) == (9, 4)
        if not page["more"]:
            break
        last = page["rows"][-1]
        after = last["urgency"], last["stream"], last["partition"]
        answers = the_answers(reporter)  # rests not: another second
    assert seen[:4] == [("a", 9, "damaged"), ("s", 6, "damaged"), ("s", 5, "under min_isr"), ("s", 3, "under-replicated")]
    assert seen[4:] == [("s", 0, ""), ("s", 1, ""), ("s", 2, ""), ("s", 4, ""), ("t", 0, "")]
    only = asked(the_answers(reporter), partitions_question("t"))
    assert [row["stream"] for row in only["rows"]] == ["t"]


def test_dashboard_partition_row_has_state_and_metrics_of_the_replica() -> None:
    [row] = asked(the_answers(a_cluster(shown_worker("s", 4))), partitions_question())["rows"]
    assert (row["role"], row["leader"], row["epoch"], row["isr"]) == ("LEADER", "n1", 1, ["n1", "n2", "n3"])
    assert (row["start"], row["newest"], row["high_watermark"], row["log_bytes"]) == (3, 29, 26, 20)
    assert (row["records_in"], row["bytes_in"], row["lag_records"], row["lag_s"], row["waiting_acks"]) == (
        10,
        1000,
        27,
        24.0,
        22,
    )
    kept = checked_row(row)
    assert kept is not None
    assert (kept["isr"], kept["problem"]) == ("n1 n2 n3", "")
    for name in row:
        assert checked_row({**row, name: {"x": 1}}) is None, name
    assert checked_row({**row, "urgency": 99}) is None
    assert checked_row({**row, "records_in": 10**400}) is None, "no number of a log, and no float"
    assert checked_row({**row, "lag_s": float("nan")}) is None, "JSON has no NaN, so a browser could not read the page"
    assert checked_row([row]) is None


def test_dashboard_partitions_answer_of_a_controller_includes_leaderless_and_remote_partitions() -> None:
    offline = a_state(1, ("n3",), status=PartitionStatus.OFFLINE, leader="")
    reporter = a_cluster(shown_worker("s", 0), s=(a_state(0), offline, a_state(2)))
    page = asked(the_answers(reporter), partitions_question("s"))
    assert [(row["partition"], row["role"], PROBLEMS[row["urgency"]]) for row in page["rows"]] == [
        (1, "", "offline"),
        (0, "LEADER", ""),
    ]
    reporter.group.is_controller = False
    assert [row["partition"] for row in asked(the_answers(reporter), partitions_question("s"))["rows"]] == [0]


def test_dashboard_partitions_answer_of_a_stream_lists_settings_that_differ_from_the_defaults() -> None:
    about = asked(the_answers(a_cluster(shown_worker("s", 0), s=(a_state(0),))), partitions_question("s"))["about"]
    assert (about["subject"], about["partitions"], about["replicas"]) == ("s.s", 1, 3)
    assert about["settings"] == [["min_isr", "2"]]
    assert stream_about([None, {"subject": 7}, about])["settings"] == [{"setting": "min_isr", "value": "2"}]


def test_dashboard_services_answer_has_totals_or_one_row_per_instance() -> None:
    worker = shown_worker("s", 3)
    figures = {"service": "sums", "role": "LEADER", "failing": False, "position": 5, "lag": 1, "snapshot": 2, "problem": ""}
    gone = {**figures, "service": "old", "role": "GONE", "ending": "diverged", "problem": "differs"}
    worker.services = SimpleNamespace(
        report=lambda: [figures], left_services=lambda: [gone], services_that_ended=list, known=True
    )
    reporter = a_cluster(worker, shown_worker("_groups", 0))
    rows = asked(the_answers(reporter), names_question("services"))["rows"]
    assert [(row["service"], row["instances"], row["gone"], row["problem"]) for row in rows] == [
        ("old", 0, 1, "diverged: differs"),
        ("sums", 1, 0, ""),
    ]
    [row] = asked(the_answers(reporter), names_question("services", "sums"))["rows"]
    assert (row["stream"], row["partition"], row["state"], row["position"]) == ("s", 3, "leader", 5)
    assert asked(the_answers(reporter), {"services": {"service": 7}}) is None


def test_dashboard_partition_rows_of_several_nodes_merge_to_the_row_of_the_newest_leader() -> None:
    leader = asked(the_answers(a_cluster(shown_worker("s", 0))), partitions_question("s"))["rows"][0]
    follower = {**leader, "role": "FOLLOWER", "newest": 1}
    deposed = {**leader, "epoch": 0, "newest": 99}
    for order in (("n1", "n2", "n3"), ("n3", "n2", "n1")):
        said = {"n1": [leader], "n2": [follower, "no row"], "n3": [deposed]}
        rows = stream_rows({node: said[node] for node in order} | {"n4": "nothing"})
        assert [(row["told_by"], row["newest"]) for row in rows] == [("n1", 29)]
    elected = {**follower, "epoch": 2, "leader": "n2"}
    assert stream_rows({"n1": [leader], "n2": [elected]})[0]["leader"] == "n2", "who knows of a newer epoch"


def test_dashboard_streams_answer_lists_the_worst_first_and_recomputes_only_changed_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reporter = a_cluster(a=(a_state(0), a_state(1)), b=(a_state(0, ("n1",)), a_state(1, ("n1", "n2"))), c=())
    made = []
    summary = module._summary
    monkeypatch.setattr(module, "_summary", lambda stream: made.append(stream.name) or summary(stream))
    answers = the_answers(reporter)
    page = asked(answers, streams_question(limit=2))
    assert [(row["stream"], row["under_min_isr"], row["under_replicated"]) for row in page["rows"]] == [
        ("b", 1, 2),
        ("a", 0, 0),
    ]
    assert (page["more"], page["count"]) == (True, 3)
    assert [checked_stream(row)["problem"] for row in page["rows"]] == ["under min_isr", ""]  # type: ignore[index]
    assert checked_stream({**page["rows"][0], "stream": 7}) is None
    last = page["rows"][-1]
    rest = asked(the_answers(reporter), streams_question((last["urgency"], last["stream"])))
    assert [row["stream"] for row in rest["rows"]] == ["c"]
    before = len(made)
    answers._shared = SharedAnswers()
    asked(answers, streams_question())
    assert len(made) == before


def test_dashboard_events_answer_of_a_controller_omits_operator_requests() -> None:
    events = [
        {"kind": kind, "index": number, "number": 0}
        for number, kind in enumerate(("election", "request", "isr_changed", "request"))
    ]
    reporter = a_cluster()

    async def told(payload: bytes) -> Any:
        assert json.loads(payload) == {"after": [7, 1]}
        return {"events": events, "more": True, "index": 3}

    reporter.group.events = told
    said = asked(the_answers(reporter), {"events": {"after": [7, 1]}})
    assert [event["kind"] for event in said["events"]] == ["election", "isr_changed"]
    assert said["after"] == [3, 0], "it goes on behind what was left out"

    async def nothing(payload: bytes) -> None:
        return None

    reporter.group.events = nothing
    assert asked(the_answers(reporter), {"events": {}}) is None


@each(
    "what",
    [
        {"partitions": 7}, {"partitions": {"after": [1]}}, {"partitions": {"limit": 0}}, {"partitions": {"limit": MOST_ROWS + 1}},
        {"partitions": {"stream": 7}}, {"streams": {"after": [1, 2]}}, {"streams": {"limit": "x"}}, {"partitions": {"limit": True}},
        {"partitions": {"after": [99, "s", 0]}},
    ],
)  # fmt: skip
def test_dashboard_request_with_invalid_arguments_gets_no_answer(what: dict[str, Any]) -> None:
    assert asked(the_answers(a_cluster(shown_worker("s", 0))), what) is None


def test_dashboard_partitions_answer_fits_into_a_nats_message() -> None:
    answers = the_answers(a_cluster(*(shown_worker("s", number) for number in range(40))), most_bytes=lambda: 4000)
    page = asked(answers, partitions_question())
    assert (0 < len(page["rows"]) < 40, page["more"], page["count"]) == (True, True, 40)


def test_status_request_decoder_of_unknown_content_returns_none() -> None:
    assert question_of(json.dumps(question(1, 7)).encode()) == ("history", {"step": 1, "after": 7})
    for payload in (b"", b"{", b'{"glance": true}', b'{"history": 1, "x": 2}', b"[1]", b'{"history"', b"\xff"):
        assert question_of(payload) is None


async def test_status_scan_of_many_partitions_yields_to_the_event_loop_every_2_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def later() -> float:
        now[0] += 0.001
        return now[0]

    only_in(monkeypatch, tasks, "time", monotonic=later)
    turns = [0]

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    assert [item async for item in module._in_slices(range(1000))] == list(range(1000))
    beside.cancel()
    assert turns[0] > 10


def test_dashboard_groups_answer_lists_all_groups_or_describes_one() -> None:
    rows = [{"group": name, "lag_s": lag_s} for name, lag_s in (("bills", 1.0), ("mails", 2.0))]
    one = {
        "rows": rows[:1],
        "members": [{"member": "m1"}],
        "positions": [],
        "history": [{"at": 30, "lag_records": 4, "lag_s": 1.0}],
    }
    reporter = a_cluster()
    reporter.group_rows, reporter.group_rows_of = lambda: iter(rows), lambda name: one if name == "bills" else {}
    everything = asked(the_answers(reporter), {"groups": {"group": "", "limit": 5}})
    assert ([row["group"] for row in everything["rows"]], everything["members"]) == (["mails", "bills"], [])
    assert asked(the_answers(reporter), {"groups": {"group": "bills", "limit": 5}}) == {**one, "more": False}


def test_dashboard_settings_answer_prefers_values_of_the_cluster_metadata_to_the_settings_file() -> None:
    reporter = a_cluster()
    image = reporter.group.image
    image.feature_level, image.rules, image.default_quota = 5, ClusterRules("shop", False), NO_QUOTA
    image.session_times = SessionTimes(5000, 3000, 2000, 900, 1)
    answers = the_answers(reporter)
    answers.settings = lambda: [{"name": "elections", "value": True, "source": "file"}, {"name": "rack", "value": "a"}]
    rows = {row["name"]: row for row in asked(answers, {"settings": True})}
    assert next(iter(rows)) == "rack"
    assert rows["elections"] == {
        "name": "elections", "value": False, "source": "cluster", "default": True, "applies": "cluster",
    }  # fmt: skip
    assert (rows["namespace"]["value"], rows["namespace"]["source"]) == ("shop", "cluster")
    assert rows["replication.session_s"] == {
        "name": "replication.session_s", "value": 5.0, "source": "cluster", "default": 2.0, "applies": "cluster",
    }  # fmt: skip
    assert (rows["replication.lease_s"]["value"], rows["replication.lease_s"]["default"]) == (3.0, 0.75)
