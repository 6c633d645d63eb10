"""Test the status report of partitions over NATS and on the loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from liftpy.core.base.instruments import Instruments
from liftpy.core.log.flush import FlushScheduler
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.observe.history import question, rows_of
from liftpy.core.partition.reads import ReadBudget
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.wire.frames import decode_presence
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import ConfigError
from sidecar.disk.flush_thread import FlushThread, FlushTimes
from sidecar.runtime import clock
from sidecar.runtime.settings import NodeSettings
from sidecar.status import http
from sidecar.status.report import Reporter
from sidecar.status.status_api import PAGE_PARTITIONS, StatusHandler
from sidecar.transport.liveness import QUESTION
from tests.conformance.two_workers import TwoWorkers
from tests.unit.status.fake_bus import Bus
from tests.unit.status.test_status_page import Reporter as Paged
from tests.until import until

TRAFFIC = ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "reconnects")


def a_link(name: str, number: int, *, connected: bool = True) -> Any:
    cuts, overflow = SimpleNamespace(lost_messages=4, unknown=5), SimpleNamespace(backlog_bytes=6)
    return SimpleNamespace(
        name=name,
        is_connected=connected,
        connected_url=None,
        max_payload=1 << 20,
        unsent_bytes=number,
        stats={what: number * 10 + at for at, what in enumerate(TRAFFIC)},
        errors=Counter({"slow": number}),
        waiting_bytes=1,
        most_waiting_bytes=2,
        bursts=3,
        disconnect_loss=cuts,
        overflow=overflow,
        dropped_unread=7,
    )


def node_tools(settings: NodeSettings, links: Any, counters: dict[str, int]) -> Any:
    """Tools of a node, with the parts that a reporter uses."""
    return SimpleNamespace(
        settings=settings,
        incarnation=4,
        links=links,
        counters=counters,
        instruments=Instruments(),
        inflight=NodeInflight(),
        memory_budget=MemoryBudget(),
        reads=SimpleNamespace(budget=ReadBudget()),
        flush_runner=FlushThread(FlushScheduler()),
        flush_times=FlushTimes(),
        copy_limit=CatchupThrottle(),
        state_memory=NodeStateMemory(),
        clocks=SimpleNamespace(check=lambda: SimpleNamespace(skew_ns=0, why="")),
    )


NO_COORDINATORS: Any = SimpleNamespace(running=None)


def a_reporter(
    tmp_path: Path,
    *workers: Any,
    coordinators: Any = NO_COORDINATORS,
    controllers: ControllerList = ControllerList(),  # noqa: B008  immutable
    is_controller: bool = True,
) -> Reporter:
    class Partitions(list[Any]):
        failed: ClassVar[dict[str, str]] = {}

    link = a_link("ingest", 1)
    image = SimpleNamespace(index=5, controllers=controllers)
    group: Any = SimpleNamespace(leader="n1", image=image, held={}, counters={}, ticks=dict, is_controller=is_controller)
    links: Any = SimpleNamespace(all=lambda: [link], replication=link, ingest=link)
    descriptors = {"open": 1}
    scrub: Any = SimpleNamespace(report=lambda: {"findings": 4})
    settings = NodeSettings("n1", tmp_path, namespace="ns", controllers=("n1",))
    tools = node_tools(settings, links, {})
    return Reporter(
        tools, links, tools.clocks, group, Partitions(workers), scrub, coordinators, ControllerMetrics(), lambda: descriptors
    )  # type: ignore[arg-type]


async def test_status_report_of_a_leader_has_its_offsets_its_followers_and_its_counts(tmp_path: Path) -> None:
    async with TwoWorkers() as t:
        worker = t.nodes["n1"].worker
        t.metadata("n1", 1)
        await t.until(lambda: worker.replica.phase == "LEADER_READY", "n1 leads")
        answers = [t.publish(b"x" * 10) for _ in range(3)]
        await t.until(lambda: all(t.answer(inbox) for inbox in answers), "all publishes are acknowledged")
        await t.until(
            lambda: worker.replica.snapshot(clock.now_ns()).followers[0].lag_records == 0, "the follower has everything"
        )
        reporter = a_reporter(tmp_path, worker)
        report = reporter.report()
        (row,) = report["partitions"]
        assert json.loads(json.dumps(report)) == report, "the report is JSON as it is"
        assert [row[name] for name in ("stream", "partition", "role", "leader", "leader_epoch")] == [
            "orders",
            0,
            "LEADER",
            "n1",
            1,
        ]
        assert (row["log_start_offset"], row["newest_offset"], row["flushed_offset"], row["high_watermark"]) == (0, 2, 2, 2)
        assert (row["replicas"], row["isr"], row["lease"]) == (["n1", "n2"], ["n1", "n2"], True)
        assert {name: (one["position"], one["in_isr"]) for name, one in row["followers"].items()} == {"n2": (2, True)}
        assert (row["records_in"], row["bytes_in"] >= 30, row["waiting_acks"], row["storage_failed"]) == (3, True, 0, False)
        assert (row["message_ids_state"], row["producers_state"], row["dropped"]) == ("whole", "open", {})
        pages = [reporter.page(after, 1) for after in (("", -1), ("nothing", 7), ("orders", 0))]
        assert [(len(page["partitions"]), page["more"]) for page in pages] == [(1, False), (1, False), (0, False)]


@pytest.mark.parametrize(
    ("controllers", "is_controller", "shown", "differs"),
    [
        (ControllerList(), True, ["n1"], False),
        (ControllerList(), False, [], False),
        (ControllerList(("n2", "n3"), index=4), False, ["n2", "n3"], True),
        (ControllerList(("n1",), index=4), True, ["n1"], False),
    ],
)
def test_status_report_names_only_controllers_of_the_metadata_group(
    tmp_path: Path, controllers: ControllerList, is_controller: bool, shown: list[str], differs: bool
) -> None:
    """The settings of a node that is no controller may name other nodes."""
    report = a_reporter(tmp_path, controllers=controllers, is_controller=is_controller).report()["controllers"]
    assert (report["voters"], report["differ_from_settings"]) == (shown, differs)


def test_status_report_of_a_node_with_running_group_coordinators_has_their_groups_and_lags(tmp_path: Path) -> None:
    lags = SimpleNamespace(by_label={"bills": 1}, by_group={"bills": 2})
    running = SimpleNamespace(
        report=lambda: [{"partition": 0}], group_rows=lambda: iter(["row"]), group_rows_of=lambda name: {name: 3}, lags=lags
    )
    coordinators = a_reporter(tmp_path, coordinators=SimpleNamespace(running=running))
    found = (coordinators.coordinators(), [*coordinators.group_rows()], coordinators.group_rows_of("bills"))
    assert found == ([{"partition": 0}], ["row"], {"bills": 3})
    assert (coordinators.group_lags(), coordinators.lags_by_group()) == ({"bills": 1}, {"bills": 2})
    for without in (a_reporter(tmp_path), a_reporter(tmp_path, coordinators=SimpleNamespace(running=None))):
        assert (without.coordinators(), [*without.group_rows()]) == ([], [])
        assert set(map(len, without.group_rows_of("bills").values())) == {0}
        assert (without.group_lags(), without.lags_by_group()) == ({}, {})


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Bus, StatusHandler, Callable[[bytes, bytes], bytes | None]]:
    bus, made = Bus(), StatusHandler(NodeSettings("n1", tmp_path))
    made.listen(bus, Subjects("ns"), (InboxRule(("_INBOX.",)), InboxRule(("ns.inbox.n2.",))))  # type: ignore[arg-type]

    async def asking(reply: bytes, payload: bytes) -> None:
        bus.listening["ns.status.n1"](b"ns.status.n1", reply, payload, b"")
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    def ask(reply: bytes, payload: bytes) -> bytes | None:
        bus.sent.clear()
        asyncio.run(asking(reply, payload))
        if not bus.sent:
            return None
        assert bus.sent[0][0] == reply.decode()
        return bus.sent[0][1]

    return bus, made, ask


def test_status_presence_request_before_a_report_exists_is_answered(asked: Any) -> None:
    _, made, ask = asked
    assert abs((decode_presence(ask(b"_INBOX.a", QUESTION)) or 0) - time.time_ns()) < 60e9, "with its wall time"
    assert ask(b"ns.inbox.n2.1", QUESTION).startswith(b"yes ")
    assert ask(b"_INBOX.a", b"") is None, "there is nothing to say yet"
    assert ask(b"shop.orders", QUESTION) is None, "a node publishes nothing where others listen for data [A5]"
    made.reporter = Paged()
    assert ask(b"shop.orders", b"") is None
    assert ask(b"_INBOX.a", QUESTION).startswith(b"yes "), "whoever asks may ask often: no report"


async def test_status_settings_reload_request_with_another_payload_or_reply_subject_is_ignored(asked: Any) -> None:
    bus, handler, _ = asked

    async def on_reload() -> dict[str, Any]:
        return {"applied": ["log_level"], "wait": []}

    handler.on_reload = on_reload

    async def told(reply: bytes, payload: bytes) -> Any:
        bus.sent.clear()
        bus.listening["ns.control.settings.n1"](b"ns.control.settings.n1", reply, payload, b"")
        await asyncio.sleep(0)
        return json.loads(bus.sent[0][1]) if bus.sent else None

    assert await told(b"_INBOX.x", b'{"reload": true}') == {"applied": ["log_level"], "wait": []}
    assert "error" in await told(b"_INBOX.x", b"")
    assert await told(b"orders", b'{"reload": true}') is None


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["x" * 201], "'" + "x" * 40 + "'…(201 bytes) is no directory of a stream."),
        (["orders-é"], "'orders-é' is no directory of a stream."),
        ([""], "'' is no directory of a stream."),
        ([f"s-00000{number}-1" for number in range(101)], "101 directories are too many. Remove at most 100 at a time."),
    ],
)
async def test_status_request_to_remove_invalid_data_directories_is_rejected_with_a_reason(
    names: list[str], says: str, asked: Any
) -> None:
    bus, _, _ = asked
    bus.listening["ns.control.settings.n1"](
        b"ns.control.settings.n1", b"_INBOX.x", json.dumps({"remove_data": names}).encode(), b""
    )
    await asyncio.sleep(0)
    (_, answer), *_ = bus.sent
    assert json.loads(answer)["error"].startswith(says)


@pytest.mark.parametrize(
    ("payload", "first"),
    [
        (b"", ("a", 0)),
        (b'{"after": ["a", 499]}', ("a", 500)),
        (b'{"after": ["a"]}', ("a", 0)),
        (b'{"after": ["a", "x"]}', ("a", 0)),
        (b'{"after": ["a", -2]}', ("a", 0)),
        (b'{"behind": 1}', ("a", 0)),
        (b"[1]", ("a", 0)),
        (b"\xff", ("a", 0)),
    ],
)
def test_status_request_over_nats_returns_the_page_after_the_given_partition(
    payload: bytes, first: tuple[str, int], asked: Any
) -> None:
    _, made, ask = asked
    made.reporter = Paged()
    partitions = json.loads(ask(b"_INBOX.a", payload))["partitions"]
    assert (partitions[0]["stream"], partitions[0]["partition"]) == first
    assert len(partitions) == PAGE_PARTITIONS


def test_status_page_of_a_node_with_thousands_of_failed_logs_fits_into_a_message(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, made, ask = asked
    made.reporter = Paged()
    monkeypatch.setattr(Paged, "failed", {f"a/{number}": "STORAGE: " + "x" * 200 for number in range(6000)})
    answer = ask(b"_INBOX.a", b"")
    assert len(answer) <= bus.max_payload
    assert len(json.loads(answer)["partitions"]) == PAGE_PARTITIONS
    assert json.loads(answer)["failed_partitions"]["a/0"].startswith("STORAGE: ")


def test_status_page_above_the_message_size_lists_fewer_partitions_and_sets_its_more_field(asked: Any) -> None:
    bus, made, ask = asked
    made.reporter = Paged()
    whole = ask(b"_INBOX.a", b"")
    bus.max_payload = len(whole)
    assert ask(b"_INBOX.a", b"") == whole, "what just fits is whole"
    bus.max_payload = len(whole) - 1
    half = json.loads(ask(b"_INBOX.a", b""))
    assert (len(half["partitions"]), half["more"]) == (PAGE_PARTITIONS // 2, True)
    bus.max_payload = 1
    assert json.loads(ask(b"_INBOX.a", b""))["partitions"] == [], "an answer there is, however small the bound"


def test_status_request_for_the_metrics_history_returns_rows(asked: Any) -> None:
    _, made, ask = asked
    for second in (5_000, 5_001):
        made.history.add_values(second, [float(number) for number in range(24)])
    answer = json.loads(ask(b"_INBOX.a", json.dumps(question(1, 5_000)).encode()))
    rows = rows_of(answer["history"])
    assert rows is not None
    assert (rows.first, rows.count, rows.columns[23][0]) == (5_001, 1, 23.0)
    for payload in (b'{"history": {"step": 7}}', b'{"history": 1}'):
        assert json.loads(ask(b"_INBOX.a", payload)) == {"history": None}
    assert ask(b"shop.orders", json.dumps(question(1, 5_000)).encode()) is None


# ---- on the port -----------------------------------------------------------------------------------------------------------
async def get(url: str, text: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    answer = b""
    with contextlib.suppress(ConnectionResetError):  # turned away before what was sent was read
        async with asyncio.timeout(30):
            answer = await reader.read()
    writer.close()
    return answer


async def opened(tmp_path: Path, port: int = 0) -> StatusHandler:
    made = StatusHandler(NodeSettings("n1", tmp_path, status_port=port))
    await made.open_page()
    return made


async def test_status_http_page_listens_on_loopback_until_closed(tmp_path: Path) -> None:
    made = await opened(tmp_path)
    assert made.url.startswith("http://127.0.0.1:")
    request = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n"
    assert (await get(made.url, request)).startswith(b"HTTP/1.1 503 ")
    made.reporter = Paged()  # type: ignore[assignment]
    head, _, body = (await get(made.url, request)).partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    assert b"Content-Length: %d" % len(body) in head
    assert len(json.loads(body)["partitions"]) == PAGE_PARTITIONS
    only_head = await get(made.url, request.replace(b"GET", b"HEAD"))
    assert only_head.endswith(b"\r\n\r\n")
    assert b"200 OK" in only_head
    port = int(made.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"Cannot listen on status_port {port}"):
        await opened(tmp_path, port)
    await made.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await made.close()


async def test_status_http_page_without_a_configured_port_opens_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "start_server", None)
    made = StatusHandler(NodeSettings("n1", tmp_path))
    await made.open_page()
    assert made.url == ""
    await made.close()


async def test_status_http_page_at_its_connection_limit_closes_silent_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 2)
    made = await opened(tmp_path)
    host, _, port = made.url.removeprefix("http://").partition(":")
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    await until(lambda: made.serving.connections >= 2)
    assert b"503" in await get(made.url, request), "the oldest silent one makes room"
    for _, writer in silent:
        writer.close()
    await until(lambda: not made.serving.connections)
    assert b"503" in await get(made.url, request), "their places are free again"
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.01)
    assert await get(made.url, b"GET / HTTP") == b"", "half a request is not waited for without end"
    await made.close()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /status HTTP/1.1\r\nHost: LocalHost:99\r\n\r\n", 200),
        (b"GET /status HTTP/1.1\r\nX: 1\r\nhost:127.0.0.1\r\n\r\n", 200),
        (b"GET /status HTTP/1.1\r\nhost:page.example:8222\r\n\r\n", 200),
        (b"GET /status HTTP/1.1\r\nhost:[::1]:8222\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: localhost:evil\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\n\r\n", 421),
        (b"GET /status HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n\r\n", 403),
        (b"GET /status HTTP/1.1\r\nHost: localhost\r\nsec-fetch-site:same-site\r\nSec-Fetch-Mode: cors\r\n\r\n", 403),
        (b"GET /status HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n\r\n", 200),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/1.1 x\r\nHost: localhost\r\n\r\n", 405),
        (b"GET\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /other HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /status?count=0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)
async def test_status_http_page_accepts_only_loopback_and_configured_hostnames(
    request_text: bytes, status: int, tmp_path: Path
) -> None:
    made = StatusHandler(NodeSettings("n1", tmp_path, dashboard_hostnames=("page.example",)))
    made.listen(Bus(), Subjects("ns"), ())  # type: ignore[arg-type]
    made.reporter = Paged()  # type: ignore[assignment]
    answer = made._respond(request_text)
    answer = answer if isinstance(answer, bytes) else await answer
    assert isinstance(answer, bytes)
    assert int(answer.split()[1]) == status
