"""Text of ``liftpy status``, of a placement plan and of ``liftpy log``, compared word by word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from liftpy.client.placement_plans import PlacementPlan, PlannedNode
from liftpy.core.log.log import Log
from liftpy.core.wire.batch import parse_batch
from sidecar.cli import status, stream_settings
from sidecar.cli.main import main
from sidecar.disk.files import DirectoryStorage
from tests.unit.log.log_model import SMALL, batch


def words(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that say anything, rules left out, one blank between two words."""
    lines = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    return [line for line in lines if line and not set(line) <= set("─- ")]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


# ---- status --------------------------------------------------------------------------------------------------------------
def node(node_id: str, **more: Any) -> dict[str, Any]:
    return {
        "node_id": node_id, "fenced": False, "leaving": False, "answers": True, "incarnation": 7, "rack": "r1", "leads": 2,
        "metadata_leader": False, "controller": True, "version": "1.2", "unknown_streams": [],
    } | more  # fmt: skip


PARTITION: dict[str, Any] = {
    "stream": "orders", "partition": 3, "status": "ONLINE", "leader": "a", "leader_epoch": 5, "epoch": 9, "replicas": ["a", "b", "c"],
    "isr": ["a", "b"], "high_watermark": 10, "newest_offset": 12, "lag": {"a": 0, "b": 2, "c": None}, "services": {},
}  # fmt: skip
FOUND: dict[str, Any] = {
    "verdict": {"word": "OK", "reasons": []}, "metadata_leader": "a", "nodes": [node("a")], "partitions": [PARTITION], "moves": [],
    "waiting": [],
}  # fmt: skip
HEAD = [
    "cluster: OK", "nodes", "node state incarnation rack leads metadata version", "a live 7 r1 2 member 1.2", "metadata leader: a",
]  # fmt: skip
TABLE = [
    "partitions",
    "partition status leader epochs replicas ISR HW newest lag",
    "orders/3 ONLINE a 5/9 a b c a b 10 12 b:2 c:?",
]


def test_status_text_lists_the_nodes_before_the_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    status._show(FOUND)
    assert words(capsys) == [*HEAD, *TABLE]


