"""Test the Grafana dashboards: existing metrics, descriptions and units."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sidecar.status.metric_names import HISTOGRAM, TABLE

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "grafana"
BOARDS = sorted(FOLDER.glob("*.json"))
_PARTS = ("_bucket", "_count", "_sum")
UNITS = {"none", "cps", "cpm", "Bps", "bytes", "s", "percentunit"}
"""Of Grafana: numbers, counts a second and a minute, bytes a second, bytes, seconds, parts of one."""


def targets(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_grafana_dashboards_exist_for_cluster_node_and_stream() -> None:
    assert [path.stem for path in BOARDS] == ["cluster", "node", "stream"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_grafana_expressions_use_existing_metrics_and_labels(path: Path) -> None:
    board = json.loads(path.read_text())
    for text in targets(board):
        names = re.findall(r"liftpy_(\w+)", text)
        assert names or "process_cpu_seconds_total" in text, text
        for name in names:
            bare = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
            row = TABLE.get(name) or TABLE[bare]
            assert (row.kind == HISTOGRAM) == (name != bare), f"{name} in {text}"
            counts = row.kind == "counter" or name != bare
            assert counts == bool(re.search(rf"rate\(liftpy_{name}\b", text)), f"counters grow, gauges do not: {text}"
            known = {*row.labels, "job", "instance", "le", *(("stream",) if row.by_stream else ())}
            asked = re.findall(r"(\w+)=~?\"", re.search(rf"liftpy_{name}(\{{[^}}]*\}})?", text)[1] or "")  # type: ignore[index]
            assert set(asked) <= known, text
        grouped = {label for group in re.findall(r"by \(([^)]*)\)", text) for label in group.split(", ")}
        assert grouped <= {"le", "instance", *(label for row in TABLE.values() for label in (*row.labels, "stream"))}, text


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_grafana_expressions_show_one_cluster_of_several(path: Path) -> None:
    board = json.loads(path.read_text())
    names = [one["name"] for one in board["templating"]["list"]]
    asked = [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query" and one["name"] != "job"]
    for text in [*targets(board), *asked]:
        assert not re.findall(r'\b(?:liftpy|process)_\w+\b(?!\{job="\$job")', text), text
    assert names.index("job") < min((names.index(name) for name in names if name in ("node", "stream")), default=len(names))


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_grafana_panels_have_descriptions_and_do_not_overlap(path: Path) -> None:
    board = json.loads(path.read_text())
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
        for runbook in re.findall(r"docs/runbooks/[\w-]+\.md", panel["description"]):
            assert (FOLDER.parents[1] / runbook).exists()
    for text in targets(board):
        for name in re.findall(r"\$(\w+)", text):
            assert name == "__rate_interval" or name in variables, text
