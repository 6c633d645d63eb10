"""Builds every NATS subject that liftpy uses, checks reply subjects, and compares subjects with wildcards.

``liftpy.core.base.ids`` checks the names before they become a part of a subject.

Reply subjects: a publisher must not be able to make a node publish on a subject of its choice. So nodes answer only under
allowed inbox prefixes [A5] (``InboxRule``). ``reply_to`` is the one place where a reply subject is checked.
``BusConnection.answer`` and ``publish_answer`` send every answer, and both call it at that time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from liftpy.core.base.ids import check_name
from liftpy.core.wire.decode_errors import REPLY
from liftpy.errors import ConfigError, InvalidNameError

ANY = "*"
REST = ">"
DEFAULT_INBOX_PREFIXES = ("_INBOX*.",)
MAX_REPLY_BYTES = 255
"""Maximum length of a reply subject, in bytes.

A server accepts lines of at most 4,096 bytes (``max_control_line``), and disconnects a sender of longer ones.
"""

_PREFIX = re.compile(r"(?:[^\s.*>\x00-\x1f\x7f]+\.)*[^\s.*>\x00-\x1f\x7f]+\*?\.")
_IN_TOKEN = rb"[!-)+-\-/-=?-~\x80-\xff]"
_SUFFIX_BEGINS = ("_", "-")
_IN_SUBJECT = rb"[!-)+-=?-~\x80-\xff]"


Allows = Callable[[bytes], bool]
"""Function that returns whether a reply subject may be answered, such as an ``InboxRule``."""
SERVER_CONNECTIONS = "$SYS.REQ.ACCOUNT.PING.CONNZ"
"""Subject on which nats-server reports the pending data of the own account's connections."""
JETSTREAM_INBOX = "_INBOX_liftpy-jetstream"
"""Inbox prefix, without the dot, for reads of the nodes that answer JetStream's read API."""
GROUPS_INBOX = "_INBOX_liftpy-groups"
"""Inbox prefix, without the dot, for answers to the group coordinators in the nodes."""
GROUPS_STREAM = "_groups"
"""Internal stream of the commands of group members and queue workers."""
GROUPS_SERVICE = "groups"
"""Name of the replicated service that coordinates consumer groups. It reads ``GROUPS_STREAM``."""
EVENTS_STREAM = "_liftpy-events"
"""Internal stream of cluster events and operator requests."""
RESERVED_NAMES = frozenset({"control", "feed", "inbox", "info", "notify", "raft", "service", "status"})
"""Tokens that follow the namespace in the protocol's own subjects. No stream may have one of these names."""
PARTITION_TOKENS = frozenset({"replicate", "offset", "read"})
"""Last tokens of the subjects of partitions. No node and no principal may have one of these names.

Otherwise a user with the permission ``<ns>.*.*.read`` could publish for it on ``<ns>.control.node.read``.
"""


def check_inbox_prefixes(prefixes: Sequence[str]) -> None:
    """Raise ConfigError unless there is at least one inbox prefix, and all ``prefixes`` are valid."""
    wrong = next((prefix for prefix in prefixes if not _PREFIX.fullmatch(prefix)), None)
    if wrong is not None or not prefixes:
        which = f"{wrong!r} is none: " if wrong is not None else "at least one is needed: "
        raise ConfigError(
            f"Invalid inbox_prefixes: {which}each prefix must end with a dot, such as '_INBOX.'. A star before "
            "the dot is allowed ('_INBOX*.')."
        )


def token_allows(pattern: str, token: str) -> bool:
    """Return whether ``token`` of a subject matches ``pattern``, a token of an inbox prefix."""
    if not pattern.endswith("*"):
        return token == pattern
    stem = pattern[:-1]
    rest = token.removeprefix(stem)
    return token.startswith(stem) and (not rest or stem.endswith(_SUFFIX_BEGINS) or rest.startswith(_SUFFIX_BEGINS))


