"""Settings of a node and of the commands: a TOML file, the environment, flags. The only file that reads the environment.

A flag wins over the environment (``LIFTPY_*``), which wins over the file, which wins over the default. Everything is
checked as a whole before anything starts, and an error names the setting and where it came from.

The file::

    node_id = "n1"                          # LIFTPY_NODE_ID, --node-id; this node's name, never given to another
    data = "/var/lib/liftpy"                # LIFTPY_DATA, --data; folder of the logs and the metadata, one process each
    nats = ["nats://a:4222"]                # LIFTPY_NATS, --nats (comma separated); servers of one NATS cluster
    namespace = "liftpy"                    # LIFTPY_NAMESPACE, --namespace; of the cluster's own subjects, the same on all nodes
    controllers = ["n1", "n2", "n3"]        # LIFTPY_CONTROLLERS; the nodes that form the metadata group
    rack = ""                               # LIFTPY_RACK, --rack; where this node stands, for placement
    weight = 1.0                            # LIFTPY_WEIGHT, --weight; this node's share of partitions, where placement weighs
    status_port = 0                         # LIFTPY_STATUS_PORT; loopback page and metrics, 0: any free port, -1: off
    probe_listen = ""                       # LIFTPY_PROBE_LISTEN; HOST:PORT of another address for probes and metrics, such as a pod's
    page_hosts = []                         # LIFTPY_PAGE_HOSTS; names under which the page may be asked for, beside those of loopback
    scrub_bytes_per_s = 1048576             # LIFTPY_SCRUB_BYTES_PER_S; how fast the logs are read back and checked, 0: never
    inbox_prefixes = ["_INBOX*."]           # LIFTPY_INBOX_PREFIXES; only these are answered; *: nothing, or _x or -x
    jetstream_api = ""                      # LIFTPY_JETSTREAM_API, --jetstream-api: domain of JetStream's read API; "": not answered
    host_groups = true                      # LIFTPY_HOST_GROUPS; false: the coordinators of consumer groups run elsewhere
    offer_files = false                     # LIFTPY_OFFER_FILES; true: readers on this host may be told where the segment files are
    elections = true                        # LIFTPY_ELECTIONS; false: a partition waits for its leader to come back
    bootstrap_majority = false              # --bootstrap-majority; for one start: controllers that are missing have never been any
    metrics_streams = []                    # LIFTPY_METRICS_STREAMS; streams, or such as shop-*, with metrics of their own
    workers = 1                             # LIFTPY_WORKERS, --workers: processes that the node's partitions are shared out among
    memory_limit_bytes = 0                  # LIFTPY_MEMORY_LIMIT_BYTES; for publishes on their way, 0: 25 % of the cgroup or machine
    log_format = "text"                     # LIFTPY_LOG_FORMAT, --log-format: text or json, one object a line
    trace = "off"                           # LIFTPY_TRACE; otlp: spans of this node for messages whose sender records them
    trace_endpoint = ""                     # LIFTPY_TRACE_ENDPOINT; URL of a collector, "": as OTEL_EXPORTER_OTLP_ENDPOINT says
    log_level = "info"                      # LIFTPY_LOG_LEVEL, --log-level: debug, info, warning, error
    [credentials]                           # LIFTPY_CREDS_FILE, LIFTPY_USER, LIFTPY_PASSWORD, LIFTPY_TLS_CA_FILE...
    creds_file = "/etc/liftpy/node.creds"
    [replication]                           # LIFTPY_REPLICATION_<NAME>; fields of liftpy.config.ReplicationConfig
    max_lag_time_s = 5.0

Settings by dotted names, one row each: ``rack``, ``credentials.creds_file``, ``replication.session_s``. No row has a secret.
"""

from __future__ import annotations

import os
import string
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import check_name
from liftpy.core.base.worker_assignment import MOST_WORKERS
from liftpy.core.metadata.feature_range import NO_LEVEL
from liftpy.core.metadata.subject_index import begins_under
from liftpy.core.publish.memory_budget import LEAST_LIMIT_BYTES
from liftpy.core.wire.inboxes import DEFAULT_INBOX_PREFIXES, InboxRule, check_inbox_prefixes
from liftpy.core.wire.subjects import JETSTREAM_INBOX, Subjects, check_speaker
from liftpy.errors import ConfigError
from liftpy.nats.credentials import Credentials
from liftpy.nats.urls import check_urls, shown

