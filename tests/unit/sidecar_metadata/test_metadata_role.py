"""Test GroupRole: which role a node takes, and when it changes its role [M10, M11]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.core.base.instruments import Instruments
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, CorruptionError, StorageError
from sidecar.metadata import group_role
from sidecar.metadata.group_role import GroupRole
from sidecar.runtime.settings import NodeSettings
from tests.until import until

THREE = ("n1", "n2", "n3")


def an_image(index: int, *voters: str, at: int = 0, learner: str = "") -> ClusterImage:
    return replace(ClusterImage(), index=index, controllers=ControllerList(voters, learner, "", at))


class Part:
    """Provide a scripted role."""

    def __init__(self, image: ClusterImage, **given: Any) -> None:
        self.image = image
        self.counters: dict[str, int] = {}
        self.calls: list[str] = []
        self.started = asyncio.Event()
        self.started.set()
        self.watcher: Callable[[ClusterImage, ClusterImage], None] = lambda *_: None
        self.is_member, self.has_voted, self.removed_at, self.controllers = True, False, 0, ControllerList()
        for name, value in given.items():
            setattr(self, name, value)

    async def start(self) -> None:
        self.calls.append("start")
        await self.started.wait()

    async def stop(self) -> None:
        self.calls.append("stop")

    def retire(self) -> None:
        self.calls.append("retire")

    def watch(self, watcher: Callable[[ClusterImage, ClusterImage], None]) -> None:
        self.watcher = watcher

    def show(self, image: ClusterImage) -> None:
        before, self.image = self.image, image
        self.watcher(before, image)


class Member(Part):
    """Stands for ``RaftMember``."""


class ScriptedRole(GroupRole):
    """Choose between the scripted parts of a bench."""

    def __init__(self, bench: Bench, settings: NodeSettings, *, journal: bool) -> None:
        unused: Any = None
        super().__init__(settings, unused, bench.connection, Subjects("ns"), unused, Instruments(), unused, bench.fatal.append)
        self.bench = bench
        self.journal = journal

    def open_member(self, joins: ControllerList | None) -> Any:
        self.bench.joined.append(joins)
        member = self.bench.members.pop(0)
        if isinstance(member, Exception):
            raise member
        return member

    def make_feed(self) -> Any:
        return self.bench.feeds.pop(0)

    def has_journal(self) -> bool:
        return self.journal


class Bench:
    """Provide a role with scripted parts. ``joined`` contains the controllers with which each member was created."""

    def __init__(self, tmp_path: Path, node_id: str, controllers: tuple[str, ...] = THREE, *, journal: bool = False) -> None:
        self.members: list[Member | Exception] = []
        self.feeds: list[Part] = []
        self.joined: list[ControllerList | None] = []
        self.shown: list[tuple[int, int]] = []
        self.connection: Any = SimpleNamespace(is_connected=True)
        settings = NodeSettings(node_id, tmp_path, controllers=controllers)
        self.fatal: list[Exception] = []
        self.role = ScriptedRole(self, settings, journal=journal)
        self.role.watch(lambda before, after: self.shown.append((before.index, after.index)))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_role, "_CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(group_role, "RaftMember", Member)


async def test_metadata_role_of_a_node_added_to_the_controllers_changes_to_controller(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "n4")
    feed = Part(an_image(5), counters={"rejected": 2})
    member = Member(an_image(3, "n1", "n2", "n3", "n4", at=8), counters={"rejected": 1})
    member.started.clear()
    bench.feeds, bench.members = [feed], [member]
    await bench.role.start()
    assert not bench.role.is_controller
    learns = an_image(8, *THREE, at=8, learner="n4")
    feed.show(learns)
    await until(lambda: member.calls == ["start"])
    assert bench.joined == [learns.controllers]
    assert (bench.role.is_controller, bench.role.image.index) == (False, 8), "it has caught up with nothing yet"
    member.started.set()
    feed.show(an_image(9, *THREE, at=8, learner="n4"))
    await asyncio.sleep(0.05)
    assert not bench.role.is_controller, "it knows less than is shown"
    member.show(an_image(10, *THREE, "n4", at=10))
    await until(lambda: feed.calls == ["start", "stop"])
    feed.show(an_image(11))
    member.show(an_image(12, *THREE, "n4", at=10))
    assert bench.shown == [(5, 8), (8, 9), (9, 10), (10, 12)], "in order, and nothing of the one before"
    assert bench.role.is_controller
    assert bench.role.counters == {"rejected": 3}
    assert not bench.role.decides, "what it has shown may have been forged on the feed"
    await bench.role.stop()
    assert member.calls == ["start", "stop"]


FULL = StorageError("No space left on device")


@pytest.mark.parametrize(
    ("at", "logged_at"), [(0, 0), (0, 8), (3, 3)], ids=["first-controllers", "uncommitted-change", "committed-change"]
)
async def test_controller_on_a_full_disk_follows_the_feed_until_space_is_free(
    at: int, logged_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_role, "STORAGE_AGAIN_S", 0.001)
    image = an_image(7, *(THREE if at else ()), at=at)
    bench = Bench(tmp_path, "n1", journal=True)
    member, feed = Member(image, controllers=ControllerList(THREE, index=logged_at)), Part(replace(image, index=6))
    bench.members, bench.feeds = [member], [feed]
    await bench.role.start()
    bench.role.member_failed(FULL)
    await until(lambda: member.calls == ["start", "stop"] and feed.calls == ["start"])
    assert bench.role.image is image, "the feed knows less than is shown"
    again = Member(replace(image, index=7), controllers=ControllerList(THREE, index=at))
    bench.members = [FULL, again]
    feed.show(replace(image, index=8))
    await until(lambda: again.calls == ["start"])
    assert not bench.role.is_controller
    again.show(replace(image, index=9))
    await until(lambda: bench.role.is_controller)
    assert bench.joined == [None, *[image.controllers if at else None] * 2]
    assert bench.shown == [(7, 8), (8, 9)]
    assert not bench.role.decides
    assert bench.fatal == []
    await bench.role.stop()


async def test_controller_whose_disk_fills_while_it_catches_up_follows_the_feed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_role, "STORAGE_AGAIN_S", 0.001)
    bench = Bench(tmp_path, "n4")
    feed = Part(an_image(5, *THREE, at=5, learner="n4"))
    first, second = (Member(an_image(index), controllers=ControllerList(THREE, "n4", index=5)) for index in (4, 6))
    bench.feeds, bench.members = [feed], [first, second]
    await bench.role.start()
    await until(lambda: first.calls == ["start"])
    bench.role.member_failed(FULL)
    await until(lambda: bench.role.is_controller)
    assert (first.calls, bench.role.current, bench.fatal) == (["start", "stop"], second, [])
    await bench.role.stop()


@pytest.mark.parametrize(
    ("error", "voters", "has_feed"),
    [
        (FULL, THREE, False),
        (FULL, ("n1",), True),
        (CorruptionError("damaged"), THREE, True),
        (ValueError("bug"), THREE, True),
    ],
    ids=["no-feed", "only-controller", "damage", "bug"],
)
async def test_failed_controller_that_cannot_follow_the_feed_stops_the_node(
    error: Exception, voters: tuple[str, ...], has_feed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_role, "FEED_TIMEOUT_S", 0.01)
    bench = Bench(tmp_path, "n1", voters, journal=True)
    feed = Part(an_image(7))
    if not has_feed:
        feed.started.clear()
    bench.members, bench.feeds = [Member(an_image(7), controllers=ControllerList(voters))], [feed]
    await bench.role.start()
    bench.role.member_failed(error)
    await until(lambda: bench.fatal == [error])
    assert bench.role.is_controller
    await bench.role.stop()


async def test_metadata_role_of_a_removed_controller_starts_the_feed_before_the_member_stops(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "n1")
    member, feed = Member(an_image(7, *THREE, at=3)), Part(an_image(6, "n2", "n3", at=6))
    feed.started.clear()
    bench.members, bench.feeds = [member], [feed]
    await bench.role.start()
    assert (bench.joined, bench.role.decides) == ([None], True)
    member.is_member, member.removed_at = False, 6
    await until(lambda: feed.calls == ["start"])
    assert bench.role.current is member, "until it knows something"
    assert not bench.role.decides
    feed.started.set()
    await asyncio.sleep(0.05)
    assert bench.role.current is member, "it knows less than is shown"
    feed.show(an_image(8, "n2", "n3", at=6))
    await until(lambda: member.calls == ["start", "stop"])
    assert bench.shown == [(7, 8)]
    # Named again by a list that is no newer than the one that it left with, it stays; by a newer one it comes back.
    again = Member(an_image(20, *THREE, at=9))
    bench.members = [again]
    feed.show(an_image(9, *THREE, at=6))
    await asyncio.sleep(0.05)
    assert not bench.role.is_controller
    feed.show(an_image(10, "n2", "n3", at=9, learner="n1"))
    await until(lambda: bench.role.is_controller)
    await bench.role.stop()


@pytest.mark.parametrize(
    ("given", "starts", "follows"),
    [
        ({"controllers": ControllerList(("n2", "n3", "n9"), index=4)}, True, False),
        ({"controllers": ControllerList(("n2", "n3"), index=4), "is_member": False}, False, True),
        ({"controllers": ControllerList(("n2", "n3"))}, False, True),
    ],
    ids=["its log names it", "its log names it no more", "nobody has changed the list, and it never was one"],
)
async def test_metadata_role_with_a_raft_journal_ignores_the_controllers_in_the_settings(
    tmp_path: Path, given: dict[str, Any], starts: bool, follows: bool
) -> None:
    bench = Bench(tmp_path, "n9", ("n2", "n3"), journal=True)
    member = Member(an_image(3), **given)
    bench.members, bench.feeds = [member], [Part(an_image(4))]
    await bench.role.start()
    assert (member.calls == ["start"], bench.role.is_controller, not bench.feeds) == (starts, starts, follows)
    if follows:
        assert member.calls == ["stop"]
    await bench.role.stop()


async def test_metadata_role_of_a_controller_missing_in_its_settings_does_not_start_during_bootstrap(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "n4", journal=True)
    bench.members = [Member(an_image(3), controllers=ControllerList(THREE), has_voted=True)]
    with pytest.raises(ConfigError, match="controllers = n1, n2, n3 does not contain this node, but n4 is a member"):
        await bench.role.start()


@pytest.mark.parametrize("index", [0, 30])
@pytest.mark.parametrize("first", [None, TimeoutError(), nats.errors.OutboundBufferLimitError()])
async def test_metadata_role_of_a_single_controller_with_empty_directory_starts_no_second_group(
    tmp_path: Path, index: int, first: Exception | None
) -> None:
    bench = Bench(tmp_path, "n1", ("n1",))
    member, feed = Member(an_image(3)), Part(an_image(4, "n1", "n2", at=2))
    bench.members, bench.feeds = [member], [feed]
    said = [*[first] * 5, frames.seal(pb.FeedSnapshotResponse(index=index, chunk=b"x"))]

    async def request(subject: str, payload: bytes, timeout: float) -> Any:
        answer = said.pop(0) if said else nats.errors.NoRespondersError()
        while answer is None:
            answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(data=answer)

    bench.connection.request = request
    await bench.role.start()
    assert bench.joined == ([None] if not index else bench.joined)
    assert bench.role.decides is (not index)
    assert (feed.calls == ["start"]) is bool(index)
    await bench.role.stop()


@pytest.mark.parametrize("error", [nats.errors.TimeoutError(), nats.errors.OutboundBufferLimitError()])
async def test_metadata_role_of_a_single_controller_starts_a_group_only_after_a_silence_on_a_live_connection(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscriber of all subjects prevents the answer "no responders"."""
    monkeypatch.setattr(group_role, "SILENCE_S", 0.3)
    bench = Bench(tmp_path, "n1", ("n1",))
    asked = 0

    async def request(subject: str, payload: bytes, timeout: float) -> Any:
        nonlocal asked
        asked += 1
        bench.connection.is_connected = asked > 5
        raise error

    bench.connection.request = request
    starting = asyncio.create_task(bench.role._may_begin())
    await until(lambda: asked > 12 or starting.done())
    if isinstance(error, TimeoutError):
        assert asked > 6
        async with asyncio.timeout(5):
            assert await starting
    else:
        assert not starting.done()
        starting.cancel()