class InboxRule:
    """Rule for reply subjects to which a node sends answers.

    They are UTF-8 below an inbox prefix, of limited length, without wildcards, spaces and control characters. Applications have
    their prefixes (``DEFAULT_INBOX_PREFIXES``, or the setting), and nodes have ``<ns>.inbox.<node>.``. A node never answers one
    of them below the prefixes of the other.

    A prefix ends with a dot. A star before that dot stands for nothing, or for a suffix that begins with ``_`` or ``-``. So
    ``_INBOX*.`` includes ``_INBOX.`` and the inbox of every user (``_INBOX_alice.``), which NATS recommends if users must not
    receive each other's answers. It does not include ``_INBOXX.``.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        choices = b"|".join(_expression(prefix) for prefix in prefixes)
        self._pattern = re.compile(rb"(?:%b)%b+" % (choices, _IN_SUBJECT))
        self._lines = re.compile(rb"(?:(?:%b)%b++\n)*+" % (choices, _IN_SUBJECT))

    def __call__(self, subject: bytes) -> bool:
        return self.allows(subject)

    def allows(self, subject: bytes) -> bool:
        fits = len(subject) <= MAX_REPLY_BYTES and self._pattern.fullmatch(subject) is not None
        return fits and (subject.isascii() or _is_utf8(subject))

    def allows_all(self, subjects: Sequence[bytes], ending: bytes = b"") -> bool:
        """Check all ``subjects`` at once. Return True only if a node may certainly send answers to all of them.

        If the result is False, the caller checks them one by one. ``ending``: a subject that ends with it makes the result
        False.
        """
        lines = b"\n".join(subjects) + b"\n"
        if max(map(len, subjects), default=0) > MAX_REPLY_BYTES or not lines.isascii():
            return False
        # a line feed within a subject must not make two of it
        apart = bool(ending) and ending + b"\n" in lines
        return not apart and lines.count(b"\n") == len(subjects) and self._lines.fullmatch(lines) is not None


def reply_to(reply: bytes | str, rules: Sequence[Allows], counters: Counter[str], under: str = "") -> str | None:
    """Return ``reply`` as text if a node may send an answer to it. Otherwise count it and return None.

    One of ``rules`` must allow it, and it must begin with ``under``. ``counters``: gets the number of rejected reply subjects.
    """
    subject = reply if isinstance(reply, bytes) else reply.encode("utf-8", "surrogateescape")
    if not under or subject.startswith(under.encode()):
        for rule in rules:
            if rule(subject):
                return subject.decode()
    counters[REPLY] += 1
    return None


async def publish_answer(
    publish: Callable[..., Awaitable[Any]],
    rules: Sequence[Allows],
    counters: Counter[str],
    reply: bytes | str,
    payload: bytes,
    headers: dict[str, str] | None = None,
) -> bool:
    """Publish an answer, but only to an allowed inbox.

    Args:
        publish: Function of (subject, payload, headers=...).
        rules: Rules of allowed inboxes.
        counters: Counts rejected reply subjects.
        reply: Reply subject of the request.
        payload: The answer.
        headers: Headers of the answer.

    Returns:
        False if ``reply`` is not allowed. It is counted then. Raises the errors of ``publish``.
    """
    subject = reply_to(reply, rules, counters)
    if subject is None:
        return False
    await (publish(subject, payload) if headers is None else publish(subject, payload, headers=headers))
    return True


def _expression(prefix: str) -> bytes:
    if prefix.endswith("*."):
        stem = prefix[:-2]
        rest = _IN_TOKEN + b"*" if stem.endswith(_SUFFIX_BEGINS) else rb"(?:[_-]" + _IN_TOKEN + b"*)?"
        return re.escape(stem.encode()) + rest + rb"\."
    return re.escape(prefix.encode())


def _is_utf8(subject: bytes) -> bool:
    try:
        subject.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Subjects:
    """Builds the subjects of one cluster. ``namespace``: first token of these subjects."""

    namespace: str = "liftpy"
    inbox_prefixes: tuple[str, ...] = DEFAULT_INBOX_PREFIXES
    """Inbox prefixes of applications. No stream may have a subject there."""
    principal: str = ""
    """Name under which this user requests changes, if the permissions of NATS prove it."""

    def __post_init__(self) -> None:
        check_name(self.namespace, "namespace")
        if self.principal:
            check_node_or_principal(self.principal, "principal")

    def replicate(self, stream: str, partition: int) -> str:
        """Return the subject of the fetches of followers. The partition's leader subscribes."""
        return f"{self.namespace}.{stream}.{partition}.replicate"

    def offset(self, stream: str, partition: int) -> str:
        """Return the subject of the epoch queries of followers. The partition's leader subscribes."""
        return f"{self.namespace}.{stream}.{partition}.offset"

    def read(self, stream: str, partition: int) -> str:
        """Return the subject of reads. Every ISR member subscribes in the queue group of this name."""
        return f"{self.namespace}.{stream}.{partition}.read"

    def read_from(self, stream: str, partition: int, node_id: str) -> str:
        """Return the subject of reads that only the node ``node_id`` answers."""
        return f"{self.namespace}.{stream}.{partition}.read.{node_id}"

    def notify(self, node_id: str) -> str:
        """Return the subject on which a node receives notices of leaders, and notifications for its idle followers."""
        return f"{self.namespace}.notify.{node_id}"

    def info(self) -> str:
        """Return the subject of read-only metadata requests. All controllers subscribe, and the metadata leader answers."""
        return f"{self.namespace}.info"

    def control_admin(self) -> str:
        """Return the subject of operator requests. All controllers subscribe, and the metadata leader answers."""
        return f"{self.namespace}.control.admin" + (f".{self.principal}" if self.principal else "")

    def control_admin_all(self) -> tuple[str, str]:
        """Return the subjects on which controllers receive operator requests: without and with the name of a principal."""
        return f"{self.namespace}.control.admin", f"{self.namespace}.control.admin.*"

    def control_node(self, node_id: str) -> str:
        """Return the subject of the requests of one node to the controllers. NATS permissions can check the node id in it."""
        return f"{self.namespace}.control.node.{node_id}"

    def control_level(self, node_id: str) -> str:
        """Return the subject on which operators change a node's log level for a time."""
        return f"{self.namespace}.control.level.{node_id}"

    def control_settings(self, node_id: str) -> str:
        """Return the subject on which a node receives requests to reload its settings."""
        return f"{self.namespace}.control.settings.{node_id}"

    def control_events(self, node_id: str) -> str:
        """Return the subject of requests to a controller for events of the cluster."""
        return f"{self.namespace}.control.events.{node_id}"

    def events(self, kind: str) -> str:
        """Return the subject on which the metadata leader publishes events of this kind."""
        return f"{self.namespace}.events.{kind}"

    def inbox(self, node_id: str) -> str:
        """Return the prefix (without the last dot) of the subjects on which the node ``node_id`` gets answers of nodes and
        controllers.
        """
        return f"{self.namespace}.inbox.{node_id}"

    def inboxes(self) -> str:
        """Return the prefix, with a dot at the end, of all subjects on which nodes get answers. Applications never get
        answers there.
        """
        return f"{self.namespace}.inbox."

    def raft(self, to: str, sender: str) -> str:
        """Return the subject of a frame of the metadata group. NATS permissions can check the sender in it."""
        return f"{self.namespace}.raft.{to}.{sender}"

    def raft_inbox(self, node_id: str) -> str:
        """Return the subject that a member of the metadata group subscribes to."""
        return f"{self.namespace}.raft.{node_id}.*"

    def feed(self) -> str:
        """Return the subject on which the metadata leader publishes applied records, for nodes that are not controllers."""
        return f"{self.namespace}.feed"

    def feed_snapshot(self) -> str:
        """Return the subject of requests for pieces of the metadata image."""
        return f"{self.namespace}.feed.snapshot"

    def status(self, node_id: str) -> str:
        """Return the subject of requests for a node's own status of its partitions (`liftpy status`)."""
        return f"{self.namespace}.status.{node_id}"

    def groups(self) -> str:
        """Return the data subject of the stream of groups. Group members and queue workers send their commands there.

        It is outside of the namespace, as all streams are. Partition N subscribes to ``<this>.N`` (``data_subject``).
        """
        return f"{self.namespace}-groups"

    def events_stream(self) -> str:
        """Return the data subject of the internal stream of events. Only the metadata leader publishes to it."""
        return f"{self.namespace}-events"

    def service(self, node_id: str) -> str:
        """Return the subject that replicated services of old versions use to register, before there was ``service_session``."""
        return f"{self.namespace}.service.{node_id}"

    def service_session(self, node_id: str, stream: str, service: str) -> str:
        """Return the subject on which a replicated service in the node's host registers, reports and acks. It contains the
        stream and the name for NATS permissions.
        """
        return f"{self.namespace}.service.{node_id}.session.{stream}.{service}"

    def service_query(self, service: str) -> str:
        """Return the subject of queries of a service's state over partition 0. For partition N it is ``<this>.N``
        (``data_subject``).
        """
        return f"{self.namespace}.service.{service}.query"

    def service_snapshot(self, service: str, node_id: str) -> str:
        """Return the subject on which the service processes of one node send their snapshots to those of other nodes."""
        return f"{self.namespace}.service.{service}.snapshot.{node_id}"