if TYPE_CHECKING:
    from liftpy.core.metadata.image import ClusterImage

DEFAULT_NATS = "nats://127.0.0.1:4222"
DEFAULT_NAMESPACE = "liftpy"
STATUS_OFF = -1
_PREFIX = "LIFTPY_"
_REPLICATION_PREFIX = _PREFIX + "REPLICATION_"
_RESTARTS = _PREFIX + "RESTARTS_IN_A_ROW"
"""Not a setting: what a node that starts itself again says to its next life."""
_MAX_RESTARTS = 1_000
_OPEN_NATS_SAID = _PREFIX + "OPEN_NATS_SAID"
"""Not a setting either: another node of the same `liftpy dev` says that its NATS server has no authorization."""
_NOT_OF_DEV = frozenset(
    _PREFIX + name
    for name in (
        "NODE_ID", "DATA", "NATS", "NAMESPACE", "CONTROLLERS", "RACK", "WEIGHT", "STATUS_PORT", "PROBE_LISTEN", "BOOTSTRAP_MAJORITY",
        "WORKERS",
    )
)  # fmt: skip
"""Settings that differ between nodes, or that ``liftpy dev`` has an option for."""
_OF_HOSTS = frozenset(string.ascii_letters + string.digits + ".-:")
_SECTIONS = ("credentials", "replication")
_LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Target:
    """How a command reaches a cluster: servers, namespace, credentials; and whether it may change the cluster's own streams."""

    nats: tuple[str, ...] = field(default=(DEFAULT_NATS,), repr=False)
    namespace: str = DEFAULT_NAMESPACE
    credentials: Credentials = field(default_factory=Credentials)
    internal: bool = False

    def __post_init__(self) -> None:
        check_name(self.namespace, "namespace")
        check_urls(self.nats)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Everything that one sidecar needs to know before it starts.

    ``controllers``: ids of the nodes that form the metadata group, the same list on every node. ``weight``: share of
    partitions for weighted placement. ``status_port``: loopback page; 0 any free port, -1 off. ``elections``: the same on all.
    ``probe_listen``: HOST:PORT where /livez, /readyz and /metrics are answered too, and nothing else; '': nowhere.
    ``jetstream_api``: domain under which this node answers JetStream's stateless read API; '': it does not.
    ``host_groups``: whether the coordinators of consumer groups run here, where replicas of ``_groups`` are.
    ``offer_files``: whether readers are told this host and the folders of its partitions, to open the segment files themselves.
    ``trace``: "otlp": this node's spans of messages whose sender records them go to ``trace_endpoint``; "off": none are made.
    ``workers``: processes of the node, this one among them; they share its partitions out among themselves.
    ``bootstrap_majority``: the operator's word, for the first start of the group, that controllers which can't be reached have never
    been members of it.
    """

    node_id: str
    data: Path
    nats: tuple[str, ...] = field(default=(DEFAULT_NATS,), repr=False)
    namespace: str = DEFAULT_NAMESPACE
    credentials: Credentials = field(default_factory=Credentials)
    controllers: tuple[str, ...] = ()
    rack: str = ""
    weight: float = 1.0
    status_port: int = STATUS_OFF
    probe_listen: str = ""
    page_hosts: tuple[str, ...] = ()
    elections: bool = True
    bootstrap_majority: bool = False
    log_level: str = "info"
    memory_limit_bytes: int = 0
    log_format: str = "text"
    metrics_streams: tuple[str, ...] = ()
    trace: str = "off"
    trace_endpoint: str = field(default="", repr=False)
    scrub_bytes_per_s: int = 1024 * 1024
    inbox_prefixes: tuple[str, ...] = DEFAULT_INBOX_PREFIXES
    jetstream_api: str = ""
    host_groups: bool = True
    offer_files: bool = False
    workers: int = 1
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)

    def __post_init__(self) -> None:
        check_speaker(self.node_id, "node_id")
        check_name(self.namespace, "namespace")
        check_urls(self.nats)
        for controller in self.controllers:
            check_speaker(controller, "controllers:")
        if len(set(self.controllers)) != len(self.controllers):
            raise ConfigError("controllers names a node twice")
        if self.rack:
            check_name(self.rack, "rack")
        if not 0 <= self.scrub_bytes_per_s <= 1 << 34:
            raise ConfigError(f"scrub_bytes_per_s = {self.scrub_bytes_per_s} is outside 0..{1 << 34}")
        if not 1 <= self.workers <= MOST_WORKERS:
            raise ConfigError(f"workers = {self.workers} is outside 1..{MOST_WORKERS}: about one for each core, at most")
        if not 0 <= self.weight <= 1000:
            raise ConfigError(f"weight = {self.weight} is outside 0..1000")
        if not STATUS_OFF <= self.status_port <= 65_535:
            raise ConfigError(f"status_port = {self.status_port}: use 1 to 65535, 0 for any free port, -1 for none")
        if self.probe_listen:
            address_of(self.probe_listen)
        if self.log_level not in _LOG_LEVELS:
            raise ConfigError(f"log_level = {self.log_level!r}: use one of {', '.join(_LOG_LEVELS)}")
        if self.memory_limit_bytes and not LEAST_LIMIT_BYTES <= self.memory_limit_bytes <= 1 << 44:
            raise ConfigError(
                f"memory_limit_bytes = {self.memory_limit_bytes} is outside {LEAST_LIMIT_BYTES}..{1 << 44}, and not 0"
            )
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"log_format = {self.log_format!r}: use text or json")
        if self.trace not in ("off", "otlp"):
            raise ConfigError(f"trace = {self.trace!r}: use off or otlp")
        if self.trace_endpoint and not self.trace_endpoint.startswith(("http://", "https://")):
            raise ConfigError("trace_endpoint: use a URL, such as http://127.0.0.1:4318/v1/traces")
        check_inbox_prefixes(self.inbox_prefixes)
        if self.jetstream_api:
            check_name(self.jetstream_api, "jetstream_api")
            if self.jetstream_api == "API" or not InboxRule(self.inbox_prefixes).allows(f"{JETSTREAM_INBOX}.x".encode()):
                raise ConfigError(
                    f"jetstream_api = {self.jetstream_api!r}: it needs a domain of its own, and inbox_prefixes with {JETSTREAM_INBOX}."
                )
        if any(
            begins_under(f"{self.namespace}.>", 1, prefix) or self.namespace.startswith(prefix.split("*.")[0])
            for prefix in self.inbox_prefixes
        ):
            raise ConfigError(f"inbox_prefixes: applications are not answered under {self.namespace}., where nodes are")
        if self.credentials.inbox_prefix:
            raise ConfigError(
                f"inbox_prefix is for applications; a node is answered under {Subjects(self.namespace).inbox(self.node_id)}"
            )

    @property
    def is_controller(self) -> bool:
        """Whether this node is a member of the metadata group."""
        return self.node_id in self.controllers


def address_of(listen: str) -> tuple[str, int]:
    """(host, port) of ``probe_listen``, an IPv6 address in brackets or not; raise ConfigError if it is none."""
    host, _, port = listen.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not set(host) <= _OF_HOSTS or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ConfigError(f"probe_listen = {listen[:_MAX_SHOWN]!r}: use HOST:PORT, such as 10.0.0.7:8224")
    return host, int(port)


class GivenSettings:
    """Where a node's settings come from. ``flags``: setting -> value as given on the command line, None where it was not given;
    credentials flat among them. ``sources``: of the last ``load``: name, dotted in a section -> ``flag``, ``env`` or ``file``; others
    have their defaults."""

    def __init__(
        self, config_file: Path | None, flags: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self._file = config_file
        self._flags = flags
        self._environment = os.environ if environment is None else environment
        self.sources: Mapping[str, str] = {}

    def load(self) -> NodeSettings:
        """Read and check them, whole; raise ConfigError for anything unknown, missing or wrong."""
        table = _read_file(self._file)
        settings = _loaded(dict(table), self._flags, self._environment)
        own = self._sources(table, NodeSettings, _PREFIX, self._flags, skip=_SECTIONS)
        credentials = self._sources(table.get("credentials", {}), Credentials, _PREFIX, self._flags)
        replication = self._sources(table.get("replication", {}), ReplicationConfig, _REPLICATION_PREFIX, {})
        self.sources = {
            **own,
            **{f"credentials.{name}": source for name, source in credentials.items()},
            **{f"replication.{name}": source for name, source in replication.items()},
        }
        return settings

    def _sources(
        self, table: Mapping[str, Any], cls: type[Any], prefix: str, flags: Mapping[str, Any], skip: tuple[str, ...] = ()
    ) -> dict[str, str]:
        found = {name: "file" for name in table if name not in skip}
        found |= {f.name: "env" for f in fields(cls) if self._environment.get(prefix + f.name.upper())}
        return found | {f.name: "flag" for f in fields(cls) if flags.get(f.name) is not None}


def _loaded(table: dict[str, Any], flags: Mapping[str, Any], environment: Mapping[str, str]) -> NodeSettings:
    credentials = _merge(Credentials, table.pop("credentials", {}), environment, flags, _PREFIX, "[credentials]")
    replication = _merge(ReplicationConfig, table.pop("replication", {}), environment, {}, _REPLICATION_PREFIX, "[replication]")
    values = _values(NodeSettings, table, environment, flags, _PREFIX, skip=_SECTIONS)
    missing = [name for name in ("node_id", "data") if not values.get(name)]
    if missing:
        name = missing[0]
        raise ConfigError(f"{name} is missing: give --{name.replace('_', '-')}, {_PREFIX}{name.upper()} or set it in the file")
    return NodeSettings(**values, credentials=credentials, replication=replication)


def target_from(
    nats: str | None, namespace: str | None, flags: Mapping[str, str | None], environment: Mapping[str, str] | None = None
) -> Target:
    """How to reach the cluster, from flags (None: not given) and the environment."""
    environment = os.environ if environment is None else environment
    urls = nats or environment.get(_PREFIX + "NATS") or DEFAULT_NATS
    space = namespace or environment.get(_PREFIX + "NAMESPACE") or DEFAULT_NAMESPACE
    return Target(_split(urls), space, _merge(Credentials, {}, environment, flags, _PREFIX, "credentials"))


def search_path() -> str:
    """The PATH, for finding nats-server."""
    return os.environ.get("PATH", os.defpath)


def child_environment() -> dict[str, str]:
    """The environment for a node started by ``liftpy dev``: ours, without the settings of any other node."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}