async def test_metadata_role_after_retiring_does_not_change(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "n4")
    feed = Part(an_image(5))
    bench.feeds = [feed]
    await bench.role.start()
    bench.role.retire()
    feed.show(an_image(6, *THREE, at=6, learner="n4"))
    await asyncio.sleep(0.02)
    assert (bench.joined, feed.calls) == ([], ["start", "retire"])
    await bench.role.stop()


# ---- at its edges ----------------------------------------------------------------------------------------------------------
async def test_metadata_role_of_a_node_removed_while_joining_joins_again_with_a_later_controller_list(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "n4")
    feed = Part(an_image(8, *THREE, at=8, learner="n4"))
    out, comes = Member(an_image(9), is_member=False, removed_at=9), Member(an_image(20, *THREE, "n4", at=12))
    bench.feeds, bench.members = [feed], [out, comes]
    await bench.role.start()
    await until(lambda: out.calls == ["start", "stop"])
    assert (bench.role._next, bench.role.is_controller, feed.calls) == (None, False, ["start"])
    feed.show(an_image(10, *THREE, at=9, learner="n4"))
    await asyncio.sleep(0.02)
    assert len(bench.joined) == 1
    feed.show(an_image(12, *THREE, "n4", at=12))
    await until(lambda: bench.role.is_controller)
    await bench.role.stop()
    assert (out.calls, comes.calls) == (["start", "stop"], ["start", "stop"])


async def test_metadata_role_stopped_while_joining_stops_feed_and_raft_member(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "n4")
    feed, comes = Part(an_image(8, *THREE, at=8, learner="n4")), Member(an_image(9))
    comes.started.clear()
    bench.feeds, bench.members = [feed], [comes]
    await bench.role.start()
    await until(lambda: comes.calls == ["start"])
    assert bench.role.backends == [feed, comes]
    await bench.role.stop()
    assert (feed.calls, comes.calls) == (["start", "stop"], ["start", "stop"])


async def test_metadata_role_retired_while_joining_starts_no_raft_member(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "n4")
    feed, comes = Part(an_image(8, *THREE, at=8, learner="n4")), Member(an_image(9))
    comes.started.clear()
    bench.feeds, bench.members = [feed], [comes]
    await bench.role.start()
    await until(lambda: comes.calls == ["start"])
    bench.role.retire()
    comes.started.set()
    await until(lambda: comes.calls == ["start", "stop"])
    assert (bench.role.is_controller, feed.calls) == (False, ["start", "retire"])
    await bench.role.stop()
