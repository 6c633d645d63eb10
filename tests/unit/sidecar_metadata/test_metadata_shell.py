"""Test the shell of a metadata member against a scripted group: registration, draining, leaving, the feed."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.image import ClusterImage, NodeImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, FencedError, LiftError
from sidecar.metadata import membership as membership_module
from sidecar.metadata.feed import FeedPublisher
from sidecar.metadata.group_role import MetadataConnection
from sidecar.metadata.membership import Membership
from sidecar.runtime.settings import NodeSettings
from tests.unit.metadata.cluster_driver import Driver
from tests.unit.scripted_group import ScriptedGroup

OK, EXISTS, INVALID, STALE = (
    pb.ControlResponse.OK,
    pb.ControlResponse.EXISTS,
    pb.ControlResponse.INVALID,
    pb.ControlResponse.STALE,
)
UNAVAILABLE = pb.ControlResponse.UNAVAILABLE


# ---- membership --------------------------------------------------------------------------------------------------------
class Group(ScriptedGroup):
    """A group whose image is at index 5 at first."""

    def __init__(self, *answers: pb.ControlResponse) -> None:
        super().__init__(*answers)
        self.shown = replace(ClusterImage(), index=5)

    def show_node(self, index: int, **fields: Any) -> None:
        given: dict[str, Any] = {"node_id": "n4", "incarnation": 7} | fields
        self.show(index=index, nodes=self.image.nodes.set("n4", NodeImage(**given)))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_REGISTER_RETRY_S", "_CONFLICT_RETRY_S", "_IMAGE_WAIT_S"):
        monkeypatch.setattr(membership_module, name, 0.001)


def a_member(tmp_path: Path, *answers: pb.ControlResponse) -> tuple[Membership, Any, list[int], list[Exception]]:
    settings = NodeSettings("n4", tmp_path, rack="r1", weight=2.0)
    group, heard, fatal = Group(*answers), [], []
    return Membership(settings, group, lambda sent_ns, _: heard.append(sent_ns), fatal.append), group, heard, fatal  # type: ignore[arg-type]


STARTS: Any = SimpleNamespace(write_to=lambda registration: setattr(registration, "start", 9))


async def register(made: Membership) -> int:
    async with asyncio.timeout(30):
        return await made.register(3, True, False, "http://x", STARTS, 64)


@pytest.mark.parametrize("error", [INVALID, STALE])
async def test_node_membership_registration_rejected_permanently_raises_lift_error(
    error: Any, quick: None, tmp_path: Path
) -> None:
    made, _group, _, _ = a_member(tmp_path, pb.ControlResponse(error=error, detail="no such rack"))
    with pytest.raises(LiftError, match="rejected the registration of this node: no such rack"):
        await register(made)
    assert made.incarnation == 0


async def test_node_membership_registration_with_the_id_of_a_running_node_raises_fenced(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "DEFAULT_WAIT_S", 0.0)
    made, group, _, _ = a_member(tmp_path, *[pb.ControlResponse(error=EXISTS, detail="n4 runs on another host")] * 3)
    with pytest.raises(FencedError, match="n4 runs on another host"):
        await register(made)
    assert len(group.asked) == 1


async def test_node_membership_live_waits_until_the_image_shows_its_process_unfenced(tmp_path: Path) -> None:
    made, group, _, _ = a_member(tmp_path)
    made.incarnation = 7
    waiting = asyncio.ensure_future(made.live(3600))
    for fields in ({"incarnation": 6}, {"incarnation": 8}, {"fenced": True}):
        group.show_node(6, **fields)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
    group.show_node(7)
    async with asyncio.timeout(30):
        await waiting
        made.incarnation = 99
        await made.live(0.0)


async def test_node_membership_drain_ends_at_its_timeout_or_when_rejected(quick: None, tmp_path: Path) -> None:
    driver = Driver(("n4", "n5"), elections=True)
    driver.create("orders", partitions=2, replicationFactor=2)
    assert driver.ask(drainNode=pb.DrainNode(nodeId="n4", incarnation=driver.incarnation("n4"))).error == OK
    answers = [
        pb.ControlResponse(error=error, index=index) for error, index in ((UNAVAILABLE, 999), (OK, 999), (OK, driver.index))
    ]
    made, group, _, _ = a_member(tmp_path, *answers)
    group.shown = driver.fsm.image
    async with asyncio.timeout(10):
        await made.drain(3600)
        await made.drain(0.01)
        await made.drain(0.01)  # the successor does not lead yet
    assert len(group.asked) == 3


# ---- the feed ----------------------------------------------------------------------------------------------------------
class Bus:
    """Stand in for a connection that records what is published, or raises ``error``."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []
        self.error: Exception | None = None
        self.is_connected = True

    async def publish(self, subject: str, payload: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.published.append((subject, payload))


async def test_metadata_feed_publisher_answers_only_on_inbox_subjects() -> None:
    driver, producer, bus = Driver(("n1", "n2")), FeedProducer(), Bus()
    producer.lead()
    publisher = FeedPublisher(bus, Subjects("ns"), None, producer, driver.fsm)  # type: ignore[arg-type]
    request = frames.seal(pb.FeedSnapshotRequest())
    for reply, data in (("", request), ("shop.orders", request), ("ns.inbox.n2.x", b"garbage")):
        await publisher._request_arrived(SimpleNamespace(reply=reply, data=data))
    assert bus.published == []
    assert sorted(publisher.counters.values()) == [1, 2]
    bus.error = nats.errors.ConnectionClosedError()
    await publisher._request_arrived(
        SimpleNamespace(reply="ns.inbox.n2.x", data=request)
    )  # not connected: who asked asks again


# ---- the link to the group ---------------------------------------------------------------------------------------------
def a_link(tmp_path: Path, **settings: Any) -> MetadataConnection:
    given: dict[str, Any] = {"controllers": ("n1",)} | settings
    folder: Any = SimpleNamespace(raft=tmp_path / "raft")
    return MetadataConnection(NodeSettings("n1", tmp_path, **given), folder, Subjects("ns"), None, Counter())  # type: ignore[arg-type]


async def test_metadata_group_link_without_controllers_in_settings_raises_config_error(tmp_path: Path) -> None:
    a_link(tmp_path, controllers=("n2",))
    with pytest.raises(ConfigError, match="controllers is missing"):
        a_link(tmp_path, controllers=())
