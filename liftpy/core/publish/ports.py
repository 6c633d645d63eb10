"""Interfaces that ``Ingest`` and ``Standby`` need from the shell: subscriptions and sending acks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from liftpy.core.publish.acks import AckShell
from liftpy.core.publish.dedup_window import ID_NAME, MAX_ID_BYTES
from liftpy.core.publish.memory_budget import PartitionRoom
from liftpy.core.wire.envelope import MAGIC

_ONE_ID = re.compile(rb"\r\n%b: ?([!-~]{1,%d})\r\n" % (ID_NAME, MAX_ID_BYTES)).search
Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""``sink(subject, reply, payload, header block)`` takes one message."""


class Subscription(Protocol):
    """Subscription to a data subject."""

    def leave(self) -> None:
        """Unsubscribe; what is on its way still comes."""

    def close(self) -> None:
        """Unsubscribe; nothing comes any more."""


class Refuser(Protocol):
    """Refuses publishes that were not looked at, where looking at each costs more than there is time for."""

    def refuses(self) -> bool:
        """Whether ``is_refused_unread`` ones are to be, as of now."""

    def is_new(self, message_id: bytes) -> bool:
        """Whether nothing with that message id is stored, or on its way into the log: who sends it may be told no [A2]."""

    def refuse(self, replies: Sequence[bytes]) -> None:
        """They are: of each, who waits for an answer."""


def is_refused_unread(reply: bytes, payload: bytes, headers: bytes, is_new: Callable[[bytes], bool]) -> bool:
    """Whether somebody waits, and it has neither an id by which it may be stored already, nor an envelope, which has other answers."""
    return bool(reply) and not payload.startswith(MAGIC) and may_be_told_no(headers, is_new)


def may_be_told_no(headers: bytes, is_new: Callable[[bytes], bool]) -> bool:
    """Whether a header block has no message id, or one, as everybody writes it, that is new."""
    if ID_NAME not in headers:
        return True
    found = _ONE_ID(headers)
    return found is not None and headers.count(ID_NAME) == 1 and is_new(found[1])


class IngestShell(AckShell, Protocol):
    """The shell of ingest: receives publishes and sends answers."""

    @property
    def max_payload(self) -> int:
        """Bytes of one message at most, as of now."""

    def listen(
        self, subject: str, sink: Sink, *, given_up: Callable[[int], None], refuser: Refuser | None = None
    ) -> Subscription:
        """Give ``sink`` every message that ``refuser`` does not refuse; ``given_up(count)`` says of how many nobody had room for."""

    def when_heard(self, heard: Callable[[], None]) -> None:
        """Call back once the server knows all subscriptions that were made before."""

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Call back when everything that has arrived together has been given to its sinks."""

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """A message raised what nobody has thought of: it is left out, and that is said."""


class Hearing(Protocol):
    """A subscription to the data subject, on the connection that standbys have."""

    is_denied: bool
    """NATS does not let this node have it."""

    def feed_to(self, sink: Sink, given_up: Callable[[int], None], lost: Callable[[], None]) -> None:
        """From now on another sink gets the messages; ``lost`` is called when the connection is."""

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Call back when everything that has arrived together has been given to its sinks."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back after everything else that is due has had its turn."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once everything that was published before has arrived, or after a bounded time."""

    def leave(self) -> None:
        """Unsubscribe; what is on its way still comes."""

    def close(self) -> None:
        """Unsubscribe; nothing comes any more."""


class StandbyShell(Protocol):
    """The shell of a standby follower: receives publishes."""

    def hear(self, subject: str, sink: Sink, given_up: Callable[[int], None]) -> Hearing:
        """Subscribe, now or once there is a connection; ``given_up(count)`` says of how many nobody had room for."""


class ReplyPolicy(NamedTuple):
    """Decides whether a negative ack is allowed."""

    refuse: Callable[[], bool]
    refuse_for_now: Callable[[], bool]
    """Of what the next leader may store: nobody who stands by may have heard it."""
    room: PartitionRoom
    """What the node has for this partition."""
    leave: Callable[[], bool]
    """Publishes go past this node. Whether they may be left to those who hear them: then it hands over."""
