"""A control request on its way over the simulated bus, by the rules of ``liftpy.core.metadata.idempotency``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from liftpy.core.metadata.idempotency import ATTEMPT_NS, PAUSE_NS, ForwardedRequest
from liftpy.core.wire._pb import cluster_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.raft.group_simulation import Run
    from tests.simulation.raft.member import SimMember

Answer = Callable[[pb.ControlResponse], None]
Door = Callable[[Callable[[], None]], None]
"""Runs a callback where the asker lives: later if it is paused, never if it is dead."""


class Asking:
    """``who`` asks, as ``sidecar.metadata.control`` does; ``done(response)`` once. ``here``: the asker is this member."""

    def __init__(
        self,
        run: Run,
        who: str,
        door: Door,
        request: pb.ControlRequest,
        timeout_ns: int,
        done: Answer,
        here: SimMember | None = None,
    ) -> None:
        self._run = run
        self._who = who
        self._door = door
        self._done = done
        self._here = here
        self._way = ForwardedRequest(request, run.now_ns() + timeout_ns)
        self._attempt = 0
        self._begin()

    def _begin(self) -> None:
        way, run = self._way, self._run
        left_ns = way.remaining_ns(run.now_ns())
        if way.decided or not left_ns:
            self._done(way.response)
            return
        self._attempt += 1
        number = self._attempt
        if self._here is not None and self._here.log.leads:
            self._here.decide(way.request, left_ns, lambda response: self._given(number, response))
            return
        listening = [member for member in run.up.values() if not run.is_cut(self._who)]
        if not listening:
            self._ended(number, lambda: way.attempt_failed("no controller can be reached", sent=False))
            return
        sent = way.request.SerializeToString()
        for member in listening:
            run.travel(self._who, member.node_id, lambda member=member: member.run(lambda: self._arrived(number, member, sent)))
        run.later(
            min(left_ns, ATTEMPT_NS),
            lambda: self._door(lambda: self._ended(number, lambda: way.attempt_failed("no answer", sent=True))),
        )

    def _arrived(self, number: int, member: SimMember, sent: bytes) -> None:
        """As ``ControlHandler``: whoever leads answers; where nobody does, others say what they know."""
        request = pb.ControlRequest.FromString(sent)
        request.sender = self._who
        if not member.log.leads:
            response = member.member.answer_without_leader(request)
            if response is not None:
                self._reply(number, member, response)
            return
        member.decide(request, 2_000_000_000, lambda response: self._reply(number, member, response))

    def _reply(self, number: int, member: SimMember, response: pb.ControlResponse | None) -> None:
        if response is None:
            return
        said = response.SerializeToString()
        self._run.travel(
            member.node_id, self._who,
            lambda: self._door(lambda: self._ended(number, lambda: self._way.response_received(pb.ControlResponse.FromString(said)))),
        )  # fmt: skip

    def _given(self, number: int, response: pb.ControlResponse | None) -> None:
        if response is None:
            self._ended(number, lambda: self._way.attempt_failed("it leads no more", sent=False))
        else:
            self._ended(number, lambda: self._way.response_received(response))

    def _ended(self, number: int, take: Callable[[], object]) -> None:
        """The first answer to the attempt that is under way counts."""
        if number != self._attempt or self._way.decided:
            return
        take()
        self._attempt += 1  # what else comes of this attempt is late
        if self._way.decided:
            self._done(self._way.response)
            return
        pause_ns = min(PAUSE_NS, self._way.remaining_ns(self._run.now_ns()))
        self._run.later(max(pause_ns, 1), lambda: self._door(self._begin))
