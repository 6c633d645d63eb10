"""``liftpy top``: model of the summaries, frames at any size, keys, and the words of the verdict, in a terminal of 80x24."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from liftpy.core.observe.cluster_health import DEGRADED, OK, UNAVAILABLE, check_cluster
from liftpy.core.observe.cluster_model import ClusterMonitor, Model, NodeRow
from liftpy.core.observe.node_summary import LATENCY_S, MOST_NODES, NodeSummary, percentile, summary_from_json
from liftpy.errors import UnavailableError
from sidecar.cli.top import SORTS, SummaryPoller, View, as_object, keys, render, view_after_key
from tests.each import each
from tests.flat_client import FlatClient

FRAMES = Path(__file__).parent / "frames"
RUNBOOKS = Path(__file__).resolve().parents[3] / "docs" / "runbooks"
NODES = {"n1": "live", "n2": "live", "n3": "live"}
CLUSTER: dict[str, Any] = {"is_controller": True, "nodes": NODES, "index": 40, "streams": 7}


def a_glance(node: str, tick: int = 0, **more: Any) -> NodeSummary:
    """As of second ``tick`` of a node that takes 1,000 records a second."""
    acks = [0] * (len(LATENCY_S) + 1)
    acks[3], acks[6] = 950 * tick, 50 * tick
    return NodeSummary(**{
        "node": node, "version": "0.1.0", "incarnation": 4, "uptime_s": 90.0 + tick, "metadata_leader": "n1", "records_in": 1000 * tick,
        "bytes_in": 100_000 * tick, "records_out": 2500 * tick, "bytes_out": 250_000 * tick, "acks": tuple(acks),
        "loop_lag": (10 * tick, *(0,) * len(LATENCY_S)), "leads": 3, "replicas": 9, "disk_free": 0.62, "queued": 0.01,
        **CLUSTER, **more,
    })  # fmt: skip


def watched(ticks: int = 5, **more: dict[str, Any]) -> ClusterMonitor:
    """Three nodes for so many seconds; ``more``: of a node, what is different; n4 is none."""
    watching, records = ClusterMonitor("liftpy"), 0
    for tick in range(ticks):
        records += 1000 * (1 + tick % 4)
        watching.add_summaries(
            100.0 + tick, {node: a_glance(node, tick, **{"records_in": records, **more.get(node, {})}) for node in NODES}
        )
    return watching


def text_of(model: Model, width: int = 80, height: int = 24, view: View | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=False)
    console.print(render(model, width, height, view or View()))
    shown: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in shown.splitlines()]


# ---- glances ------------------------------------------------------------------------------------------------------------
def test_node_summary_after_encode_and_decode_is_equal_and_at_most_1024_bytes() -> None:
    told = a_glance("n1", 1_000_000, nodes={f"node-{n:02}": "live" for n in range(3)}, offline=2, lag_s=1.5, services_blocked=1)
    encoded = told.encode()
    assert len(encoded) <= 1024
    assert summary_from_json(json.loads(encoded)["glance"]) == told
    assert json.loads(NodeSummary(node="a").encode()) == {"glance": {"node": "a"}}


@each(
    "more",
    [
        {"leads": "3"}, {"leads": True}, {"leads": -1}, {"lag_s": "x"}, {"acks": [1] * 18}, {"acks": [1.5]}, {"acks": "abc"},
        {"nodes": {"n": 4}}, {"nodes": {str(n): "live" for n in range(MOST_NODES + 1)}}, {"nats_connected": 1}, {"version": 3},
        {"what_is_new": 1}, {"leads": 10**400}, {"lag_s": 10**400}, {"acks": [10**400]}, {"members": {"n": 10**400}},
    ],
)  # fmt: skip
def test_node_summary_field_of_a_wrong_type_gets_the_default_value(more: dict[str, Any]) -> None:
    assert summary_from_json({"node": "n1", **more}) == NodeSummary(node="n1")


@pytest.mark.parametrize(
    ("counts", "part", "wanted"),
    [
        ((), 0.5, None),
        ((0, 0), 0.5, None),
        ((10,), 0.5, 0.000125),
        ((0, 10), 0.99, 0.00025 + 0.00025 * 0.99),
        ((90, 0, 10), 0.99, 0.0005 + 0.0005 * 0.9),
        ((0,) * len(LATENCY_S) + (5,), 0.5, LATENCY_S[-1]),
    ],
)
def test_percentile_of_histogram_buckets_equals_the_percentile_of_prometheus(
    counts: tuple[int, ...], part: float, wanted: float | None
) -> None:
    found = percentile(counts, part)
    assert found == (pytest.approx(wanted) if wanted is not None else None)


# ---- the verdict ----------------------------------------------------------------------------------------------------------
@each(
    ("more", "word", "said"),
    [
        ({}, OK, ""),
        ({"n2": {"offline": 2, "index": 41}}, UNAVAILABLE, "2 partitions offline"),
        ({"n2": {"offline": 2, "index": 39}}, OK, ""),
        ({"n2": {"offline": 2, "electing": 1, "index": 41, "is_controller": False}}, OK, ""),
        ({"n2": {"electing": 1, "index": 41}}, UNAVAILABLE, "1 partition without a leader"),
        ({"n3": {"under_min_isr": 1}, "n2": {"under_min_isr": 2}}, UNAVAILABLE, "3 partitions under min_isr"),
        ({"n1": {"metadata_leader": ""}}, UNAVAILABLE, "the metadata group has no leader"),
        ({"n3": {"under_replicated": 1}}, DEGRADED, "1 partition with replicas out of sync"),
        ({"n3": None}, DEGRADED, "n3 does not answer"),
        ({"n1": {"nodes": {"n1": "live", "n2": "live", "n3": "fenced"}, "index": 41}}, DEGRADED, "n3 sent no heartbeat"),
        ({"n1": {"nodes": {"n1": "live", "n2": "live", "n3": "drained"}, "index": 41}}, OK, ""),
        (
            {"n2": {"nats_connected": False, "nats_problem": "nats://h:1: refused"}},
            UNAVAILABLE,
            "n2 cannot reach NATS at nats://h:1: refused",
        ),
        ({"n2": {"failed": 1}}, DEGRADED, "n2 has a failed log"),
        ({"n2": {"services_blocked": 1}}, DEGRADED, "n2 has a service that is blocked"),
        ({"n2": {"disk_free": 0.149}, "n1": {"disk_free": 0.15}}, DEGRADED, "n2 has nearly no disk space left"),
        ({"n2": {"queued": 0.8}}, DEGRADED, "n2 rejects publishes"),
        (
            {"n1": {"metadata_leader": "", "leaderless_since": "12:03:10", "index": 41}},
            UNAVAILABLE,
            "State of 12:03:10 UTC, may be stale",
        ),
        ({node: {"nats_connected": False} for node in NODES}, UNAVAILABLE, "n1, n2, n3 cannot reach NATS"),
        ({"n1": {"waiting_streams": ["s waits for nodes: 1 of 3"], "index": 41}}, UNAVAILABLE, "stream s waits for nodes"),
        (
            {"n2": {"services_ended": 1, "services_diverged": 1, "ended_services": ["s/0: bank diverged: x"]}},
            DEGRADED,
            "service next to n2 diverged: s/0: bank diverged: x",
        ),
        (
            {"n2": {"services_ended": 1, "ended_services": ["s/0: bank silent: x"]}},
            DEGRADED,
            "n2 lost a service: s/0: bank silent",
        ),
        (
            {"n2": {"differing_services": ["s/0: bank: the state at 40 differs"]}},
            DEGRADED,
            "service next to n2 diverged: s/0: bank: the state at 40 differs",
        ),
        ({"n2": {"stuck_groups": ["g has committed nothing"]}}, DEGRADED, "group g has committed nothing"),
        ({"n2": {"damaged": 1}}, DEGRADED, "n2 has damaged files"),
        ({"n2": {"repairs": ["repaired s/0 offset 4 from n1 on n2"]}}, DEGRADED, "repaired s/0 offset 4 from n1 on n2"),
        ({"n2": {"version": "0.2.0"}}, DEGRADED, "nodes run different versions: 0.1.0, 0.2.0"),
    ],
)
def test_top_verdict_of_a_cluster_has_one_reason_with_an_existing_runbook(
    more: dict[str, dict[str, Any] | None], word: str, said: str
) -> None:
    glances = {
        node: None if node in more and more[node] is None else a_glance(node, **(more.get(node) or {})) for node in NODES
    }
    verdict = check_cluster(glances)
    assert verdict.word == word
    assert [reason.text for reason in verdict.reasons if said in reason.text] or not said
    assert len(verdict.reasons) == bool(said)
    assert all((RUNBOOKS / f"{reason.runbook}.md").is_file() for reason in verdict.reasons)


# ---- the model --------------------------------------------------------------------------------------------------------------
def row_of(model: Model, node: str) -> NodeRow:
    return next(row for row in model.rows if row.node == node)


def test_top_rates_and_percentiles_are_computed_from_two_answers() -> None:
    watching = ClusterMonitor("ns")
    watching.add_summaries(10.0, {"n1": a_glance("n1", 1)})
    assert row_of(watching.model(), "n1").records_in_s is None, "one look shows no rate"
    watching.add_summaries(12.0, {"n1": a_glance("n1", 5), "n2": a_glance("n2", 5)})
    model = watching.model()
    row = row_of(model, "n1")
    assert (row.records_in_s, row.bytes_in_s, row.records_out_s) == (2000, 200_000, 5000)
    assert row.ack_p99_s == pytest.approx(0.008 + 0.008 * 0.8)
    assert (model.records_in_s, model.streams, model.metadata_leader) == (2000, 7, "n1")
    assert row_of(model, "n3").state == "silent", "a controller names it"


# ---- frames -----------------------------------------------------------------------------------------------------------------
def troubled() -> Model:
    watching = watched(70)
    late = {"under_replicated": 2, "lag_s": 4.25, "lag_records": 12_345, "disk_free": 0.1}
    for tick in (70, 71):
        watching.add_summaries(
            100.0 + tick, {"n1": a_glance("n1", 2 * tick, **late), "n2": a_glance("n2", tick, under_min_isr=1), "n3": None}
        )
    return watching.model()


@pytest.mark.parametrize(
    ("name", "model", "width", "height", "view"),
    [
        ("well_80x24", lambda: watched(70).model(), 80, 24, View()),
        ("well_200x50", lambda: watched(70).model(), 200, 50, View(sort="name")),
        ("troubled_80x24", troubled, 80, 24, View(sort="lag", selected=1)),
        ("node_80x24", troubled, 80, 24, View(page="node", sort="name")),
        ("help_80x24", lambda: watched(2).model(), 80, 24, View(page="help")),
        ("nothing_80x24", lambda: ClusterMonitor("liftpy").model(), 80, 24, View()),
    ],
)
def test_top_frame_equals_the_stored_frame(name: str, model: Callable[[], Model], width: int, height: int, view: View) -> None:
    shown = "\n".join(text_of(model(), width, height, view)) + "\n"
    path = FRAMES / f"top_{name}.txt"
    if os.environ.get("LIFTPY_WRITE_FRAMES"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_top_requests_groups_only_while_the_groups_page_is_shown() -> None:
    class Admin:
        def __init__(self) -> None:
            self.asked: list[str] = []

        async def node_ids(self) -> list[str]:
            return ["n1", "n2"]

        async def node_glance(self, node: str, timeout_s: float) -> NodeSummary:
            return a_glance(node, 1, nodes={"n1": "live", "n2": "live"})

        async def ask_node(self, node: str, asked: bytes, timeout_s: float) -> dict[str, Any]:
            self.asked.append(node)
            row = {"group": "billing", "kind": "group", "problem": "no members", "members": 0, "partitions": 3, "lag_records": 1200,
                   "lag_s": 63.0, "streams": "s", "unknown": 0, "in_flight": 0}  # fmt: skip
            return {"groups": {"rows": [row] if node == "n2" else []}}

    admin = Admin()
    looking = SummaryPoller(SimpleNamespace(admin=admin), ClusterMonitor("liftpy"))  # type: ignore[arg-type]
    asyncio.run(looking.poll())
    assert (admin.asked, looking.listed) == ([], [])
    looking.shows = "groups"
    asyncio.run(looking.poll())
    assert sorted(admin.asked) == ["n1", "n2"]
    assert [(row["group"], row["coordinator"], row["problem"]) for row in looking.listed] == [("billing", "n2", "no members")]


@given(
    st.integers(1, 240),
    st.integers(1, 60),
    st.sampled_from(["", "node", "help"]),
    st.sampled_from(SORTS),
    st.integers(0, 300),
    st.booleans(),
)
def test_top_frame_with_any_content_fits_the_terminal_size(
    width: int, height: int, page: str, sort: str, nodes: int, reverse: bool
) -> None:
    watching = ClusterMonitor("a" * 30)
    for tick in (1, 2):
        watching.add_summaries(
            tick, {f"{'n' * (n % 40)}{n}": a_glance(f"n{n}", tick * 10**9) if n % 7 else None for n in range(nodes)}
        )
    frame = render(watching.model(), width, height, View(page=page, sort=sort, reverse=reverse))
    assert len(frame.renderables) == height
    assert max(line.cell_len for line in frame.renderables) <= width  # type: ignore[union-attr]
    assert len(text_of(watching.model(), width, height, View(page=page, sort=sort))) <= height


def test_top_keys_change_sort_order_page_and_filter_as_documented() -> None:
    def after(keys: str, view: View | None = None, count: int = 3) -> View:
        view = view or View()
        for key in keys:
            view = view_after_key(view, key, count)
        return view

    assert [after("s" * n).sort for n in range(5)] == ["rate", "lag", "p99", "name", "rate"]
    assert (after("r").reverse, after("rr").reverse) == (True, False)
    assert (after("q").ended, after("x").ended) == (True, False)
    assert (after("?").page, after("??").page, after("\r").page, after("\r\r").page, after("\r\x1b").page) == (
        "help",
        "",
        "node",
        "",
        "",
    )
    assert [after("j" * n).selected for n in range(4)] == [0, 1, 2, 2]
    assert after("jjkkk").selected == 0
    assert (after("/nq").filter, after("/nq").ended, after("/nq\r").typing, after("/nq\x7f").filter) == (
        "nq",
        False,
        False,
        "n",
    )
    assert (after("/nq\x1b").filter, after("/n\r\x1b").filter, after("/\t").filter) == ("", "", "")


# ---- over NATS ------------------------------------------------------------------------------------------------------------------
class Nodes(FlatClient):
    """A client of a cluster whose metadata leader may be away."""

    def __init__(self) -> None:
        self.named: list[str] | None = None
        self.asked: list[str] = []

    async def node_ids(self) -> list[str]:
        if self.named is None:
            raise UnavailableError("the metadata group has no leader")
        return self.named

    async def node_glance(self, node: str, timeout_s: float) -> NodeSummary | None:
        self.asked.append(node)
        if node == "n2":
            raise UnavailableError("silent")
        return a_glance(node, len(self.asked))


def test_top_requests_node_names_until_known_and_then_requests_each_node() -> None:
    nodes = Nodes()
    looking = SummaryPoller(nodes, ClusterMonitor("ns"), iter(range(9)).__next__)  # type: ignore[arg-type]

    async def looked() -> None:
        await looking.poll()
        assert not looking.knows_any
        nodes.named = ["n1", "n2"]
        await looking.poll()
        assert looking.knows_any
        nodes.named = None
        await looking.poll()

    asyncio.run(looked())
    assert nodes.asked == ["n1", "n2", "n1", "n2", "n3"], "n1 names n3"
    told = as_object(looking.watching.model())
    assert [(row["node"], row["state"]) for row in told["rows"]] == [("n1", "live"), ("n2", "silent"), ("n3", "live")]
    assert json.loads(json.dumps(told))["verdict"]["reasons"][0]["runbook"] == "node-down"


def test_top_keys_of_a_standard_input_without_events_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[str] = []

    async def watch() -> None:
        with keys(pressed.append):
            await asyncio.sleep(0)

    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        asyncio.run(watch())
    assert pressed == []


@pytest.mark.parametrize("typed", [b"", b"/n1"], ids=str)
def test_top_ends_at_the_end_of_its_input_and_not_at_a_byte_that_is_not_utf_8(
    typed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the user typed the filter, each end of the input added a q to it, and used a whole core."""
    view, pressed = View(), list[str]()
    read, write = os.pipe()

    def press(key: str) -> None:
        nonlocal view
        pressed.append(key)
        view = view_after_key(view, key, 3)

    async def watch() -> None:
        with keys(press):
            os.write(write, typed + b"\xe1")
            await asyncio.sleep(0.01)
            os.write(write, b"\xc3")
            await asyncio.sleep(0.01)
            os.write(write, b"\xa4")
            while "\xe4" not in pressed:
                await asyncio.sleep(0)
            assert not view.ended
            os.close(write)
            for _ in range(20):
                await asyncio.sleep(0)

    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        asyncio.run(watch())
    assert (view.ended, view.filter.count("q")) == (True, 0)


