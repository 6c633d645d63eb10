"""Test that a removed node stops only when both the metadata leader and the image say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import FencedError
from sidecar.metadata.membership import Membership

NOT_FOUND = pb.ControlResponse.NOT_FOUND


class Group:
    def __init__(self, image: ClusterImage) -> None:
        self.image = image

    def watch(self, callback: Any) -> None:
        pass


def member(*, known: bool, incarnation: int = 4) -> tuple[Membership, list[Exception]]:
    nodes: Any = {"n1": None, **({"n4": None} if known else {})}
    image: Any = replace(ClusterImage(), index=50)
    object.__setattr__(image, "nodes", nodes)
    fatal: list[Exception] = []
    group: Any = Group(image)
    settings: Any = type("Settings", (), {"node_id": "n4"})()
    made = Membership(settings, group, lambda _: None, fatal.append)
    made.incarnation = incarnation
    made._end_heartbeats = lambda: None  # type: ignore[assignment,return-value]
    return made, fatal


def test_node_membership_of_a_removed_node_raises_an_error_with_the_next_command() -> None:
    made, fatal = member(known=False)
    made._heartbeat_answered(1, pb.ControlResponse(error=NOT_FOUND, index=50))
    (error,) = fatal
    assert isinstance(error, FencedError)
    for words in ("Node 'n4' was removed from the cluster", "Its data directory was not deleted", "start it: it joins"):
        assert words in str(error)


@pytest.mark.parametrize(
    ("known", "index", "incarnation", "why"),
    [
        (True, 50, 4, "the image has it: a new metadata leader may not have"),
        (False, 51, 4, "the image is older than the answer: a feed that is fetched anew"),
        (False, 50, 0, "it has not registered yet"),
    ],
)
def test_node_membership_with_only_one_of_two_removal_signs_does_not_end(
    known: bool, index: int, incarnation: int, why: str
) -> None:
    made, fatal = member(known=known, incarnation=incarnation)
    made._heartbeat_answered(1, pb.ControlResponse(error=NOT_FOUND, index=index))
    assert fatal == [], why


def test_node_membership_after_a_forged_removal_record_does_not_end() -> None:
    made, fatal = member(known=True)
    made._image_changed(made._group.image, member(known=False)[0]._group.image)
    assert fatal == []
