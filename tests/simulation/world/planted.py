"""Known faults of the shells, put back on purpose: a seed has to find each (``--planted``)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.groups.group import ConsumerGroup
from liftpy.core.groups.queue import WorkQueue
from liftpy.core.metadata.controller import requests
from liftpy.core.metadata.controller.cluster_events import EventLog
from liftpy.core.metadata.feed import FeedSubscription
from liftpy.core.metadata.placement.rebalance import DestinationNodes
from liftpy.core.services.effects import PendingEffects
from liftpy.core.services.machine import LogTimers, ServiceMachine
from liftpy.core.services.queries import PendingQueries
from liftpy.core.services.replies import AnswerTable
from liftpy.core.wire import subjects
from liftpy.nats.request_guard import RequestGuard
from liftpy.service import output_writer, query_server, snapshots
from liftpy.service.bad_record_writer import DecisionWriter
from liftpy.service.host import ServiceHost
from liftpy.service.snapshots import SnapshotStore
from sidecar.groups.coordinators import GroupLags
from sidecar.metadata.group_thread import GroupThread
from sidecar.partition.flushing import Flusher


def _request_ends_node() -> None:
    """Mutant: an error in a request handler ends the node."""

    def run(self: Any, work: Any, reply: bytes) -> Any:
        return work

    RequestGuard.run = run  # type: ignore[method-assign]
    _request_fails()


def _anywhere(reply: Any, rules: Any, counters: Any, under: str = "") -> str:
    return reply if isinstance(reply, str) else bytes(reply).decode()


def _any_reply() -> None:
    """Answers go to whatever subject the asker names."""
    for module in list(sys.modules.values()):
        if getattr(module, "reply_to", None) is subjects.reply_to and module is not subjects:
            module.reply_to = _anywhere  # type: ignore[attr-defined]
    subjects.reply_to = _anywhere
    subjects.InboxRule.allows = lambda self, subject: True  # type: ignore[method-assign]


def _any_query_reply() -> None:
    """Mutant: every query is answered on any reply subject."""
    query_server.reply_to = snapshots.reply_to = _anywhere  # type: ignore[attr-defined]
    query_server.publish_answer = _publish_anywhere  # type: ignore[attr-defined]


async def _publish_anywhere(
    publish: Any, rules: Any, counters: Any, reply: Any, payload: Any, headers: Any = None, under: str = ""
) -> bool:
    await publish(_anywhere(reply, (), None), payload, **({} if headers is None else {"headers": headers}))
    return True


def _unbounded_settle() -> None:
    """Mutant: a settlement inspects each piece, without a limit."""
    settle = WorkQueue.settle

    def slowly(self: Any, settlement: Any, *args: Any, **options: Any) -> Any:
        for piece in list(self._pieces):
            for _ in self._pieces[: len(self._pieces) // 40]:
                self._index(piece.start)
        return settle(self, settlement, *args, **options)

    WorkQueue.settle = slowly  # type: ignore[method-assign]


def _flush_unheard() -> None:
    """Mutant: the end of every fifth flush in a thread is not reported to the log. A node has about ten of them in a history."""
    begin = Flusher._flush_ended

    def forgets(self: Any, flush: Any) -> None:
        flushes = self._place  # the flushers of a node share it
        flushes.planted = getattr(flushes, "planted", 0) + 1
        if flushes.planted % 5:
            begin(self, flush)

    Flusher._flush_ended = forgets  # type: ignore[method-assign]


def _group_watcher_asleep() -> None:
    """A change of the image that comes while one is announced is not announced again."""

    def show(self: GroupThread) -> None:
        before, self._shown = self._shown, self._newest
        if self._shown is not before:
            for watcher in self._watchers:
                watcher(before, self._shown)
        asyncio.get_running_loop().call_later(0.01, setattr, self, "_announced", False)

    GroupThread._show = show  # type: ignore[method-assign]


def _request_fails() -> None:
    """Mutant: a request that no client sends fails in its handler. The guard answers it, and the node continues."""
    from sidecar.node.jetstream_api import JetStreamHandler

    answer = JetStreamHandler._answer

    async def strict(self: Any, reply: bytes, rest: str, body: bytes) -> None:
        body.decode("unicode_escape").encode()  # a lone surrogate has no bytes
        await answer(self, reply, rest, body)

    JetStreamHandler._answer = strict  # type: ignore[method-assign]


def _feed_gaps_stay() -> None:
    """Mutant: a node that is no controller does not ask for entries of the metadata feed that it has missed."""
    request = FeedSubscription.request

    def only_at_the_start(self: Any, now_ns: int) -> Any:
        return request(self, now_ns) if self.image.index == 0 else None

    FeedSubscription.request = only_at_the_start  # type: ignore[method-assign]


def _events_lost() -> None:
    """Mutant: the metadata leader leaves one of two events out of the stream of events."""
    take = EventLog.take_due

    def some(self: Any, most: int) -> Any:
        due = take(self, most)
        return due[1:] if len(due) > 1 else due

    EventLog.take_due = some  # type: ignore[method-assign]


def _lags_unmeasured() -> None:
    """Mutant: the lags of groups are measured, and not reported."""
    measure = GroupLags.measure

    async def forgets(self: Any, coordinators: Any, transport: Any) -> None:
        await measure(self, coordinators, transport)
        self.by_group = {}

    GroupLags.measure = forgets  # type: ignore[method-assign]


def _commits_forgotten() -> None:
    """Mutant: a group confirms commits of every third position, and does not store them."""
    store = ConsumerGroup.place

    def forgets(self: Any, place: Any, position: int, leader_epoch: int) -> None:
        if position % 3:
            store(self, place, position, leader_epoch)

    ConsumerGroup.place = forgets  # type: ignore[method-assign]


# ---- replicated services ---------------------------------------------------------------------------------------------------
def _effect_counts_twice() -> None:
    """Mutant: the first result of every second effect does not end it, so a repetition counts again."""
    end = PendingEffects.end

    def forgets(self: Any, number: int) -> None:
        self.planted = getattr(self, "planted", set())
        if number % 2 and number not in self.planted:
            self.planted.add(number)
        else:
            end(self, number)

    PendingEffects.end = forgets  # type: ignore[method-assign]


def _effect_too_early() -> None:
    """Mutant: effects run before the outputs of their record are written."""
    ServiceHost.emitted_end = property(lambda self: 1 << 60)  # type: ignore[assignment,method-assign]


def _effect_forgotten() -> None:
    """Mutant: a LEADER does not run every third effect."""
    every = PendingEffects.__iter__
    PendingEffects.__iter__ = lambda self: (one for one in every(self) if one.number % 3 != 2)  # type: ignore[method-assign]


def _timer_too_early() -> None:
    """Mutant: a timer that fires takes others with it that are due within a second."""
    pop = LogTimers.pop_due
    LogTimers.pop_due = lambda self, now_ns: pop(self, now_ns + NS_PER_S)  # type: ignore[method-assign]


def _tick_missing() -> None:
    """Mutant: no service writes a tick."""
    ServiceMachine.next_timer_ns = property(lambda self: None)  # type: ignore[assignment,method-assign]


def _route_repeats() -> None:
    """Mutant: a new LEADER copies all outputs of a route again."""
    output_writer.number_of = lambda *_: -1  # type: ignore[attr-defined]


def _dead_letter_missing() -> None:
    """Mutant: records are skipped without a dead letter."""
    skip = DecisionWriter.pass_over

    async def only_decides(self: Any, *args: Any, **options: Any) -> int:
        self._dead_letters = ""
        return await skip(self, *args, **options)

    DecisionWriter.pass_over = only_decides  # type: ignore[method-assign]


def _version_at_once() -> None:
    """Mutant: a service uses the new version of its code without the decision of the log."""
    start = ServiceMachine.start

    def hurries(self: Any, snapshot: Any) -> None:
        start(self, snapshot)
        self.active_version = self.version

    ServiceMachine.start = hurries  # type: ignore[method-assign]


def _stale_query() -> None:
    """Mutant: a service answers queries before its state has reached the end of the committed records."""
    pop_ready = PendingQueries.pop_ready

    def pops_any(self: Any, position: int) -> Any:
        return pop_ready(self, max(position, 1 << 62))

    PendingQueries.pop_ready = pops_any  # type: ignore[method-assign]


def _command_twice() -> None:
    """Mutant: a service forgets the ids of commands with every snapshot."""
    AnswerTable.encode = lambda self: b""  # type: ignore[method-assign]


def _needed_snapshot_deleted() -> None:
    """Mutant: the store deletes the snapshot from which a LEADER produces unwritten outputs again."""
    save = SnapshotStore.save

    def saves_few(self: Any, snapshot: Any, compared_end: int) -> Any:
        stored = save(self, snapshot, compared_end)
        for position in self.positions()[: -self._kept]:
            self._path(position).unlink(missing_ok=True)
        return stored

    SnapshotStore.save = saves_few  # type: ignore[method-assign]


# ---- a node that is lost for ever -------------------------------------------------------------------------------------------
def _lost_replicas_stay() -> None:
    """Mutant: no node is chosen for the replica of a lost or drained node."""
    DestinationNodes.choose = lambda self, *_, **__: None  # type: ignore[method-assign]


def _removed_node_stays() -> None:
    """Mutant: the metadata group confirms the removal of a node, and does not remove it."""
    requests.REQUESTS["removeNode"] = replace(requests.REQUESTS["removeNode"], decide=lambda builder, _: builder.done())


PLANTED: dict[str, Callable[[], None]] = {
    "request-ends-node": _request_ends_node,
    "any-reply": _any_reply,
    "any-query-reply": _any_query_reply,
    "unbounded-settle": _unbounded_settle,
    "flush-unheard": _flush_unheard,
    "watcher-asleep": _group_watcher_asleep,
    "request-fails": _request_fails,
    "feed-gaps-stay": _feed_gaps_stay,
    "events-lost": _events_lost,
    "commits-forgotten": _commits_forgotten,
    "lags-unmeasured": _lags_unmeasured,
    "effect-counts-twice": _effect_counts_twice,
    "effect-too-early": _effect_too_early,
    "effect-forgotten": _effect_forgotten,
    "timer-too-early": _timer_too_early,
    "tick-missing": _tick_missing,
    "route-repeats": _route_repeats,
    "dead-letter-missing": _dead_letter_missing,
    "version-at-once": _version_at_once,
    "stale-query": _stale_query,
    "command-twice": _command_twice,
    "needed-snapshot-deleted": _needed_snapshot_deleted,
    "lost-replicas-stay": _lost_replicas_stay,
    "removed-node-stays": _removed_node_stays,
}
