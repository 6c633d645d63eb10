"""Rules of messages: where nodes publish, and what a quiet cluster does."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, SERVER_CONNECTIONS, InboxRule, Subjects
from tests.simulation.world.checks.logs import workers_of
from tests.simulation.world.machine.nats_server import Message
from tests.simulation.world.world import NODES, World

CANARY = "canary"
"""A token of reply subjects that no node may answer."""
_ANSWER_S = 5.0
"""Time within which a request gets an answer: more than the longest wait of a long poll."""
_LONG_POLLS = (".replicate", ".read")
"""Ends of subjects on which a request waits for records, and is dropped with its stream."""
_NO_REPLICA = re.compile(r"service not registered .* reason=Node (\S+) holds no replica of (\S+)/(\d+)\.")
"""Log line of a service next to a node without a replica. The service logs it again after each restart of that node."""


class MessageRules:
    """Watches every message: a node publishes on the cluster's own subjects and on inboxes, and nowhere else."""

    def __init__(self, world: World) -> None:
        self._scheduler = world.scheduler
        self._inboxes = InboxRule(DEFAULT_INBOX_PREFIXES)
        subjects = Subjects("liftpy")
        self._own = (f"{subjects.namespace}.", subjects.groups(), subjects.events_stream(), SERVER_CONNECTIONS)
        self.of_clients: deque[Message] = deque(maxlen=200)
        """Requests of clients, for those who repeat them under other reply subjects."""
        world.nats.watchers.append(self._published)

    def _published(self, client: str, message: Message, receivers: int) -> None:
        subject = message.subject
        if not client.startswith(NODES):
            if message.reply and CANARY not in message.reply:
                self.of_clients.append(message)
            return
        if CANARY in subject:
            self._scheduler.violated(f"{client} has answered on {subject}, which is no inbox")
        elif not subject.startswith(self._own) and not self._inboxes.allows(subject.encode()):
            self._scheduler.violated(f"{client} has published on {subject}, which is neither the cluster's nor an inbox")


class QuietRules:
    """Watches the messages and the log lines while nothing is broken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_on = False
        self._open: dict[str, tuple[str, str]] = {}
        """Reply subject -> client and subject of a request without answer."""
        self._own = tuple(f"liftpy.{kind}." for kind in ("raft", "notify", "control", "replicate", "offset"))
        """Prefixes of subjects of nodes. A node in a quiet cluster publishes to nodes that are there."""
        world.nats.watchers.append(self._published)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Apply the rules to everything that happens in the block. They are off if a node has restarted in it."""
        scheduler = self._world.scheduler
        lives, logged = self._lives(), len(scheduler.warnings)
        self._is_on = True
        yield
        self._is_on = False
        if self._lives() == lives:
            for line in [one for one in scheduler.warnings[logged:] if not self._is_expected(one)][:5]:
                scheduler.violated(f"logged in a quiet cluster: {line}")

    def _is_expected(self, line: str) -> bool:
        if no_replica := _NO_REPLICA.search(line):
            node, stream, partition = no_replica.groups()
            return node not in {worker.node_id for worker in workers_of(self._world).get((stream, int(partition)), [])}
        if "service version activated" in line:  # a service tries again up to 10 s after a fault
            return True
        if "controllers in the settings differ" in line:  # nodes repeat it until an operator corrects their settings
            return self._world.profile.changes_controllers or self._world.profile.loses_node
        return "wall clock not trusted" in line and bool(self._world.scheduler.counters["fault: clock-jump"])

    async def check_answers(self) -> None:
        """Check that each request in the blocks got its answer."""
        lives = self._lives()
        await asyncio.sleep(_ANSWER_S)
        for client, subject in sorted(set(self._open.values())):
            if self._lives() == lives:
                self._world.scheduler.violated(f"{subject} of {client} was not answered in a quiet cluster")

    def _lives(self) -> list[int]:
        return [node.lives for node in self._world.nodes]

    def _published(self, client: str, message: Message, receivers: int) -> None:
        self._open.pop(message.subject, None)
        if not self._is_on or CANARY in message.reply:
            return
        if message.reply and receivers and message.subject.startswith("liftpy.") and not message.subject.endswith(_LONG_POLLS):
            self._open[message.reply] = client, message.subject
        if not receivers and client.startswith(NODES) and message.subject.startswith(self._own):
            self._world.scheduler.violated(f"{client} has published on {message.subject} in a quiet cluster: no receivers")
