"""Builds every NATS subject that liftpy uses, from names that were checked by ``liftpy.ids``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from liftpy.core.base.ids import check_name
from liftpy.core.wire.inboxes import DEFAULT_INBOX_PREFIXES
from liftpy.errors import InvalidNameError


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one cluster. ``namespace``: one token, the cluster's own."""

    namespace: str = "liftpy"
    inbox_prefixes: tuple[str, ...] = DEFAULT_INBOX_PREFIXES
    """Under which applications are answered, as in ``liftpy.core.wire.inboxes``. No stream may listen there."""
    principal: str = ""
    """Under which name this user asks for changes, where NATS's rights tie it to one."""

    def __post_init__(self) -> None:
        check_name(self.namespace, "namespace")
        if self.principal:
            check_speaker(self.principal, "principal")

    def replicate(self, stream: str, partition: int) -> str:
        """Followers fetch here; the partition's leader listens."""
        return f"{self.namespace}.{stream}.{partition}.replicate"

    def offset(self, stream: str, partition: int) -> str:
        """Followers reconcile here; the partition's leader listens."""
        return f"{self.namespace}.{stream}.{partition}.offset"

    def read(self, stream: str, partition: int) -> str:
        """Reads; every ISR member listens in the queue group of the same name."""
        return f"{self.namespace}.{stream}.{partition}.read"

    def read_from(self, stream: str, partition: int, node_id: str) -> str:
        """Reads from one named node."""
        return f"{self.namespace}.{stream}.{partition}.read.{node_id}"

    def notify(self, node_id: str) -> str:
        """Wakes the idle followers of a node; also the leaders' notices."""
        return f"{self.namespace}.notify.{node_id}"

    def info(self) -> str:
        """Subject of read-only metadata requests. All controllers subscribe, the metadata leader answers."""
        return f"{self.namespace}.info"

    def control_admin(self) -> str:
        """Subject of operator requests. All controllers subscribe, the metadata leader answers."""
        return f"{self.namespace}.control.admin" + (f".{self.principal}" if self.principal else "")

    def control_admin_all(self) -> tuple[str, str]:
        """Return the subjects of operator requests that controllers subscribe to."""
        return f"{self.namespace}.control.admin", f"{self.namespace}.control.admin.*"

    def control_node(self, node_id: str) -> str:
        """Subject of the requests of one node to the controllers. NATS permissions can check the node id in it."""
        return f"{self.namespace}.control.node.{node_id}"

    def control_level(self, node_id: str) -> str:
        """Operators have a node log more, or less, for a time."""
        return f"{self.namespace}.control.level.{node_id}"

    def control_settings(self, node_id: str) -> str:
        """Subject on which operators tell a node to reload its settings."""
        return f"{self.namespace}.control.settings.{node_id}"

    def control_events(self, node_id: str) -> str:
        """Subject on which a controller returns events of the cluster."""
        return f"{self.namespace}.control.events.{node_id}"

    def events(self, kind: str) -> str:
        """Subject on which the metadata leader publishes events of this kind."""
        return f"{self.namespace}.events.{kind}"

    def inbox(self, node_id: str) -> str:
        """Under which a node is answered, without the last dot: by other nodes and by controllers."""
        return f"{self.namespace}.inbox.{node_id}"

    def inboxes(self) -> str:
        """Under which all nodes are answered; ends with a dot. Applications are never answered there."""
        return f"{self.namespace}.inbox."

    def raft(self, to: str, sender: str) -> str:
        """A frame of the metadata group; the sender is in the subject so that NATS rights can hold it."""
        return f"{self.namespace}.raft.{to}.{sender}"

    def raft_inbox(self, node_id: str) -> str:
        """Subject that a member of the metadata group subscribes to."""
        return f"{self.namespace}.raft.{node_id}.*"

    def feed(self) -> str:
        """Applied records, published by the metadata leader for nodes that are not controllers."""
        return f"{self.namespace}.feed"

    def feed_snapshot(self) -> str:
        """Requests for chunks of the image."""
        return f"{self.namespace}.feed.snapshot"

    def status(self, node_id: str) -> str:
        """A node's own view of its partitions (`liftpy status`)."""
        return f"{self.namespace}.status.{node_id}"

    def groups(self) -> str:
        """Data subject of the stream of groups: members of consumer groups and workers of queues send their commands here. Outside of
        the namespace, since streams are; partition N listens on ``<this>.N`` (``data_subject``)."""
        return f"{self.namespace}-groups"

    def events_stream(self) -> str:
        """Data subject of the internal stream of events. Only the metadata leader publishes to it."""
        return f"{self.namespace}-events"

    def service(self, node_id: str) -> str:
        """Replicated services of versions before ``service_session`` register, report and acknowledge here."""
        return f"{self.namespace}.service.{node_id}"

    def service_session(self, node_id: str, stream: str, service: str) -> str:
        """A replicated service beside a node registers, reports and acknowledges here: permissions bind its stream and its name."""
        return f"{self.namespace}.service.{node_id}.session.{stream}.{service}"

    def service_query(self, service: str) -> str:
        """Queries of the state of a service over partition 0; over partition N they go to ``<this>.N`` (``data_subject``)."""
        return f"{self.namespace}.service.{service}.query"

    def service_snapshot(self, service: str, node_id: str) -> str:
        """Subject on which the service processes of one node send their snapshots to those of other nodes."""
        return f"{self.namespace}.service.{service}.snapshot.{node_id}"