@pytest.mark.parametrize(
    ("more", "state", "role"),
    [
        ({"fenced": True, "answers": False}, "fenced", "member"),
        ({"answers": False}, "silent", "member"),
        ({"leaving": True, "controller": False}, "live, drained", ""),
        ({"metadata_leader": True}, "live", "leader"),
        ({"fenced": True, "leaving": True}, "fenced, drained", "member"),
    ],
)
def test_status_text_shows_the_state_of_each_node(
    more: dict[str, Any], state: str, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status._show(FOUND | {"nodes": [node("a", **more)]})
    assert words(capsys)[3] == " ".join(f"a {state} 7 r1 2 {role} 1.2".split())


def test_status_text_shows_unplaced_streams_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = [{"stream": "s", "why": "two more nodes"}, {"stream": "t", "why": "racks"}]
    told = ["stream s: insufficient-nodes: two more nodes", "stream t: insufficient-nodes: racks"]
    status._show(FOUND | {"waiting": waiting})
    assert words(capsys) == [*HEAD, *told, *TABLE]
    status._show(FOUND | {"waiting": waiting, "partitions": []})
    assert words(capsys) == [*HEAD, *told]
    status._show(FOUND | {"partitions": [], "metadata_leader": ""})
    assert words(capsys)[4:] == [
        "metadata leader: none", "no streams yet: liftpy stream create NAME --subject SUBJECT",
    ]  # fmt: skip
    status._show(FOUND | {"partitions": [PARTITION | {"leader": "", "high_watermark": None, "newest_offset": None}]})
    assert words(capsys)[-1] == "orders/3 ONLINE none 5/9 a b c a b ? ? a:0 b:2 c:?"


def test_status_text_shows_each_move_and_each_service(capsys: pytest.CaptureFixture[str]) -> None:
    move = {
        "stream": "orders", "partition": 3, "phase": "copies", "out": "c", "into": "d", "target": ["a", "b", "d"],
        "left_bytes": 1234567, "why": "drain",
    }  # fmt: skip
    counts = {"service": "sums", "role": "active", "active_version": 2, "version": 3, "position": 8, "lag": 1, "problem": ""}
    emits = counts | {
        "service": "mails",
        "emitted_end": 4,
        "output_count": 6,
        "problem": "poison at 8",
        "active_version": 0,
        "version": 0,
    }
    gone = counts | {"service": "gone", "role": "gone", "active_version": 3, "lag": None}
    services = {"services": {"a": [counts], "b": [emits]}, "gone_services": {"a": [gone], "c": [gone]}}
    status._show(FOUND | {"moves": [move], "partitions": [PARTITION | services]})
    assert words(capsys)[len(HEAD) + len(TABLE) :] == [
        "moves",
        "partition phase from to target bytes left why",
        "orders/3 copies c d a b d 1,234,567 drain",
        "services",
        "service partition node role version position lag outputs problem",
        "sums orders/3 a active 2 (code 3) 8 1",
        "gone orders/3 a gone 3 8 None",
        "mails orders/3 b active 8 1 4/6 poison at 8",
    ]


# ---- placement -----------------------------------------------------------------------------------------------------------
def plan(**more: Any) -> PlacementPlan:
    nodes = tuple(
        PlannedNode(node_id=n, rack=r, weight=1.0, replicas=5, leaders=1, fenced=False)
        for n, r in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    made: dict[str, Any] = {
        "first_partition": 4,
        "replicas": (("a", "b"), ("b", "c")),
        "nodes": nodes,
        "notes": (),
        "waits": "",
    }
    return PlacementPlan(**(made | more))


def test_placement_plan_text_shows_partitions_nodes_and_racks(capsys: pytest.CaptureFixture[str]) -> None:
    stream_settings.show_plan(plan(notes=("d is full", "e is away")), "orders", False)
    shown = words(capsys)
    assert shown[:7] == [
        "note: d is full", "note: e is away", "orders", "partition leader replicas", "4 a a b", "5 b b c", "nodes",
    ]  # fmt: skip
    assert shown[7:12] == [
        "node leaders replicas", "a 2 (+1) 6 (+1)", "b 2 (+1) 7 (+2)", "c 1 (+0) 6 (+1)", "racks",
    ]  # fmt: skip
    assert shown[12:] == [
        "rack leaders replicas", "x 4 (+2) 13 (+3)", "y 1 (+0) 6 (+1)", "nothing was done: this is a dry run",
    ]  # fmt: skip
    nowhere = tuple(PlannedNode(node_id=n, rack="", weight=1.0, replicas=0, leaders=0, fenced=False) for n in "abc")
    stream_settings.show_plan(plan(nodes=nowhere), "orders", False)
    assert "racks" not in words(capsys)
    stream_settings.show_plan(plan(waits="two more nodes"), "orders", False)
    assert words(capsys) == ["stream orders would wait, insufficient-nodes: two more nodes"]


# ---- log -----------------------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "streams" / "s-1" / "0"
    log, _ = Log.open(DirectoryStorage(path), SMALL)
    for end, count, epoch in ((0, 2, 1), (2, 3, 4)):
        log.append(batch(end, count, epoch, timestamp_ns=1_700_000_000_000_000_000 + end * 1_000_000))
    log.raise_high_watermark(3)
    log.close()
    return path


def of_log(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with pytest.raises(SystemExit):
        main(["log", *arguments])
    return words(capsys)


def test_log_dump_text_contains_segments_checkpoint_and_leader_epochs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = folder.glob("*.log")
    size = segment.stat().st_size
    first = [
        "segment bytes records offsets newest index state",
        f"{segment.name} {size} 5 0..4 2023-11-14T22:13:20.002+00:00 missing intact",
    ]
    rest = ["checkpoint: high watermark 3, log start 0, leader epoch 0", "leader epochs (epoch: first offset): 1: 0, 4: 2"]
    assert of_log(capsys, "dump", str(folder)) == [*first, *rest]
    (folder / "notes.txt").write_text("mine")
    at = parse_batch(segment.read_bytes()).header.size_bytes
    batches = [
        f"{segment.name} position=0 base_offset=0 last_offset=1 records=2 leader_epoch=1 size_bytes={at} codec=none"
        " timestamp_ns=1700000000000000000",
        f"{segment.name} position={at} base_offset=2 last_offset=4 records=3 leader_epoch=4 size_bytes={size - at} codec=none"
        " timestamp_ns=1700000000002000000",
    ]
    assert of_log(capsys, "dump", "--batches", str(folder)) == [*first, *rest, "other files: notes.txt", *batches]
    assert of_log(capsys, "verify", str(folder)) == ["no damage: 1 segment, 5 records, log end offset 5"]
    segment.write_bytes(segment.read_bytes()[:-5])
    row = f"{segment.name} {size - 5} 2 0..1 2023-11-14T22:13:20.000+00:00 missing torn tail at {at}"
    assert row in of_log(capsys, "dump", str(folder))
    monkeypatch.setenv("COLUMNS", "40")
    shown = of_log(capsys, "dump", str(folder))
    assert len(shown[-1]) > 40, "a fault is one line, however wide the terminal"
    assert shown[-1] == "committed records are missing: HW 3, the log ends before 2"


def test_log_verify_text_lists_the_first_fault_and_then_all_other_faults(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment,) = folder.glob("*.log")
    segment.write_bytes(segment.read_bytes()[:-5])
    (folder / "leader-epochs").write_bytes(b"x")
    shown = of_log(capsys, "verify", str(folder))
    assert shown[0].startswith(f"first damage: {segment.name}: torn tail at position ")
    assert shown[1:] == [
        "also: leader-epochs: damaged (rebuilt when the log is opened)",
        "also: committed records are missing: HW 3, the log ends before 2",
    ]
