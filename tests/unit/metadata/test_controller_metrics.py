"""Test the counters of elections: each once, of its kind, with the time without a leader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from immutables import Map

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.metadata.image import ClusterImage, NodeImage, StreamImage

ONLINE = PartitionState(
    partition=0,
    replicas=("a", "b", "c"),
    isr=("a", "b", "c"),
    leader="a",
    leader_epoch=1,
    epoch=1,
    last_leader="a",
    leaderships=1,
)
ELECTION = replace(ONLINE, leader="", status=PartitionStatus.ELECTION, deposed="a", epoch=2)
CANDIDATE = replace(ELECTION, status=PartitionStatus.CANDIDATE_FOUND, candidate="b", leader_epoch=2, epoch=3)
DONE = replace(ONLINE, leader="b", isr=("b", "c"), leader_epoch=2, epoch=4, last_leader="b", leaderships=2)
OFFLINE = replace(ELECTION, status=PartitionStatus.OFFLINE)


class Watched:
    def __init__(self) -> None:
        self.watch, self.image, self.now_s = ControllerMetrics(), ClusterImage(), 0.0

    def show(self, *partitions: PartitionState) -> tuple[int, int, dict[str, int]]:
        """Return (offline, electing, elections) after the image has these partitions."""
        streams: Any = Map({"s": StreamImage("s", "u1", "ev", StreamConfig(), partitions)} if partitions else {})
        self.image = ClusterImage(index=self.image.index + 1, streams=streams)
        self.watch.update(self.image, round(self.now_s * 1e9))
        self.now_s += 1
        return self.watch.offline, self.watch.electing, {kind: count for kind, count in self.watch.elections.items() if count}


def test_controller_metrics_count_a_dead_leader_as_one_clean_election() -> None:
    watched = Watched()
    assert watched.show(ONLINE) == (0, 0, {})
    assert watched.show(ELECTION) == (0, 1, {})
    assert watched.show(CANDIDATE) == (0, 1, {})
    assert watched.show(DONE) == (0, 0, {"clean": 1})
    assert watched.watch.failovers.total == pytest.approx(2)
    assert watched.show(replace(DONE, isr=("b", "c", "a"), epoch=5)) == (0, 0, {"clean": 1}), "an ISR change is none"


def test_controller_metrics_count_a_transfer_without_failover_time() -> None:
    watched = Watched()
    watched.show(ONLINE)
    watched.show(ELECTION)
    assert watched.show(replace(DONE, isr=("b", "c", "a"))) == (0, 0, {"transfer": 1})
    assert not sum(watched.watch.failovers.counts)


def test_controller_metrics_count_an_unclean_election_once() -> None:
    watched = Watched()
    watched.show(ONLINE)
    assert watched.show(OFFLINE) == (1, 0, {})
    assert watched.show(replace(CANDIDATE, unclean_elected=True)) == (0, 1, {})
    after = replace(DONE, unclean_elected=True)
    assert watched.show(after) == (0, 0, {"unclean": 1})
    watched.show(replace(ELECTION, unclean_elected=True, deposed="b", leaderships=2, leader_epoch=2, epoch=5))
    again = replace(after, leader="c", isr=("c",), leader_epoch=3, epoch=6, leaderships=3)
    assert watched.show(again) == (0, 0, {"unclean": 1, "clean": 1})


def test_controller_metrics_exclude_partitions_of_deleted_streams() -> None:
    watched = Watched()
    assert watched.show(OFFLINE, replace(ELECTION, partition=1)) == (1, 1, {})
    assert watched.show() == (0, 0, {})
    watched.show(ONLINE)
    assert watched.show(DONE) == (0, 0, {"clean": 1}), "images may be skipped"


def test_controller_metrics_count_a_lost_data_directory() -> None:
    watch = ControllerMetrics()
    lost = []
    for number, (node, folder) in enumerate(
        [("a", "f1"), ("b", ""), ("a", "f1"), ("a", "f2"), ("b", "f3"), ("a", "f2"), ("a", "")], 1
    ):
        image = ClusterImage(
            index=number, nodes=watch._seen.nodes.set(node, NodeImage(node_id=node, incarnation=number, folder_id=folder))
        )
        watch.update(image, number)
        lost.append(watch.folders_lost)
    assert lost == [0, 0, 0, 1, 1, 1, 2], "not at first sight, and not who says it for the first time"


def test_controller_metrics_without_a_removed_node_forget_its_lost_data_directory() -> None:
    watch = ControllerMetrics()
    nodes = ClusterImage().nodes
    for folder in ("f1", "f2"):
        nodes = nodes.set("a", NodeImage(node_id="a", incarnation=1, folder_id=folder))
        watch.update(ClusterImage(index=1, nodes=nodes), 5)
    assert watch.lost_directory_ns == {"a": 5}
    watch.update(ClusterImage(index=2), 6)
    assert watch.lost_directory_ns == {}


def test_controller_metrics_count_partitions_that_need_an_unclean_election() -> None:
    watched = Watched()
    watched.show(ONLINE)
    watched.show(replace(OFFLINE, isr=("b",)))
    assert not watched.watch.suspect, "b comes back with all that it had"
    watched.show(replace(OFFLINE, isr=("b",), incomplete=("b",), epoch=3))
    assert [str(key) for key in watched.watch.suspect] == ["s/0"]
    watched.show(DONE)
    assert not watched.watch.suspect
    watched.show(replace(OFFLINE, isr=("b",), incomplete=("b",), epoch=5))
    watched.show()
    assert not watched.watch.suspect, "the stream is deleted"
