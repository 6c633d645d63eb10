"""Tables on a terminal of 80 columns: cells are folded and never truncated. Numbers remain whole."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from sidecar.cli import status
from sidecar.cli.output import print_table, table


def printed(what: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined]


def partition(stream: str, *nodes: str) -> dict[str, Any]:
    figures = {"leader_epoch": 123, "epoch": 4567, "high_watermark": 123_456_789, "newest_offset": 123_456_790}
    service = {"service": "counter", "role": "LEADER", "position": 123_456_789, "lag": 0, "emitted_end": 12_345}
    service |= {"output_count": 12_345, "problem": "OUTPUT_CONFLICT"}
    return {
        "stream": stream,
        "partition": 12,
        "status": "CANDIDATE_FOUND",
        "leader": nodes[0],
        "replicas": list(nodes),
        "isr": list(nodes),
        "lag": dict.fromkeys(nodes, 123_456),
        "services": {node: [service] for node in nodes},
        "gone_services": {"n1": [{**dict.fromkeys(("service", "problem"), "dead"), "role": "GONE", "position": 8, "lag": 7}]},
        **figures,
    }


def test_status_tables_fit_into_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    node = {"node_id": "n1", "fenced": False, "answers": True, "metadata_leader": True, "controller": True, "leaving": False}
    node |= {"incarnation": 12, "rack": "a-rack-in-the-cellar", "leads": 1000, "version": "0.1.0", "unknown_streams": []}
    status._show(
        {
            "nodes": [node],
            "metadata_leader": "n1",
            "partitions": [partition("orders", "n1", "n2", "n3")],
            "waiting": [],
            "verdict": {"word": "OK", "reasons": []},
            "moves": [],
        }
    )
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "\u2026" not in text
    words = set(text.split())
    assert {"partition", "replicas", "position", "problem", "incarnation"} <= words, "no head is cut"
    assert {"GONE", "dead"} <= words
    assert {"orders/12", "123/4567", "123456789", "123456790", "n1", "n2", "n3"} <= words, text


@pytest.mark.parametrize("length", [30, 64, 200])
def test_table_folds_a_long_name_without_losing_characters(length: int) -> None:
    name = "".join(chr(ord("a") + number % 26) for number in range(length))
    text = printed(table(("partition", "status", "replicas"), [(name, "ONLINE", "n1 n2 n3")], 80, folds=("replicas",)))
    assert max(map(len, text.splitlines())) <= 80
    assert "\u2026" not in text
    assert name in "".join(line.strip().split(" ")[0] for line in text.splitlines())


def test_table_too_wide_for_the_terminal_folds_the_chosen_column() -> None:
    row = ("orders/0", "a" * 20, " ".join(f"node-{number}" for number in range(12)))
    text = printed(table(("partition", "subject", "replicas"), [row], 80, folds=("replicas",)))
    assert "orders/0" in text
    assert "a" * 20 in text
    assert set(row[2].split()) <= set(text.split())


def test_table_with_a_folded_column_keeps_the_words_of_its_heading_whole() -> None:
    made = table(["at the destination", "b"], [["x", "y" * 20]], 34, folds=["at the destination"])
    assert [column.min_width for column in made.columns] == [len("destination"), 20]
    lines = printed(made, 34).splitlines()
    assert any("destination" in line for line in lines), lines
    assert max(map(len, lines)) <= 34
    wide = table(["at the destination", "b"], [["x", "y"]], 80, folds=["at the destination"])
    assert printed(wide, 80).splitlines()[1].split() == ["at", "the", "destination", "b"]


@pytest.mark.parametrize("text", ["shop.[red].x", "bad [/x] tag", "a:smile:b", "[bold", "\\[x]"])
def test_table_prints_texts_with_brackets_and_colons_as_they_are(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("subject", text), [("x", text)], title=text)
    assert capsys.readouterr().out.count(text) == 3
