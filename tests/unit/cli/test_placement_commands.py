"""Placement options from the command line to the state machine and back, without a NATS server."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from liftpy.client.placement_plans import assignment_from_json
from liftpy.core.metadata.placement import POLICIES
from liftpy.errors import ConfigError, UnavailableError
from sidecar.cli import node, rebalance, status, stream
from tests.unit.cli.state_machine_commands import Commands, client_of
from tests.unit.metadata.cluster_driver import Driver


class Placements(Commands):
    """Six nodes, two on each rack."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.driver = Driver()
        for number in range(6):
            self.driver.register(f"n{number}", rack=f"r{number // 2}")
        client = client_of(self.driver)
        monkeypatch.setattr(client.admin, "_wait_for_leader", AsyncMock())
        monkeypatch.setattr(client.admin, "node_status", AsyncMock(side_effect=UnavailableError("no node answers")))
        super().__init__(client, (stream, node, status, rebalance), monkeypatch, capsys)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Placements:
    return Placements(monkeypatch, capsys)


def replicas(run: Placements, name: str = "orders") -> list[list[str]]:
    return [list(p.replicas) for p in run.driver.fsm.image.streams[name].partitions]


CREATE = ("stream", "create", "orders", "--subject", "shop.orders")


@pytest.mark.parametrize("policy", POLICIES)
def test_stream_create_dry_run_prints_the_replicas_that_stream_create_assigns(run: Placements, policy: str) -> None:
    run("stream", "create", "before", "--subject", "before", "--partitions", "5")
    words = (*CREATE, "--partitions", "7", "--placement", policy)
    planned = run.json(*words, "--dry-run")
    assert "orders" not in run.driver.fsm.image.streams
    made = run.json(*words)
    assert [entry["replicas"] for entry in planned["partitions"]] == replicas(run)
    assert [entry["id"] for entry in planned["partitions"]] == list(range(7))
    assert (made["placement"], made["status"], made["replicas"]) == (policy, "placed", 3)
    image = run.driver.fsm.image
    assert {name: tally["replicas"] for name, tally in planned["nodes"].items()} == dict(image.replica_counts)
    assert {name: tally["leaders"] for name, tally in planned["nodes"].items()} == {
        name: image.leader_counts.get(name, 0) for name in image.nodes
    }
    assert sum(tally["new_replicas"] for tally in planned["racks"].values()) == 21
    assert sum(tally["new_leaders"] for tally in planned["racks"].values()) == 7
    assert planned["racks"]["r0"]["replicas"] == image.replica_counts["n0"] + image.replica_counts["n1"]