SERVER_CONNECTIONS = "$SYS.REQ.ACCOUNT.PING.CONNZ"
"""Where nats-server answers what it holds for the connections of the own account."""
JETSTREAM_INBOX = "_INBOX_liftpy-jetstream"
"""Inbox prefix, without the dot, under which nodes that answer JetStream's read API are answered what they read."""
GROUPS_INBOX = "_INBOX_liftpy-groups"
"""Inbox prefix, without the dot, under which the coordinators of groups in the nodes are answered."""
GROUPS_STREAM = "_groups"
"""The internal stream of what members of groups say."""
GROUPS_SERVICE = "groups"
"""Name of what reads it and answers: the coordinator, a replicated service."""
EVENTS_STREAM = "_liftpy-events"
"""The internal stream of what happened in the cluster, and who asked for what."""
RESERVED_NAMES = frozenset({"control", "feed", "inbox", "info", "notify", "raft", "service", "status"})
"""Tokens that follow the namespace in the protocol's own subjects: a stream of that name would listen on them."""
PARTITION_WORDS = frozenset({"replicate", "offset", "read"})
"""With which the subjects of partitions end. No node and no principal is called so: who may publish on ``<ns>.*.*.read`` would
speak for it on ``<ns>.control.node.read``."""


def check_speaker(name: str, what: str) -> str:
    """Return ``name`` if a node or a principal may have it, else raise InvalidNameError with ``what``."""
    if name in PARTITION_WORDS:
        raise InvalidNameError(f"{what} {name!r} is a word of the protocol's own subjects: choose another")
    return check_name(name, what)


def jetstream_api(domain: str, rest: str) -> str:
    """Subject of JetStream API requests in the domain ``domain``."""
    return f"$JS.{domain}.API.{rest}"


def is_protocol_shaped(subject: str) -> bool:
    """Whether the protocol of a cluster in some namespace uses subjects like ``subject`` (no wildcards)."""
    tokens = subject.split(".")
    return len(tokens) > 1 and (tokens[1] in RESERVED_NAMES or (len(tokens) in (4, 5) and tokens[3] in PARTITION_WORDS))


def has_wildcards(subject: str) -> bool:
    """Return whether a token of ``subject`` is ``*``, or its last token is ``>``."""
    tokens = subject.split(".")
    return "*" in tokens or tokens[-1] == ">"


def overlaps(one: str, other: str) -> bool:
    """Return whether a subject without wildcards can match both, which may have wildcards."""
    ones, others = one.split("."), other.split(".")
    for mine, theirs in zip(ones, others, strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return len(ones) == len(others)


def matcher(subject: str) -> Callable[[str], bool]:
    """Return a function that checks whether a subject without wildcards matches ``subject``.

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
    """Return the tokens before the first wildcard, each with its dot: all matching subjects start so."""
    literal = takewhile(lambda token: token not in ("*", ">"), tokens)
    return "".join(f"{token}." for token in literal)


def data_subject(stream_subject: str, partition: int) -> str:
    """The subject that applications publish on: partition 0 is the stream's own, partition N is ``<subject>.N``."""
    return stream_subject if partition == 0 else f"{stream_subject}.{partition}"
