"""Play stories of services at the node of one replica: send their messages and the events of the replica, and describe the effects."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from liftpy.core.base.ids import PartitionKey
from liftpy.core.services.sessions import Effect, ReplicaView, SendToService, ServiceSessions, ServicesReplayed
from liftpy.core.wire._pb import service_pb2 as pb

_NUMBERS = {"instance", "position", "snapshotPosition", "outputCount", "emittedEnd"}


class SessionsPlayer:
    """The sessions of the services of one replica, and the replica."""

    def __init__(self) -> None:
        self._begin([], {})

    def send(self, verb: str, names: list[str], options: dict[str, str]) -> str:
        """Send one request, for example ``hello bank position=3 at=500``, and return its effects."""
        if verb == "retain":
            return str(self._sessions.retain_from())
        if verb == "report":
            return " | ".join(map(_report, self._sessions.report(self._view.high_watermark))) or "="
        effects = self._effects(verb, names, options, int(options.pop("at", "0")))
        return " | ".join([*map(self._shown, effects), *self._state()]) or "="

    def _begin(self, names: list[str], options: dict[str, str]) -> list[Effect]:
        self._view = ReplicaView(False, False, 1, 0, 9, 13)
        self._orders: dict[str, pb.JoinLog] = {}
        self._sessions = ServiceSessions(
            PartitionKey("s", "u1", 0), "n1", ack_ids=itertools.count(1), session_ns=3000, lease_ms=1500, patience_ns=2000,
            compacted="compacted" in options,
        )  # fmt: skip
        return [effect for name in names for effect in self._effects("hello", [name], {"position": "10"}, 0)]

    def _effects(self, verb: str, names: list[str], options: dict[str, str], now: int) -> Iterable[Effect]:
        sessions = self._sessions
        match verb, names:
            case "begin", _:
                return self._begin(names, options)
            case "hello", [name]:
                hello = _hello(name, options)
                return sessions.hello(hello, f"_INBOX.{hello.instance}", self._view, now)
            case "ack", [name]:
                order = self._orders[name]
                given = {"instance": order.instance, "ackId": order.ackId} | {key: int(text) for key, text in options.items()}
                return sessions.ack(pb.ServiceAck(service=name, **given), self._view)
            case (("follow" | "lead" | "suspend"), []):
                self._see(options, leads=verb == "lead")
                return sessions.role_changed(self._view)
            case "promote", []:
                self._see(options, candidate=True, is_retry="retry" in options)
                return sessions.replay(self._view, now)
            case "see", []:
                self._see(options, leads=self._view.leads, candidate=self._view.candidate)
                return []
            case "timeout", []:
                return sessions.stop_waiting_for_services(now)
            case "expire", []:
                return sessions.expire(now)
            case "snapshot", [name]:
                return sessions.snapshot_wanted(name, self._view)
        raise ValueError(f"unknown request: {verb} {names} {options}")

    def _see(self, options: dict[str, str], **role: bool) -> None:
        view = replace(self._view, leads=False, candidate=False, is_retry=False)
        epoch, high_watermark = options.get("epoch", view.leader_epoch), options.get("hw", view.high_watermark)
        self._view = replace(view, leader_epoch=int(epoch), high_watermark=int(high_watermark), **role)

    def _state(self) -> list[str]:
        """Return until when a promotion waits, and the services for which promotions do not wait."""
        until = self._sessions.waits_until_ns
        found = [f"until={until}"] if until is not None else []
        rows = self._sessions.report(self._view.high_watermark)
        for flag in ("excused", "failing"):
            marked = [str(row["service"]) for row in rows if row[flag]]
            found += [f"{flag}={','.join(marked)}"] if marked else []
        return [" ".join(found)] if found else []

    def _shown(self, effect: Effect) -> str:
        if isinstance(effect, ServicesReplayed):
            return f"replayed {effect.position}" + (", promotion continues" if effect.finished else "")
        if not isinstance(effect, SendToService):
            return f"ended {effect}"
        message = effect.message
        assert effect.inbox == f"_INBOX.{message.instance}"
        name = message.service + (f"/{message.instance}" if message.instance != 1 else "")
        if isinstance(message, pb.ServiceRefusal):
            return f"{name} refused {pb.ServiceRefusal.Reason.Name(message.reason)}"
        self._orders[message.service] = message
        role = pb.ServiceRole.Name(message.role).removeprefix("SERVICE_")
        stop = f" stop={message.stopPosition}" if message.stopPosition >= 0 else ""
        snapshot = f" snapshot={message.snapshotRequest}" if message.snapshotRequest else ""
        return f"{name} {role} #{message.ackId} epoch={message.leaderEpoch}{stop}{snapshot}"


def _report(row: dict[str, object]) -> str:
    followed = "followed" if row["acknowledged"] else "not followed"
    numbers = " ".join(f"{key}={row[key]}" for key in ("position", "lag", "output_backlog", "promotion_waits"))
    return f"{row['service']} {row['role']} order={row['order']} {followed} {numbers}"


def _hello(name: str, options: dict[str, str]) -> pb.ServiceHello:
    hello = pb.ServiceHello(service=name, stream="s", partition=0, instance=1)
    for key, text in options.items():
        setattr(hello, key, int(text) if key in _NUMBERS else text if key == "streamUid" else text == "yes")
    return hello