def test_stream_create_with_an_assignment_file_places_replicas_on_the_listed_nodes(run: Placements, tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text(json.dumps([{"id": n, "replicas": [f"n{n}", "n5"]} for n in range(3)]))
    planned = run.json(*CREATE, "--assignment", str(file), "--dry-run")
    file.write_text(json.dumps(planned["partitions"]))  # what a dry run prints is an assignment
    run.json(*CREATE, "--assignment", str(file))
    assert replicas(run) == [["n0", "n5"], ["n1", "n5"], ["n2", "n5"]]
    file.write_text(json.dumps([{"id": 3, "replicas": ["n4", "n0"]}]))
    assert run.json("stream", "add-partitions", "orders", "--assignment", str(file), "--dry-run")["partitions"][0]["id"] == 3
    run.json("stream", "add-partitions", "orders", "--assignment", str(file))
    assert replicas(run)[3:] == [["n4", "n0"]]


def test_stream_create_with_several_errors_in_the_assignment_file_prints_all_errors(run: Placements, tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    run.driver.fence("n3")
    file.write_text(
        '[{"id": 1, "replicas": ["n0", "n9"]}, {"id": 2, "replicas": ["n0", "n0"]}, {"id": 3, "replicas": ["n3", "n1"]}]'
    )
    code, said = run(*CREATE, "--assignment", str(file))
    assert code == 2
    for rule in (
        "must start with id 0 (entry 0)",
        "unknown node id: n9 in assigned partition with id: 1 (entry 0)",
        "duplicate node ids found in assigned partition with id: 2 (entry 1)",
        "node id: n3 is not live",
    ):
        assert rule in " ".join(said.split())
    file.write_text('[{"id": 0, "replicas": ["n3", "n1"]}]')
    assert run(*CREATE, "--assignment", str(file))[0] == 2
    assert run(*CREATE, "--assignment", str(file), "--allow-offline")[0] == 0
    assert run.driver.partition().leader == "n1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Cannot read the replica assignment"),
        ("{}", "not a list"),
        ("[1, {}]", "entry 0: no object; entry 1: id is not a partition number (0 to 2147483647)"),
        (
            '[{"id": 0, "replicas": "n1"}, {"id": true, "replicas": []}]',
            "entry 0: replicas is no list of node ids; entry 1: id is no",
        ),
        ('[{"id": 0, "replicas": [1.5]}, {"id": 1, "replicas": [], "x": 1}]', "entry 1: unknown x"),
        ('[{"id": 99999999999, "replicas": []}]', "entry 0: id is not a partition number (0 to 2147483647)"),
        ('[{"id": 0, "replicas": ["n1"], "replicas": ["n2"]}]', "'replicas' occurs twice"),
        ('[{"id": 0, "replicas": [], "y": 1, "x": 2}]', "entry 0: unknown x, y"),
        ('[{"replicas": []}]', "entry 0: id is not a partition number"),
        ('[{"id": 2147483648, "replicas": []}]', "entry 0: id is not a partition number"),
        ('[{"id": -1, "replicas": []}]', "entry 0: id is not a partition number"),
        ('[{"id": 0}]', "entry 0: replicas is no list of node ids"),
        ('[{"id": 0, "replicas": ["n1", true]}]', "entry 0: replicas is no list of node ids"),
        ('[{"id": 0, "replicas": ["n1", "\\u00e4"]}]', "entry 0: replicas is no list of node ids"),
    ],
)
def test_assignment_file_with_wrong_format_is_rejected(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        assignment_from_json(text)
    assert says in str(raised.value)


def test_assignment_file_accepts_numeric_node_ids() -> None:
    text = '[{"id": 0, "replicas": [5001, "a"]}, {"id": 2147483647, "replicas": ["b"]}]'
    assert assignment_from_json(text) == ((0, ("5001", "a")), (2147483647, ("b",)))


def test_stream_without_enough_nodes_is_shown_with_the_reason_in_each_command(run: Placements) -> None:
    code, said = run(*CREATE, "--replicas", "8", "--partitions", "3")
    assert code == 0
    assert "waits (insufficient-nodes): not enough nodes: 2 more needed" in said
    assert "insufficient-nodes: not enough nodes: 2 more needed" in run("stream", "show", "orders")[1]
    shown = run.json("stream", "show", "orders")
    assert (shown["status"], shown["waiting"], shown["partitions"]) == ("insufficient-nodes", 3, [])
    assert shown["waits"] == "not enough nodes: 2 more needed"
    assert "3 (insufficient-nodes)" in run("stream", "list")[1]
    assert "stream orders: insufficient-nodes: not enough nodes: 2 more needed" in run("status")[1]
    assert [waits["stream"] for waits in run.json("status")["waiting"]] == ["orders"]
    assert "waits for nodes" in run("stream", "add-partitions", "orders", "--partitions", "5")[1]
    assert run.json("stream", "create", "x", "--subject", "x", "--replicas", "8", "--dry-run")["waits"].endswith(
        "2 more needed"
    )
    assert "would wait" in run("stream", "create", "x", "--subject", "x", "--replicas", "8", "--dry-run")[1]


def test_stream_create_with_contradictory_placement_options_is_rejected(run: Placements, tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    file.write_text('[{"id": 0, "replicas": ["n1"]}]')
    for words in (
        ("--placement", "rack", "--assignment", str(file)),
        ("--allow-offline",),
        ("--assignment", str(file), "--partitions", "2"),
        ("--placement", "manual"),
    ):
        assert run(*CREATE, *words)[0] == 2
    file.write_text("[]")
    assert "The file assigns no partitions. Add at least one." in run(*CREATE, "--assignment", str(file))[1]
    assert run("stream", "add-partitions", "orders")[0] == 2


def test_node_set_weight_and_set_rack_override_the_node_settings_until_auto_is_set(run: Placements) -> None:
    assert run.json("node", "set-weight", "n1", "2.5")["weight"] == 2.5
    assert run.json("node", "set-rack", "n1", "r9") == {
        "node": "n1", "weight": 2.5, "weight_by_hand": True, "rack": "r9", "rack_by_hand": True,
    }  # fmt: skip
    assert "weight 2.5 (by hand), rack r9 (by hand)" in run("node", "set-weight", "n1", "2.5")[1]
    assert run.json("node", "set-weight", "n1", "auto")["weight_by_hand"] is False
    assert run.json("node", "set-rack", "n1", "auto")["rack_by_hand"] is False
    assert run("node", "set-weight", "n1", "much")[0] == 2
    assert run("node", "set-weight", "n1", "--", "-1")[0] == 2
    assert run("node", "set-weight", "n7", "1")[0] == 1
