"""Test the samples of a node: problems of its state become events on the node."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.lag import GroupLag
from liftpy.core.observe.node_events import NodeEvents
from sidecar.status import sampler
from sidecar.status.sampler import MOST_WATCHED, SAMPLES_PER_CHECK, NodeWatcher, watched_parts

KEY = PartitionKey("orders", "u1", 0)


class Service:
    """A replicated service next to a partition."""

    def __init__(self, service: str, key: PartitionKey = KEY, **problems: Any) -> None:
        self.key = key
        self.services = SimpleNamespace(report=lambda: [{"service": service, "problem": "no disk", **problems}])


class Node:
    """A node whose state a test changes between two samples."""

    def __init__(self) -> None:
        self.replicas: list[Any] = []
        self.services: list[Service] = []
        self.lags: dict[str, GroupLag] = {}
        self.link = SimpleNamespace(is_connected=True, last_problem="")
        self.others: list[dict[str, Any]] = []
        self.streams: dict[str, Any] = {"orders": self.stream("n2")}
        self.group = SimpleNamespace(is_controller=True, leader="n2", image=SimpleNamespace(streams=self.streams))
        self.room = SimpleNamespace(limit_bytes=100, used_bytes=0)
        self.settings = SimpleNamespace(data=Path("/"), nats="nats://user:secret@h:1")
        self.node_id = "n1"
        self.links = SimpleNamespace(all=lambda: [self.link])
        self.lags_by_group = lambda: self.lags
        self.events = NodeEvents("n1", lambda: round(self.now_s * 1e9), lambda: 7)
        self.now_s = 1000.0
        self.watcher = NodeWatcher(self.events, self, lambda: self.others)  # type: ignore[arg-type]
        self.sample()

    @property
    def partitions(self) -> Any:
        quarantined = sum(bool(one.quarantined_files) for one in self.replicas)
        open_sums = SimpleNamespace(total=lambda name: quarantined, with_services=self.services)
        return type("Partitions", (list,), {"counts": SimpleNamespace(open=open_sums)})(self.replicas)

    @staticmethod
    def stream(leader: str, uid: str = "u1") -> Any:
        return SimpleNamespace(uid=uid, partitions=[SimpleNamespace(leader=leader)])

    def damage(self, offset: int, leader: str, key: PartitionKey = KEY) -> None:
        state = SimpleNamespace(leader=leader)
        self.replicas.append(SimpleNamespace(key=key, quarantined_files=("x",), damage_offset=offset, state=state))

    def sample(self, count: int = SAMPLES_PER_CHECK) -> list[tuple[str, str]]:
        """Take samples until all parts of the state were read, and return the new events as (kind, detail)."""
        before = self._all()
        for _ in range(count):
            self.now_s += 1
            self.watcher.sample(self.now_s)
        return self._all()[len(before) :]

    def _all(self) -> list[tuple[str, str]]:
        return [(one["kind"], one.get("detail", "")) for one in self.events.after(-1, 0, 1000)["events"]]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(sampler, "disk_space", lambda folder: (60, 100))
    return Node()


@pytest.mark.parametrize(("leader", "source"), [("n2", " from n2"), ("n1", "")])
def test_node_watcher_of_a_repaired_log_names_another_node_as_its_source(node: Node, leader: str, source: str) -> None:
    node.damage(7, leader)
    node.damage(9, "n2", PartitionKey("orders", "u1", 1))
    node.damage(-1, "n2", PartitionKey("orders", "u1", 2))  # quarantined files of an earlier process, whose damage is not known
    node.streams["orders"] = node.stream(leader)
    assert node.sample() == [("damage_found", "offset 7"), ("damage_found", "offset 9")]
    node.replicas[0].quarantined_files = ()
    assert node.sample() == [("damage_repaired", f"offset 7{source}")]


@pytest.mark.parametrize(
    ("stream", "source"),
    [
        (Node.stream("n3"), " from n3"),
        (Node.stream("n1"), ""),
        (Node.stream("n3", uid="u2"), ""),
        (SimpleNamespace(uid="u1", partitions=[]), ""),
        (None, ""),
    ],
)
def test_node_watcher_names_the_leader_after_a_transfer_as_source_unless_the_stream_was_deleted(
    node: Node, stream: Any, source: str
) -> None:
    node.damage(7, "n1")
    assert node.sample() == [("damage_found", "offset 7")]
    node.streams.clear()
    if stream is not None:
        node.streams["orders"] = stream
    node.replicas.clear()
    assert node.sample() == [("damage_repaired", f"offset 7{source}")]


def test_node_watcher_reports_problems_of_its_services_and_of_the_other_processes(node: Node) -> None:
    node.services += [Service("bills", failing=True), Service("mails", differs=True), Service("sound")]
    node.others = [{"damage": [["t", "u2", 1, 9, "n2"]], "blocked": [["t", "u2", 1, "labels", "no disk"]]}]
    assert sorted(kind for kind, _ in node.sample()) == [
        "damage_found",
        "service_blocked",
        "service_blocked",
        "service_differs",
    ]


def test_node_watcher_reads_services_and_damage_only_in_every_fifth_sample(node: Node) -> None:
    node.damage(7, "n2")
    assert [len(node.sample(1)) for _ in range(SAMPLES_PER_CHECK)] == [1, 0, 0, 0, 0]
    node.replicas.clear()
    assert [len(node.sample(1)) for _ in range(SAMPLES_PER_CHECK)] == [1, 0, 0, 0, 0]


def test_watched_parts_of_one_process_are_bounded(node: Node) -> None:
    for number in range(MOST_WATCHED + 5):
        node.damage(number, "n2", PartitionKey("s", "u", number))
        node.services.append(Service(f"a{number}", failing=True, differs=True))
    parts = watched_parts(node)  # type: ignore[arg-type]
    assert {name: len(rows) for name, rows in parts.items()} == dict.fromkeys(("damage", "blocked", "differing"), MOST_WATCHED)


def test_node_watcher_reports_a_lost_connection_without_the_password(node: Node) -> None:
    node.link.is_connected, node.link.last_problem = False, "refused"
    ((kind, detail),) = node.sample()
    assert kind == "nats_lost"
    assert "refused" in detail
    assert "secret" not in detail


def test_node_watcher_reports_each_full_disk_and_each_overload_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "disk_space", lambda folder: (1, 100))
    node.room.used_bytes = 99
    assert sorted(kind for kind, _ in node.sample(3 * SAMPLES_PER_CHECK)) == ["disk_low", "overloaded"]
    monkeypatch.setattr(sampler, "disk_space", lambda folder: (60, 100))
    node.room.used_bytes = 0
    node.sample()
    monkeypatch.setattr(sampler, "disk_space", lambda folder: (1, 100))
    node.room.used_bytes = 99
    assert sorted(kind for kind, _ in node.sample()) == ["disk_low", "overloaded"]


def test_node_watcher_reports_no_problem_of_a_disk_of_unknown_size_and_of_memory_without_a_limit(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "disk_space", lambda folder: (0, 0))
    node.room.limit_bytes, node.room.used_bytes = 0, 99
    assert node.sample() == []


def test_node_watcher_measures_each_lag_of_a_group_once(node: Node) -> None:
    found = []
    for second in range(700):
        if second % 3 == 0:
            node.lags = {"g": GroupLag(second + 1, float(second), 0)}
        found += node.sample(1)
    assert [kind for kind, _ in found] == ["group_stuck"]