def dev_environment(environment: Mapping[str, str] | None = None) -> tuple[dict[str, str], list[str]]:
    """Return the settings in ``LIFTPY_*`` that hold for all nodes of ``liftpy dev``, and the names of those that it does not use."""
    environment = os.environ if environment is None else environment
    names = {_PREFIX + f.name.upper() for f in fields(NodeSettings) if f.name not in _SECTIONS}
    names |= {_REPLICATION_PREFIX + f.name.upper() for f in fields(ReplicationConfig)}
    given = {name: environment[name] for name in sorted(names) if environment.get(name)}
    unused = [name for name in given if name in _NOT_OF_DEV]
    return {name: value for name, value in given.items() if name not in _NOT_OF_DEV}, unused


def jetstream_environment(domain: str | None) -> dict[str, str]:
    """Return the setting of the domain of JetStream's read API; None: it was not given."""
    return {} if domain is None else {_PREFIX + "JETSTREAM_API": domain}


def supervised(environment: Mapping[str, str] | None = None) -> tuple[str, float]:
    """(socket of whoever supervises this process, '' if nobody does; within how many s it wants to hear of it, 0: it does not)"""
    environment = os.environ if environment is None else environment
    interval, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(os.getpid()))
    mine = interval.isascii() and interval.isdigit() and owner == str(os.getpid())
    return environment.get("NOTIFY_SOCKET", ""), int(interval) / 1e6 if mine else 0.0