def check_node_or_principal(name: str, what: str) -> str:
    """Return ``name`` if a node or a principal may have it. Otherwise raise InvalidNameError.

    ``what``: text that the error begins with, such as ``node``.
    """
    if name in PARTITION_TOKENS:
        raise InvalidNameError(f"{what} {name!r} is a word of the protocol's own subjects: choose another")
    return check_name(name, what)


def jetstream_api(domain: str, rest: str) -> str:
    """Return the subject of a JetStream API request. ``domain``: JetStream domain. ``rest``: tokens after the API prefix."""
    return f"$JS.{domain}.API.{rest}"


def is_protocol_shaped(subject: str) -> bool:
    """Return whether the protocol of some liftpy cluster uses subjects like ``subject`` (no wildcards), in any namespace."""
    tokens = subject.split(".")
    return len(tokens) > 1 and (tokens[1] in RESERVED_NAMES or (len(tokens) in (4, 5) and tokens[3] in PARTITION_TOKENS))


def has_wildcards(subject: str) -> bool:
    """Return whether a token of ``subject`` is ``*``, or its last token is ``>``."""
    tokens = subject.split(".")
    return "*" in tokens or tokens[-1] == ">"


def overlaps(one: str, other: str) -> bool:
    """Return whether some subject matches both ``one`` and ``other``, which may have wildcards."""
    ones, others = one.split("."), other.split(".")
    for mine, theirs in zip(ones, others, strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return len(ones) == len(others)


def matcher(subject: str) -> Callable[[str], bool]:
    """Return a function that checks whether a given subject without wildcards matches ``subject``.

    ``>`` is a wildcard as the last token only, as in NATS. The work of one call is linear in the length of both [A21].
    """
    tokens = subject.split(".")
    if tokens[-1] == ">":
        return _matcher_of_tokens(tokens[:-1], is_prefix=True)
    if "*" in tokens:
        return _matcher_of_tokens(tokens, is_prefix=False)
    return lambda literal: literal == subject


def _matcher_of_tokens(tokens: list[str], *, is_prefix: bool) -> Callable[[str], bool]:
    begin = literal_prefix(tokens)
    wanted = [(at, token) for at, token in enumerate(tokens) if token != "*"][begin.count(".") :]
    count = len(tokens)

    def matches(literal: str) -> bool:
        if not literal.startswith(begin):
            return False
        dots = literal.count(".")
        if (dots < count) if is_prefix else (dots + 1 != count):
            return False
        own = literal.split(".")
        for at, token in wanted:
            if own[at] != token:
                return False
        return "" not in own

    return matches


def literal_prefix(tokens: Sequence[str]) -> str:
    """Return the tokens before the first wildcard, each with its dot. All matching subjects begin with the result."""
    literal = takewhile(lambda token: token not in ("*", ">"), tokens)
    return "".join(f"{token}." for token in literal)


def data_subject(stream_subject: str, partition: int) -> str:
    """Return the subject on which applications publish to ``partition`` of a stream.

    It is ``stream_subject`` for partition 0, and ``<stream_subject>.N`` for partition N.
    """
    return stream_subject if partition == 0 else f"{stream_subject}.{partition}"


def overlaps_inbox(subject: str, partitions: int, prefix: str) -> bool:
    """Return whether a stream on ``subject`` with this number of ``partitions`` would receive messages to an inbox below ``prefix``."""
    wanted = prefix.removesuffix(".").split(".")
    tokens = subject.split(".") + ([ANY] if partitions > 1 else [])
    for place, token in enumerate(wanted):
        if place >= len(tokens) or not (tokens[place] in (ANY, REST) or token_allows(token, tokens[place])):
            return False
        if tokens[place] == REST:
            return True
    return len(tokens) > len(wanted)
