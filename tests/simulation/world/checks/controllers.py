"""Rules of the metadata group in a quiet cluster: all nodes know the same, and listen to the subjects of their role and no others."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from liftpy.client.client import Client
from liftpy.core.metadata.codec import image_to_bytes
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.idempotency import IdempotencyCache
from liftpy.core.metadata.image import ClusterImage, Counters
from sidecar.metadata.group_thread import GroupThread
from sidecar.metadata.member import RaftMember
from tests.simulation.world.checks.raft_files import wrong_nonces, wrong_running_directory
from tests.simulation.world.machine.nats_server import Message
from tests.simulation.world.node_process import NodeProcess
from tests.simulation.world.world import World

_INBOX = re.compile(r"^(liftpy\.inbox\.[^.]+)\.[^.]+\.")
"""Beginning of an inbox of a node, with a random token."""
_COORDINATORS = "-groups"
"""End of the name of the connection of a node that all its coordinators share. Each of them has its own subscriptions."""
_MAY_RUN_TWICE = re.compile(r"Task-\d+|parsing publishes")
"""Names of tasks of which each connection has its own."""


async def wrong_group(world: World, client: Client) -> list[str]:
    """Return what the nodes of a quiet cluster know, report or do differently from each other or from their role."""
    up = [node for node in world.nodes if node.is_ready and not node.is_stopping and node.node is not None]
    wrong = [*_wrong_images(up), *wrong_lists(up)]
    wrong += [text for node in up for text in (*_wrong_subscriptions(world, node), *_wrong_tasks(node))]
    return wrong or await _wrong_reports(client, up)


def _wrong_images(up: list[NodeProcess]) -> list[str]:
    """Compare the metadata of all processes: controllers, nodes that follow the feed, and workers."""
    groups = {
        process.name: process.program.group
        for node in up
        for process in (node.process.running if node.process is not None else ())
        if process.program is not None and process.program.group is not None
    }
    indexes = {name: group.image.index for name, group in groups.items()}
    if len(set(indexes.values())) > 1:
        return [f"indexes of the metadata {indexes}"]
    images = {name: _known_everywhere(group.image) for name, group in groups.items()}
    first = next(iter(images), "")
    wrong = [f"{name} and {first} have different metadata" for name, image in images.items() if image != images[first]]
    of_controllers = {name: image_to_bytes(group.image) for name, group in groups.items() if group.is_controller}
    if len(set(of_controllers.values())) > 1:
        wrong.append(f"the controllers {sorted(of_controllers)} have different metadata")
    return wrong


def wrong_lists(up: Iterable[NodeProcess]) -> list[str]:
    """Return the nodes whose log names other controllers than their metadata."""
    wrong = []
    for node in up:
        group = node.node.group if node.node is not None else None
        member = group.role.current if isinstance(group, GroupThread) else None
        if isinstance(member, RaftMember):
            by_log, in_image = member.controllers, member.image.controllers
            if (by_log if by_log.index else ControllerList()) != in_image:
                wrong.append(f"{node.name} has the controllers {by_log} by its log, and {in_image} in its metadata")
    return wrong


def _known_everywhere(image: ClusterImage) -> ClusterImage:
    """Return ``image`` without what only controllers need for their decisions."""
    return replace(image, time_ns=0, counters=Counters(), operations=IdempotencyCache(), reports=ClusterImage().reports)


def _wrong_subscriptions(world: World, node: NodeProcess) -> list[str]:
    """Compare the subscriptions of a node with its role. A former role leaves none, and no connection has one twice."""
    wrong = []
    assert node.node is not None
    group = node.node.group
    of_group: Counter[str] = Counter()
    for client in [one for server in world.nats.servers for one in server.clients.values()]:
        if not client.name.startswith((f"liftpy-{node.name}-", f"liftpy {node.name} ")):
            continue
        patterns = Counter(subscription.pattern for subscription in client.subscriptions.values())
        if not client.name.endswith(_COORDINATORS):
            wrong += [f"{client.name} has {count} subscriptions to {one}" for one, count in patterns.items() if count > 1]
        if client.name == f"liftpy-{node.name}-group":
            of_group.update(_INBOX.sub(r"\1.", pattern) for pattern in patterns)
    if group is None or not of_group:
        return wrong
    inbox = f"liftpy.inbox.{node.name}."
    answers = {f"{inbox}*", f"{inbox}heartbeats"}
    wanted = {"liftpy.feed"}
    if group.is_controller:
        wanted = {
            "liftpy.control.admin", "liftpy.control.admin.*", f"liftpy.control.events.{node.name}", "liftpy.feed.snapshot",
            "liftpy.info", f"liftpy.raft.{node.name}.*",
        }  # fmt: skip
        wanted |= {"liftpy.control.node.*"} if group.leader == node.name else set()
    if (found := set(of_group) - answers) != wanted:
        role = "a controller" if group.is_controller else "no controller"
        wrong.append(f"{node.name} is {role}, lacks {sorted(wanted - found)} and listens to {sorted(found - wanted)}")
    twice = [pattern for pattern, count in of_group.items() if count > 1]
    return [*wrong, *(f"{node.name} has several subscriptions to {pattern}" for pattern in twice)]


def _wrong_tasks(node: NodeProcess) -> list[str]:
    """Return tasks of a node that run twice, or that belong to a former role."""
    wrong = []
    assert node.node is not None
    group = node.node.group
    for process in node.process.running if node.process is not None else ():
        names: Counter[str] = Counter()
        for loop in process.loops:
            here = Counter(task.get_name() for task in asyncio.all_tasks(loop) if not _MAY_RUN_TWICE.fullmatch(task.get_name()))
            wrong += [f"{process.name} runs {count} tasks {name!r}" for name, count in here.items() if count > 1]
            names += here
        if process is node.process and group is not None:
            follows = bool(names["following the feed"])
            if follows == group.is_controller:
                wrong.append(f"{node.name}: controller {group.is_controller}, follows the feed {follows}")
    return wrong


async def _wrong_reports(client: Client, up: list[NodeProcess]) -> list[str]:
    """Compare what the metadata leader and the other nodes report about the controllers."""
    wrong = []
    cluster = await client.admin.describe_cluster()
    voters = {one.node_id for one in cluster.controllers}
    if not voters <= {node.name for node in up if not node.disk.is_full}:
        return []  # the leader waits for a controller that is away or has no space
    status = {node.name: await client.admin.node_status(node.name) for node in up}
    leaders = {one.node_id for one in cluster.controllers if one.leader}
    known = {page["metadata_leader"] for page in status.values()}
    if not leaders == known == {cluster.metadata_leader}:
        return [f"metadata leaders {leaders}, {known} and {cluster.metadata_leader}"]
    ends = {(one.term, one.commit_index, one.applied_index) for one in cluster.controllers}
    if len(ends) != 1 or min(ends)[1] != min(ends)[2]:
        wrong.append(f"(term, commit index, applied index) of the controllers {sorted(ends)}")
    for one in cluster.controllers:
        if not one.connected or one.lag or one.waits_for or one.learner or one.leaving:
            wrong.append(f"controller {one}")
    for name, page in status.items():
        if page["controller"] != (name in voters) or ("journal_entries" in page["metadata_held"]) != (name in voters):
            wrong.append(f"{name}: controller {page['controller']}, holds {page['metadata_held']}, and the voters are {voters}")
    held = {name: page["metadata_held"] for name, page in status.items() if page["controller"]}
    wrong += _wrong_sizes(held, up)
    folders = {node.name: node.disk.folder / "raft" for node in up if node.name in held and not node.disk.was_full}
    term, commit_index, _ = min(ends)
    for name, raft in folders.items():
        vote = name if name in leaders else ""
        found = wrong_running_directory(raft, held[name], term=term, commit_index=commit_index, vote=vote)
        wrong += [f"{name}: {what}" for what in found]
    return [
        *wrong,
        *wrong_nonces(folders),
        *await _wrong_events(client, {name: status[name]["metadata_index"] for name in held}),
    ]


def _wrong_sizes(held: dict[str, dict[str, Any]], up: list[NodeProcess]) -> list[str]:
    """Compare the sizes that controllers report with each other, and with their files."""
    wrong = []
    windows = {(sizes["window_operations"], sizes["window_bytes"]) for sizes in held.values()}
    if len(windows) > 1:
        wrong.append(f"(answers to operations, bytes) of the controllers {sorted(windows)}")
    for node in [node for node in up if node.name in held]:
        sizes = held[node.name]
        if sizes["inbox_bytes"]:
            wrong.append(f"{node.name} has received {sizes['inbox_bytes']} bytes that it does not process")
        stored_bytes = (node.disk.folder / "raft" / "journal").stat().st_size
        if not sizes["journal_bytes"] <= stored_bytes == sizes["journal_file_bytes"]:
            wrong.append(f"{node.name} holds {sizes}, and its journal has {stored_bytes} bytes")
    return wrong


async def _wrong_events(client: Client, indexes: dict[str, int]) -> list[str]:
    """Compare the events of the cluster that controllers report. A controller that began with a snapshot knows only later ones.

    The detail of an event may name a cause that lies before the snapshot. ``indexes``: index of the metadata of each controller, up
    to which it knows the events.
    """
    events: dict[str, dict[tuple[int, int], dict[str, Any]]] = {}
    begins = []
    voters = sorted(indexes)
    for name in voters:
        found, after, more = events.setdefault(name, {}), (0, -1), True
        while more:
            answer = await client.admin.cluster_events(name, after)
            places = [(event["index"], event["number"]) for event in answer["events"]]
            if places != sorted({place for place in places if place > after}):
                return [f"events of {name} after {after} are at {places}"]
            found.update(zip(places, ({**event, "detail": ""} for event in answer["events"]), strict=True))
            after, more = max(places, default=after), answer["more"] and bool(places)
        begins.append(answer["begins"])
        if answer["index"] != indexes[name]:
            return [f"{name} knows the events up to {answer['index']}, and has applied {indexes[name]}"]
    first = max(begins)
    known = [{place: event for place, event in found.items() if place[0] > first} for found in events.values()]
    for name, found in zip(events, known, strict=True):
        if differ := sorted(place for place in known[0].keys() | found.keys() if known[0].get(place) != found.get(place)):
            return [f"{voters[0]} and {name} report different events at {differ[:3]}"]
    return []


# ---- a quiet time ----------------------------------------------------------------------------------------------------

_MOST_GROWTH_BYTES = 200
"""Maximum growth of the journal of a controller without requests, in bytes per second."""


class QuietControllers:
    """Checks that the controllers of a quiet group write almost nothing, and that no tick is late.

    The time begins with the object. ``nodes``: nodes that run.
    """

    def __init__(self, nodes: Iterable[NodeProcess]) -> None:
        self._nodes = [node for node in nodes if _ticks(node)]
        self._before = {node.name: self._state(node) for node in self._nodes}

    @staticmethod
    def _state(node: NodeProcess) -> tuple[int, int, float]:
        journal = (node.disk.folder / "raft" / "journal").stat()
        return journal.st_ino, journal.st_size, _ticks(node).get("late", 0)

    def wrong(self) -> list[str]:
        """Return what the controllers have done since the beginning that quiet controllers do not do."""
        wrong = []
        for node in self._nodes:
            (file, size_bytes, late), now = self._before[node.name], self._state(node)
            if now[0] != file:
                wrong.append(f"{node.name} writes its journal anew")
            elif now[1] - size_bytes > _MOST_GROWTH_BYTES:
                wrong.append(f"{node.name} adds {now[1] - size_bytes} bytes to its journal")
            if now[2] != late:
                wrong.append(f"{node.name} has {now[2] - late:g} late ticks")
        return wrong


def _ticks(node: NodeProcess) -> dict[str, float]:
    """Return what a controller reports about its ticks. {}: the node is no controller."""
    group = node.node.group if node.node is not None else None
    return {} if group is None else group.ticks()


# ---- messages --------------------------------------------------------------------------------------------------------

_HEARTBEATS_PER_S = (3, 5)
_FEED_PER_S = (1, 4)
_APPENDS_PER_S = (3, 7)
"""Bounds of the messages from the metadata leader to one controller per second, hellos included, and of the answers."""
_MOST_HELLOS_PER_S = 6
"""Maximum number of messages per second from one controller to another one, if neither of them leads."""


def wrong_group_messages(
    messages: Iterable[Message], seconds: float, nodes: Collection[str], voters: Collection[str], leader: str
) -> list[str]:
    """Return what is wrong with the messages of a quiet metadata group.

    Each node but the leader sends its heartbeats to the leader, and gets an answer to each. The leader sends the feed, and messages
    to the other controllers. They answer each of these messages.

    Args:
        messages: All messages of some time.
        seconds: Length of this time.
        nodes: Nodes that run.
        voters: Controllers. All of them run.
        leader: Metadata leader.
    """
    sent: Counter[str] = Counter()
    for message in messages:
        subject = message.subject
        if subject.startswith("liftpy.control.node.") and message.reply.endswith(".heartbeats"):
            sent[f"heartbeats of {subject.rpartition('.')[2]}"] += 1
        elif subject.startswith("liftpy.inbox.") and subject.endswith(".heartbeats"):
            sent[f"answered heartbeats of {subject.split('.')[2]}"] += 1
        elif subject.startswith("liftpy.raft."):
            _, _, receiver, sender = subject.split(".")
            sent[f"messages from {sender} to {receiver}"] += 1
        elif subject == "liftpy.feed":
            sent["messages of the feed"] += 1
    bounds = {"messages of the feed": _FEED_PER_S}
    for node in nodes:
        bounds[f"heartbeats of {node}"] = bounds[f"answered heartbeats of {node}"] = (
            (0, 0) if node == leader else _HEARTBEATS_PER_S
        )
    for sender in voters:
        for receiver in {*voters} - {sender}:
            is_led = leader in (sender, receiver)
            bounds[f"messages from {sender} to {receiver}"] = _APPENDS_PER_S if is_led else (0, _MOST_HELLOS_PER_S)
    return [
        f"{sent[what] / seconds:g} {what} per second, not {least} to {most}"
        for what, (least, most) in {**dict.fromkeys(sent, (0, 0)), **bounds}.items()
        if not least <= sent[what] / seconds <= most
    ]