def was_said_to_be_open(environment: Mapping[str, str] | None = None) -> bool:
    """Whether somebody else has warned that this NATS server has no authorization."""
    return bool((os.environ if environment is None else environment).get(_OPEN_NATS_SAID))


def quiet_environment() -> dict[str, str]:
    """What to add to the environment of a node that need not warn of that again."""
    return {_OPEN_NATS_SAID: "1"}


def worker_environment() -> dict[str, str]:
    """The environment of a worker process of this node: ours, and where this program is, whatever the folder."""
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **quiet_environment()}


def credentials_environment(credentials: Credentials) -> dict[str, str]:
    """The settings that give a child process these credentials; none of them shows in the list of processes."""
    values = {f.name: getattr(credentials, f.name) for f in fields(Credentials)}
    return {_PREFIX + name.upper(): value for name, value in values.items() if value}


def workers_environment(workers: int) -> dict[str, str]:
    """The same for how many processes a node has."""
    return {_PREFIX + "WORKERS": str(workers)} if workers > 1 else {}


def nats_environment(url: str) -> dict[str, str]:
    """The same for where a child process connects: a URL may hold a password."""
    return {_PREFIX + "NATS": url}


def restarts_in_a_row(environment: Mapping[str, str] | None = None) -> int:
    """How many times this node has started itself again without a quiet time since; 0 for one that was started."""
    told = (os.environ if environment is None else environment).get(_RESTARTS, "")
    return min(int(told), _MAX_RESTARTS) if told.isascii() and told.isdigit() else 0


