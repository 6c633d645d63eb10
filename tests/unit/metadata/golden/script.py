"""Play stories of a partition: send their requests to the state machine, and describe what changed."""

from __future__ import annotations

import enum
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.codec import PARTITION
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.cluster_driver import Driver
from tests.unit.metadata.image_checks import LeadershipHistory, check_image, check_step

_SHOWN = (
    "replicas", "isr", "leader", "candidate", "deposed", "status", "unclean_elected", "passed_over", "incomplete", "complete",
    "target", "joining", "next_learner", "leaving", "moved_for", "leader_to_elect", "asked_start", "purges", "pause",
)  # fmt: skip


class PartitionPlayer:
    """Sends the requests of a story about partition 0 of the stream ``orders``, and describes what they change."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._history = LeadershipHistory()
        self._saved: dict[str, Any] = {}

    def send(self, verb: str, names: list[str], options: dict[str, str]) -> str:
        """Send one request, for example ``report b 1/90 stampTerm=2``, and return what it changes."""
        if verb == "cluster":
            return self._begin(names[0], options)
        if verb == "save":
            kind, message = self._request(*names, options=options)
            self._saved = {kind: message}
            return "saved"
        before = self._driver.fsm.image
        answer = self._answer(verb, names, options)
        after = self._driver.fsm.image
        check_step(before, after)
        check_image(after)
        self._history.add_image(after)
        was, now = (image.streams["orders"].partitions[0] for image in (before, after))
        if answer.HasField("partition"):
            assert PARTITION.from_pb(answer.partition) == now
        if answer.error:
            assert now == was
            return f"{pb.ControlResponse.Error.Name(answer.error)} {answer.detail}".strip()
        detail = [f"({answer.detail})"] if verb == "drain" else []
        return " ".join([*_changes(was, now), *_node_changes(before, after), *detail]) or "="

    def _begin(self, nodes: str, options: dict[str, str]) -> str:
        self._driver = Driver(tuple(nodes), elections=options.pop("elections", "on") == "on")
        replicas = options.pop("replicas", nodes)
        config = pb.StreamConfig()
        _fill(config, options)
        self._driver.create(manual=[pb.ReplicaList(partition=0, replicas=replicas)], config=config)
        state = self._driver.partition()
        return f"leader={state.leader} isr={_shown(state.isr)}"

    def _answer(self, verb: str, names: list[str], options: dict[str, str]) -> pb.ControlResponse:
        driver = self._driver
        match verb, names:
            case "restart", [node, *how]:
                return driver.restart(node, clean="clean" in how, flushed="unflushed" not in how, emptied="emptied" in how)
            case "create", [name, replicas]:
                return driver.create(name, manual=[pb.ReplicaList(partition=0, replicas=replicas)])
            case "send", ["saved"]:
                return driver.ask(**self._saved)
        kind, message = self._request(verb, *names, options=options)
        return driver.ask(**{kind: message})

    def _request(self, verb: str, *names: str, options: dict[str, str]) -> tuple[str, Message]:
        kind, fields = self._fields(verb, names)
        known = pb.ControlRequest.DESCRIPTOR.fields_by_name[kind].message_type.fields_by_name
        about = {"stream": "orders", "uid": self._driver.fsm.image.streams["orders"].uid, "partition": 0}
        given: Any = {kind: {name: value for name, value in (about | fields).items() if name in known}}
        made: Message = getattr(pb.ControlRequest(**given), kind)
        now = str(self._driver.partition().epoch)
        _fill(made, {name: now if text == "NOW" else text for name, text in options.items()})
        return kind, made

    def _fields(self, verb: str, names: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        """Return the kind of a request, and the fields that a sender with the current state gives it."""
        p, incarnation = self._driver.partition(), self._incarnation
        now = {"leader": p.leader, "leaderEpoch": p.leader_epoch, "epoch": p.epoch}
        match verb, names:
            case "report", (node, *place):
                last_epoch, offset = place[0].split("/") if place else ("1", "10")
                position = {"lastEpoch": int(last_epoch), "newestOffset": int(offset)}
                return "reportLeader", now | position | {"witness": node, "witnessIncarnation": incarnation(node)}
            case "promote", ():
                fields = {"candidate": p.candidate, "candidateIncarnation": incarnation(p.candidate), "finished": True}
                return "reportPromotion", now | fields
            case "pass-over", ():
                return "passOver", now | {"candidate": p.candidate}
            case "conclude", ():
                return "concludeElection", now
            case "elect", node:
                return "electLeader", {"node": "".join(node)}
            case "resign", toward:
                return "giveUpLeadership", now | {"incarnation": incarnation(p.leader), "toward": "".join(toward)}
            case "isr", members:
                known = {node: incarnation(node) for node in members if incarnation(node)}
                return "changeIsr", now | {"isr": members, "incarnations": known}
            case "leave-isr", (node,):
                return "leaveIsr", {"node": node, "incarnation": incarnation(node)}
            case "reassign", replicas:
                return "reassign", {"replicas": replicas}
            case "copy", node:
                return "beginCopy", {"epoch": p.epoch, "node": "".join(node)}
            case "fence" | "unfence" | "drain", (node,):
                return f"{verb}Node", {"nodeId": node, "incarnation": incarnation(node)}
            case "register", (node,):
                return "registerNode", {"nodeId": node, "minLevel": SUPPORTED_LEVELS.least, "maxLevel": SUPPORTED_LEVELS.most}
            case "set-node" | "remove", (node,):
                return "setNode" if verb == "set-node" else "removeNode", {"nodeId": node}
            case "truncate", (offset,):
                return "truncateBefore", {"offset": int(offset)}
            case "purge", (offset, subject):
                return "purgeRecords", {"endOffset": int(offset), "subjects": [subject]}
        raise ValueError(f"unknown request: {verb} {' '.join(names)}")

    def _incarnation(self, node: str) -> int:
        return self._driver.incarnation(node) if node in self._driver.fsm.image.nodes else 0


def _fill(message: Message, options: dict[str, str]) -> None:
    """Set the fields that a line names."""
    for name, text in options.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if hasattr(getattr(message, name), "extend"):
            getattr(message, name).extend(map(int, text) if text.isdecimal() else text)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, name, text)
        elif field.type == FieldDescriptor.TYPE_ENUM and not text.isdecimal():
            setattr(message, name, field.enum_type.values_by_name[text].number)
        elif field.type == FieldDescriptor.TYPE_BOOL:
            setattr(message, name, text == "yes")
        else:
            setattr(message, name, int(text))


def _changes(before: PartitionState, after: PartitionState) -> list[str]:
    found = [f"{name}={_shown(getattr(after, name))}" for name in _SHOWN if getattr(after, name) != getattr(before, name)]
    return [*found, "leader_epoch+"] if after.leader_epoch > before.leader_epoch else found


def _node_changes(before: ClusterImage, after: ClusterImage) -> list[str]:
    fenced = [tuple(node for node in sorted(image.nodes) if image.nodes[node].fenced) for image in (before, after)]
    nodes = [tuple(sorted(image.nodes)) for image in (before, after)]
    shown = (("fenced", fenced), ("nodes", nodes))
    return [f"{name}={_shown(now)}" for name, (was, now) in shown if was != now]


def _shown(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, tuple):
        return "".join(value) if all(isinstance(item, str) for item in value) and value else str(len(value) or "-")
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value) or "-"
