"""Table of all subjects with their publishers and subscribers, and the NATS permissions of each role. Pure.

Goal: an operator need not find out by trying which permissions a user needs, and no user has more than it needs.
Constraint: every subject that the code builds has a row. A test compares the rows with ``Subjects``, and finds
subjects that are built elsewhere.

Algorithm: the permissions of a role are the rows that name it. A node has everything below the namespace in one
pattern. The wildcards of NATS are complete tokens, so a pattern such as ``<ns>.*.*.read`` also matches
``<ns>.control.admin.read``. Therefore no node and no principal may have a name that the subjects of partitions end
with. Controllers reject these names (``liftpy.core.metadata.controller.admission``).

Worked example: a reader of ``orders`` may publish on ``liftpy.info``, ``liftpy.orders.*.read`` and
``liftpy.orders.*.read.*``, and subscribe to ``_INBOX.>``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from liftpy.core.wire.subjects import EVENTS_STREAM, GROUPS_INBOX, JETSTREAM_INBOX, SERVER_CONNECTIONS, data_subject

RESPONSES_MAX = 1_000
"""Maximum number of answers of a node to one request, if the inbox is below no prefix that nodes may publish to."""
RESPONSES_EXPIRE_S = 30
QUERY_RESPONSES_MAX = 1
QUERY_RESPONSES_EXPIRE_S = 5
"""Time in which a service may answer a query, in seconds."""
_MAX_LISTED_PARTITIONS = 64


class AccessRole(Enum):
    """Role of a NATS user, which determines its permissions."""

    PUBLISHER = "publisher"
    READER = "reader"
    NODE = "node"
    OPERATOR = "operator"
    STATUS = "status"
    SERVICE = "service"
    MEMBER = "member"


@dataclass(frozen=True, slots=True)
class PermissionRow:
    """One row of the table of subjects.

    ``built_by``: function in ``liftpy.core.wire.subjects`` that builds the subject, '' for subjects of applications and of
    nats-server. ``pattern``: the subject, with the placeholders {ns}, {stream}, {principal}, {queried}, {data}, {inbox} and
    {jetstream}.
    """

    built_by: str
    pattern: str
    publish: frozenset[AccessRole]
    subscribe: frozenset[AccessRole]


def _use(
    built_by: str, pattern: str, publish: tuple[AccessRole, ...], subscribe: tuple[AccessRole, ...] = (AccessRole.NODE,)
) -> PermissionRow:
    return PermissionRow(built_by, pattern, frozenset(publish), frozenset(subscribe))


_ASKERS = (AccessRole.READER, AccessRole.OPERATOR)
_READERS = (AccessRole.READER, AccessRole.SERVICE, AccessRole.MEMBER)
_COMMANDERS = (AccessRole.MEMBER, AccessRole.NODE)
_APPLICATIONS = tuple(role for role in AccessRole if role is not AccessRole.NODE)
USES = (
    _use("replicate", "{ns}.{stream}.*.replicate", (AccessRole.NODE,)),
    _use("offset", "{ns}.{stream}.*.offset", (AccessRole.NODE,)),
    _use("read", "{ns}.{stream}.*.read", _READERS),
    _use("read_from", "{ns}.{stream}.*.read.*", _READERS),
    _use("notify", "{ns}.notify.*", (AccessRole.NODE,)),
    _use("info", "{ns}.info", (*_READERS, AccessRole.OPERATOR, AccessRole.STATUS)),
    _use("control_admin", "{ns}.control.admin{principal}", (AccessRole.OPERATOR,)),
    _use("control_node", "{ns}.control.node.*", (AccessRole.NODE,)),
    _use("control_level", "{ns}.control.level.*", (AccessRole.OPERATOR,)),
    _use("control_settings", "{ns}.control.settings.*", (AccessRole.OPERATOR,)),
    _use("control_events", "{ns}.control.events.*", (AccessRole.OPERATOR,)),
    _use("events", "{ns}.events.*", (AccessRole.NODE,), (AccessRole.OPERATOR,)),
    _use("raft", "{ns}.raft.*.*", (AccessRole.NODE,)),
    _use("feed", "{ns}.feed", (AccessRole.NODE,)),
    _use("feed_snapshot", "{ns}.feed.snapshot", (AccessRole.NODE,)),
    _use("inbox", "{ns}.inbox.*.>", (AccessRole.NODE,)),
    _use("status", "{ns}.status.*", (AccessRole.OPERATOR, AccessRole.STATUS, AccessRole.SERVICE, AccessRole.NODE)),
    _use("service", "{ns}.service.*", ()),
    _use("service_session", "{ns}.service.*.session.{stream}.{queried}", (AccessRole.SERVICE,)),
    _use("service_query", "{ns}.service.{queried}.query", _ASKERS, (AccessRole.SERVICE,)),
    _use("", "{ns}.service.{queried}.query.*", _ASKERS, (AccessRole.SERVICE,)),
    _use("service_snapshot", "{ns}.service.{queried}.snapshot.*", (AccessRole.SERVICE,), (AccessRole.SERVICE,)),
    _use("data_subject", "{data}", (AccessRole.PUBLISHER, AccessRole.SERVICE, AccessRole.MEMBER)),
    _use("groups", "{ns}-groups", _COMMANDERS),
    _use("", "{ns}-groups.*", _COMMANDERS),
    _use("events_stream", "{ns}-events", (AccessRole.NODE,)),
    _use("", f"{GROUPS_INBOX}.>", (AccessRole.NODE,)),
    _use("", SERVER_CONNECTIONS, (AccessRole.NODE,), ()),
    _use("", "{inbox}.>", (AccessRole.NODE,), _APPLICATIONS),
    _use("", "$JS.{jetstream}.API.>", (AccessRole.READER,)),
    _use("", "{jetstream_inbox}.>", (AccessRole.NODE,)),
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Scope of a user's permissions: which streams and subjects they include.

    ``streams``: names, empty means all. ``data_subjects``: subjects of publishers and streams, wildcards allowed.
    ``inbox_prefix``: without a trailing dot.
    """

    namespace: str = "liftpy"
    streams: tuple[str, ...] = ()
    data_subjects: tuple[str, ...] = ()
    inbox_prefix: str = "_INBOX"
    principal: str = ""
    services: tuple[str, ...] = ()
    """Replicated services that a reader or an operator may query. ``*``: all. Empty: none.

    For the user of a service: the services that it runs. Empty: all.
    """
    replies: tuple[str, ...] = ()
    """Inbox prefixes, without a trailing dot, to which a service's user or a node may send answers."""
    jetstream: str = ""
    """Domain in which nodes answer JetStream's read API, for all streams. '': they do not."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """NATS permissions of a user: subjects with wildcards for publishing and subscribing.

    ``responses``: limit of replies to received requests (count, seconds). None: the user sends none.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: tuple[int, int] | None = None