# ---- in a terminal --------------------------------------------------------------------------------------------------------------
PROGRAM = """
import asyncio
from sidecar.cli import top
from liftpy.core.observe.cluster_model import ClusterMonitor
from sidecar.cli.top import View
from tests.unit.cli.test_top import Nodes
nodes = Nodes()
nodes.named = ["n1", "n2", "n3"]
top.EVERY_S = 0.05
asyncio.run(top._watch(nodes, "liftpy", View(), once=False, as_json=False))
print("ended")
"""


def until(master: int, text: str, seen: str = "") -> str:
    """What has come when ``text`` is there."""
    deadline = time.monotonic() + 20
    while text not in seen:
        ready, _, _ = select.select([master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{text!r} has not come; {seen[-2000:]!r}"
        seen += os.read(master, 65536).decode("utf-8", "replace")
    return seen


def test_top_command_in_a_terminal_runs_until_the_key_q() -> None:
    child, master = pty.fork()
    if child == 0:  # pragma: no cover
        os.environ |= {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
    try:
        ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        until(master, "DEGRADED")
        until(master, "rate")
        os.write(master, b"s")
        until(master, "s sort: lag")
        os.write(master, b"?")
        until(master, "the other way round")
        os.write(master, b"q")
        assert "\x1b[?1049l" in until(master, "ended"), "the screen is given back"
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child = 0
    finally:
        os.close(master)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