def restarted_environment(in_a_row: int) -> dict[str, str]:
    """The environment for a node that starts itself again."""
    return {**os.environ, _RESTARTS: str(min(in_a_row, _MAX_RESTARTS))}


def _read_file(config_file: Path | None) -> dict[str, Any]:
    if config_file is None:
        return {}
    try:
        table = tomllib.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, tomllib.TOMLDecodeError):
            raise ConfigError(f"{config_file}: {error}") from None
        raise ConfigError(f"the configuration file can't be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{config_file} is nested too deeply") from None
    for name in _SECTIONS:
        if not isinstance(table.get(name, {}), dict):
            raise ConfigError(f"{config_file}: {name} must be a section")
    return table


def _merge(
    cls: type[Any], table: Mapping[str, Any], environment: Mapping[str, str], flags: Mapping[str, Any], prefix: str, where: str
) -> Any:
    try:
        return cls(**_values(cls, table, environment, flags, prefix))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _values(
    cls: type[Any],
    table: Mapping[str, Any],
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    prefix: str,
    skip: tuple[str, ...] = (),
) -> dict[str, Any]:
    known = {f.name: f for f in fields(cls) if f.name not in skip}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}; known are {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, known_field in known.items():
        sources = (flags.get(name), environment.get(prefix + name.upper()) or None, table.get(name))
        raw = next((value for value in sources if value is not None), None)
        if raw is not None:
            values[name] = _convert(name, raw, known_field)
    return values


def _convert(name: str, raw: Any, field: Any) -> Any:
    """``raw`` (text, or TOML's own type) as the type of ``field``, which its default shows; raise ConfigError if it can't."""
    default = "" if field.default is MISSING else field.default
    try:
        for text in raw if isinstance(raw, list) else (raw,):
            if isinstance(text, str) and not text.isprintable():
                raise ValueError("it has control characters")
        if name == "data":
            return Path(raw).expanduser()
        if isinstance(default, tuple):
            return _split(raw) if isinstance(raw, str) else tuple(map(_text, raw))
        if isinstance(default, bool):
            return _truth(raw)
        if isinstance(raw, bool):
            raise ValueError("true and false have no meaning here")
        if isinstance(default, (int, float)):
            return _number(raw, type(default))
        return _text(raw)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(f"{name} = {_shown(name, raw)} is not a {_KINDS[type(default)]}: {error}") from None


_KINDS = {str: "text", tuple: "list of texts", bool: "truth value", int: "whole number", float: "number"}
_SECRET = ("password", "token")
_MAX_SHOWN = 80


def _shown(name: str, raw: Any) -> str:
    """For an error: without secrets, and not at any length."""
    if name in _SECRET:
        return "***"
    if name == "nats":
        return shown(raw) if isinstance(raw, str) else "[...]"
    text = repr(raw)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _text(raw: Any) -> str:
    if isinstance(raw, (str, int, float)) and not isinstance(raw, bool):
        return str(raw)
    raise ValueError("a text is expected")


def _number(raw: Any, kind: type[int] | type[float]) -> int | float:
    """Digits of ours, no others that Python would take."""
    if isinstance(raw, str):
        if not raw.isascii() or "_" in raw:
            raise ValueError("use the digits 0 to 9")
        return kind(raw)
    if not isinstance(raw, (int, float)):
        raise ValueError("a number is expected")
    if kind is int and raw != int(raw):
        raise ValueError(f"{raw} is not whole")
    return kind(raw)


def _truth(raw: Any) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if str(raw).lower() not in known:
        raise ValueError("use true or false")
    return known[str(raw).lower()]


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


SECTIONS = {"credentials": Credentials, "replication": ReplicationConfig}
SECRET = frozenset(("credentials.password", "credentials.token"))
HIDDEN = "***"
CLUSTER = "cluster"
"""Source of what stands in the metadata image."""


def flat(settings: NodeSettings) -> dict[str, Any]:
    """Dotted name -> value; secrets among them."""
    values = {f.name: getattr(settings, f.name) for f in fields(NodeSettings) if f.name not in SECTIONS}
    for section in SECTIONS:
        part = getattr(settings, section)
        values |= {f"{section}.{f.name}": getattr(part, f.name) for f in fields(part)}
    return values


def with_values(settings: NodeSettings, changed: Mapping[str, Any]) -> NodeSettings:
    """``settings`` with these, by their dotted names; raise ConfigError where they don't go together."""
    own = {name: value for name, value in changed.items() if "." not in name}
    for section in SECTIONS:
        prefix = f"{section}."
        given = {name.removeprefix(prefix): value for name, value in changed.items() if name.startswith(prefix)}
        if given:
            own[section] = replace(getattr(settings, section), **given)
    return replace(settings, **own) if own else settings


def defaults() -> dict[str, Any]:
    """Dotted name -> default; '' where there is none."""
    values = {f.name: "" if f.default is MISSING else f.default for f in fields(NodeSettings) if f.name not in SECTIONS}
    for section, cls in SECTIONS.items():
        values |= {f"{section}.{f.name}": f.default for f in fields(cls)}
    return values


def rows(running: NodeSettings, read: NodeSettings, sources: Mapping[str, str], live: Collection[str]) -> list[dict[str, Any]]:
    """A row for each setting: ``name``, ``value`` that holds, ``read`` from the file where that differs and waits for a restart,
    ``source`` (default, file, env, flag), ``default``, ``applies`` (``live`` or ``restart``)."""
    now, waiting, without = flat(running), flat(read), defaults()
    return [
        {
            "name": name,
            "value": _plain(name, value),
            **({"read": _plain(name, waiting[name])} if waiting[name] != value else {}),
            "source": sources.get(name, "default"),
            "default": _plain(name, without[name]),
            "applies": "live" if name in live else "restart",
        }
        for name, value in now.items()
    ]


def _plain(name: str, value: Any) -> Any:
    """As JSON has it."""
    if name in SECRET:
        return HIDDEN if value else ""
    if name == "nats":
        return [shown(url) for url in value]
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def with_cluster(found: Sequence[dict[str, Any]], image: ClusterImage) -> list[dict[str, Any]]:
    """The rows, and what the metadata image says for the whole cluster, whatever a node's own settings are: source and ``applies`` are
    ``cluster``."""
    quota = image.default_quota
    said: dict[str, tuple[Any, Any]] = {
        "feature_level": (image.feature_level, NO_LEVEL),
        **{f"default_quota.{f.name}": (getattr(quota, f.name), f.default) for f in fields(quota)},
    }
    without, times = defaults(), image.session_times
    if times is not None:
        in_s = {"replication.session_s": times.session_ms / 1000, "replication.lease_s": times.lease_ms / 1000}
        said |= {name: (value, without[name]) for name, value in in_s.items()}
    if image.rules is not None:
        said |= {name: (getattr(image.rules, name), without[name]) for name in ("namespace", "elections")}
    shared = [
        {"name": name, "value": value, "source": CLUSTER, "default": default, "applies": CLUSTER}
        for name, (value, default) in said.items()
    ]
    return [*(row for row in found if row["name"] not in said), *shared]