def rights_of(role: AccessRole, scope: Scope) -> Permissions:
    """Return the NATS permissions that a user with this ``role`` and ``scope`` needs, and no others."""
    queried = scope.services or (("*",) if role in (AccessRole.SERVICE, AccessRole.NODE) else ())
    publish = _subjects(scope, queried, [use for use in USES if role in use.publish])
    subscribe = _subjects(scope, queried, [use for use in USES if role in use.subscribe])
    if role is AccessRole.SERVICE:
        publish = (*publish, *(f"{prefix}.>" for prefix in scope.replies))
        return Permissions(publish, subscribe, (QUERY_RESPONSES_MAX, QUERY_RESPONSES_EXPIRE_S))
    if role is AccessRole.OPERATOR:  # the rows of readers, for that stream alone
        events = f"{scope.namespace}.{EVENTS_STREAM}.*.read"
        return Permissions((*publish, events, f"{events}.*"), subscribe)
    if role is not AccessRole.NODE:
        return Permissions(publish, subscribe)
    everything = f"{scope.namespace}.>"
    own = f"{scope.namespace}."
    return Permissions(
        (everything, *(s for s in publish if not s.startswith(own)), *(f"{prefix}.>" for prefix in scope.replies)),
        (everything, *(subject for subject in subscribe if not subject.startswith(own))),
        (RESPONSES_MAX, RESPONSES_EXPIRE_S),
    )


def combined_rights(roles: Iterable[AccessRole], scope: Scope) -> Permissions:
    """Return the NATS permissions of one user that has several ``roles``."""
    rights = [rights_of(role, scope) for role in roles]
    publish = dict.fromkeys(subject for one in rights for subject in one.publish)
    subscribe = dict.fromkeys(subject for one in rights for subject in one.subscribe)
    return Permissions(tuple(publish), tuple(subscribe), max((one.responses for one in rights if one.responses), default=None))


def _subjects(scope: Scope, queried: tuple[str, ...], uses: list[PermissionRow]) -> tuple[str, ...]:
    fills = {
        "ns": (scope.namespace,),
        "stream": scope.streams or ("*",),
        "principal": (f".{scope.principal}" if scope.principal else "",),
        "queried": queried,
        "data": scope.data_subjects,
        "inbox": (scope.inbox_prefix,),
        "jetstream": (scope.jetstream,) if scope.jetstream else (),
        "jetstream_inbox": (JETSTREAM_INBOX,) if scope.jetstream else (),
    }
    subjects: dict[str, None] = {}
    for use in uses:
        patterns = [use.pattern]
        for name, values in fills.items():
            place = "{" + name + "}"
            patterns = [p.replace(place, value) for p in patterns for value in (values if place in p else ("",))]
        subjects |= dict.fromkeys(patterns)
    return tuple(subjects)


def partition_subjects(subject: str, partitions: int) -> tuple[str, ...]:
    """Return the subjects of a publisher, one for each partition. Many partitions are combined with a wildcard."""
    if partitions > _MAX_LISTED_PARTITIONS:
        return subject, f"{subject}.*"
    return tuple(data_subject(subject, number) for number in range(partitions))


def as_nats_conf(rights: Permissions) -> str:
    """Return the permissions as text for the ``permissions`` of a user in a nats-server configuration."""
    lines = ["permissions: {", _allow("publish", rights.publish), _allow("subscribe", rights.subscribe)]
    if rights.responses is not None:
        lines.append(f'  allow_responses: {{ max: {rights.responses[0]}, expires: "{rights.responses[1]}s" }}')
    return "\n".join([*lines, "}"])


def _allow(what: str, subjects: tuple[str, ...]) -> str:
    quoted = ", ".join(f'"{subject}"' for subject in subjects)
    return f"  {what}: {{ allow: [{quoted}] }}"


def as_nsc(rights: Permissions, user: str) -> str:
    """Return a shell command of ``nsc`` that gives the permissions to ``user``."""
    words = [f"nsc edit user --name {user}"]
    words += [f"--allow-pub {_nsc_item(subject)}" for subject in rights.publish]
    words += [f"--allow-sub {_nsc_item(subject)}" for subject in rights.subscribe]
    if rights.responses is not None:
        words.append(f"--allow-pub-response={rights.responses[0]} --response-ttl {rights.responses[1]}s")
    return " \\\n  ".join(words)


def _nsc_item(subject: str) -> str:
    """Return one subject as a value for a flag of ``nsc``. It reads values as CSV, so commas must be quoted."""
    return f"'\"{subject}\"'" if "," in subject else f"'{subject}'"
