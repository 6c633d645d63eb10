"""Settings of a node and of the commands, from a TOML file, the environment and flags.

A flag wins over the environment (``LIFTPY_*``), the environment over the file, the file over the default. All settings are checked
before the node starts. An error names the setting and its source. No other module reads the environment.

The file has the fields of ``NodeSettings``, and sections for ``Credentials`` and ``ReplicationConfig``::

    node_id = "n1"                          # LIFTPY_NODE_ID, --node-id
    nats = ["nats://a:4222"]                # LIFTPY_NATS, --nats (comma separated)
    [credentials]                           # LIFTPY_CREDS_FILE, LIFTPY_USER, LIFTPY_PASSWORD...
    creds_file = "/etc/liftpy/node.creds"
    [replication]                           # LIFTPY_REPLICATION_<NAME>
    max_lag_time_s = 5.0

Settings by dotted names, one row each: ``rack``, ``credentials.creds_file``, ``replication.session_s``. No row has a secret.
"""

from __future__ import annotations

import difflib
import os
import re
import string
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import check_name
from liftpy.core.base.worker_assignment import MOST_WORKERS
from liftpy.core.metadata.controller_list import MAX_CONTROLLERS
from liftpy.core.metadata.features import NO_LEVEL
from liftpy.core.publish.memory_budget import LEAST_LIMIT_BYTES
from liftpy.core.wire.subjects import (
    DEFAULT_INBOX_PREFIXES,
    JETSTREAM_INBOX,
    InboxRule,
    Subjects,
    check_inbox_prefixes,
    check_node_or_principal,
    overlaps_inbox,
)
from liftpy.errors import ConfigError
from liftpy.nats.credentials import Credentials
from liftpy.nats.urls import check_urls, without_secrets
from liftpy.renamed import SETTINGS, accept_old_keywords
from sidecar.runtime.contexts import SECRETS, Contexts
from sidecar.runtime.logs import LEVELS

if TYPE_CHECKING:
    from liftpy.core.metadata.image import ClusterImage

DEFAULT_NATS = "nats://127.0.0.1:4222"
DEFAULT_NAMESPACE = "liftpy"
STATUS_OFF = -1
_PREFIX = "LIFTPY_"
_REPLICATION_PREFIX = _PREFIX + "REPLICATION_"
_RESTARTS = _PREFIX + "RESTARTS_IN_A_ROW"
"""Variable with the number of consecutive restarts, for the next process of the node. It is no setting."""
_MAX_RESTARTS = 1_000
_OPEN_NATS_NOTICE = _PREFIX + "OPEN_NATS_SAID"
"""Variable that `liftpy dev` sets so that only one node warns about a NATS server without authorization."""
_NOT_OF_DEV = frozenset(
    _PREFIX + name
    for name in (
        "NODE_ID", "DATA", "NATS", "NAMESPACE", "CONTROLLERS", "RACK", "WEIGHT", "STATUS_PORT", "PROBE_LISTEN", "BOOTSTRAP_MAJORITY",
        "WORKERS",
    )
)  # fmt: skip
"""Settings that differ between nodes, or for which `liftpy dev` has an option."""
_KUBERNETES = re.compile(r"LIFTPY_(\w*_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)", re.ASCII)
"""Pattern of variables that Kubernetes sets in each pod for a Service whose name begins with ``liftpy``."""
_CLOSE = 0.7
"""Minimum similarity of two names for a suggestion, from 0 to 1."""
_OF_HOSTS = frozenset(string.ascii_letters + string.digits + ".-:")
SECTIONS = {"credentials": Credentials, "replication": ReplicationConfig}


_RANGES = {
    "scrub_bytes_per_s": (0, 1 << 34, "Choose a value in this range."),
    "workers": (1, MOST_WORKERS, "Use at most one for each core."),
    "weight": (0, 1000, "Choose a value in this range."),
}
"""Setting -> (minimum, maximum, advice in the error)."""
_CHOICES = {
    "log_level": (LEVELS, f"one of {', '.join(LEVELS)}"),
    "log_format": (("text", "json"), "text or json"),
    "trace": (("off", "otlp"), "off or otlp"),
}
"""Setting -> (allowed values, text about them in the error)."""


@dataclass(frozen=True, slots=True)
class Target:
    """How a command reaches a cluster: NATS servers, namespace, credentials, and whether it may change internal streams."""

    nats: tuple[str, ...] = field(default=(DEFAULT_NATS,), repr=False)
    namespace: str = DEFAULT_NAMESPACE
    credentials: Credentials = field(default_factory=Credentials)
    internal: bool = False

    def __post_init__(self) -> None:
        check_name(self.namespace, "namespace")
        check_urls(self.nats)


@accept_old_keywords
@dataclass(frozen=True, slots=True)
class NodeSettings:
    """All settings of a node."""

    node_id: str
    """Name of this node in the cluster. Never use the name of another node."""
    data: Path
    """Data directory for the logs and the metadata. Each node needs its own."""
    nats: tuple[str, ...] = field(default=(DEFAULT_NATS,), repr=False)
    """URLs of the NATS servers (one NATS cluster), comma separated in the environment."""
    namespace: str = DEFAULT_NAMESPACE
    """Prefix of the cluster's own NATS subjects. Use the same value on all nodes and clients."""
    credentials: Credentials = field(default_factory=Credentials)
    controllers: tuple[str, ...] = ()
    """Ids of the nodes that form the metadata group. Use the same list on all nodes."""
    rack: str = ""
    """Rack, zone or room of this node. Placement spreads the replicas of a partition over racks."""
    weight: float = 1.0
    """Share of replicas that this node gets compared with other nodes (0 to 1000)."""
    status_port: int = STATUS_OFF
    """Port of the status page and metrics on the loopback address. 0: any free port. -1: off."""
    probe_listen: str = ""
    """HOST:PORT of another address for `/livez`, `/readyz` and `/metrics`, such as the address of a pod. Empty: none."""
    dashboard_hostnames: tuple[str, ...] = ()
    """Host names that a request to the status page may use in addition to the loopback names."""
    elections: bool = True
    """True if this cluster elects new leaders. With false, a partition waits until its leader is back."""
    bootstrap_majority: bool = False
    """True if unreachable controllers have never belonged to the metadata group. It counts only at the first start of the
    group.

    A majority of the controllers may then form the group.
    """
    log_level: str = "info"
    """Lowest level of log lines: debug, info, warning or error."""
    memory_limit_bytes: int = 0
    """Memory for publishes in progress, in bytes. 0: 25 % of the memory of the cgroup or the machine."""
    log_format: str = "text"
    """Format of log lines: text, or json with one object per line."""
    metrics_streams: tuple[str, ...] = ()
    """Names or patterns (`shop-*`) of streams that get metrics of their own."""
    trace: str = "off"
    """Destination of OpenTelemetry spans: off, or otlp for a collector. Only messages whose sender traces them get spans."""
    trace_endpoint: str = field(default="", repr=False)
    """URL of the OpenTelemetry collector. Empty: the value of `OTEL_EXPORTER_OTLP_ENDPOINT`."""
    scrub_bytes_per_s: int = 1024 * 1024
    """Rate at which the node reads its logs and checks them for damage, in bytes per second (0 to 16 GiB). 0: never."""
    inbox_prefixes: tuple[str, ...] = DEFAULT_INBOX_PREFIXES
    """Prefixes of the reply subjects that the node answers. `*` stands for nothing, or for a suffix such as `_x` or `-x`."""
    jetstream_api: str = ""
    """JetStream domain under which this node answers the read part of the JetStream API. Empty: not answered."""
    run_group_coordinators: bool = True
    """True if this node runs coordinators of groups and queues. With false, run them elsewhere."""
    local_file_reads: bool = False
    """True if readers on this host may open the segment files themselves. It makes reading with Spark faster."""
    workers: int = 1
    """Number of processes that share the partitions of this node. Use about one per core at most."""
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)

    def __post_init__(self) -> None:
        check_node_or_principal(self.node_id, "node_id")
        check_name(self.namespace, "namespace")
        check_urls(self.nats)
        for controller in self.controllers:
            check_node_or_principal(controller, "controllers:")
        if len(set(self.controllers)) != len(self.controllers):
            raise ConfigError("The list controllers contains a node twice. Name each node once.")
        if len(self.controllers) > MAX_CONTROLLERS:
            raise ConfigError(
                f"The list controllers has {len(self.controllers)} nodes, the maximum is {MAX_CONTROLLERS}. Name three or five nodes."
            )
        if self.rack:
            check_name(self.rack, "rack")
        for name, (low, high, advice) in _RANGES.items():
            if not low <= (value := getattr(self, name)) <= high:
                raise ConfigError(f"{name} = {value} is outside {low}..{high}. {advice}")
        for name, (allowed, text) in _CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name} = {value!r} is invalid. Use {text}.")
        if not STATUS_OFF <= self.status_port <= 65_535:
            raise ConfigError(
                f"status_port = {self.status_port} is invalid. Use 1 to 65535, 0 for any free port, or -1 to disable it."
            )
        if self.probe_listen:
            address_of(self.probe_listen)
        if self.memory_limit_bytes and not LEAST_LIMIT_BYTES <= self.memory_limit_bytes <= 1 << 44:
            raise ConfigError(
                f"memory_limit_bytes = {self.memory_limit_bytes} is invalid. Use 0 (25 % of the memory) or a value from "
                f"{LEAST_LIMIT_BYTES} to {1 << 44}."
            )
        if self.trace_endpoint and not self.trace_endpoint.startswith(("http://", "https://")):
            raise ConfigError("trace_endpoint is not a URL. Use a URL such as http://127.0.0.1:4318/v1/traces.")
        check_inbox_prefixes(self.inbox_prefixes)
        if self.jetstream_api:
            check_name(self.jetstream_api, "jetstream_api")
            if self.jetstream_api == "API" or not InboxRule(self.inbox_prefixes).allows(f"{JETSTREAM_INBOX}.x".encode()):
                raise ConfigError(
                    f"jetstream_api = {self.jetstream_api!r} is invalid. Use a domain of its own, and add "
                    f"{JETSTREAM_INBOX}. to inbox_prefixes."
                )
        if any(
            overlaps_inbox(f"{self.namespace}.>", 1, prefix) or self.namespace.startswith(prefix.split("*.")[0])
            for prefix in self.inbox_prefixes
        ):
            raise ConfigError(
                f"inbox_prefixes must not contain {self.namespace + '.'!r}, because this prefix is reserved for "
                "replies to nodes. Use for example '_INBOX.'."
            )
        if self.credentials.inbox_prefix:
            raise ConfigError(
                "inbox_prefix is a setting of clients. A node receives replies under "
                f"{Subjects(self.namespace).inbox(self.node_id)}. Remove the setting."
            )

    @property
    def is_controller(self) -> bool:
        """True if this node is a controller, a member of the metadata group."""
        return self.node_id in self.controllers


def address_of(listen: str) -> tuple[str, int]:
    """Return (host, port) of ``probe_listen``. Raises ConfigError if it is not valid."""
    host, _, port = listen.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not set(host) <= _OF_HOSTS or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise ConfigError(f"probe_listen = {listen[:_MAX_SHOWN]!r} is invalid. Use HOST:PORT, such as 10.0.0.7:8224.")
    return host, int(port)


class SettingsLoader:
    """The sources of a node's settings: file, environment and flags.

    ``flags``: value of each setting on the command line, None if it was not given. ``sources``: source of each setting (``flag``,
    ``env`` or ``file``) after the last ``load``. Settings that are missing there have their defaults.
    """

    def __init__(self, config_file: Path | None, flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> None:
        self._file = config_file
        self._flags = flags
        self._environment = environment
        self.sources: Mapping[str, str] = {}

    def load(self) -> NodeSettings:
        """Read and check all settings. Raises ConfigError if one is unknown, missing or invalid."""
        table = _read_file(self._file)
        settings = _load(dict(table), self._flags, self._environment)
        own = self._sources(table, NodeSettings, _PREFIX, self._flags, skip=SECTIONS)
        credentials = self._sources(table.get("credentials", {}), Credentials, _PREFIX, self._flags)
        replication = self._sources(table.get("replication", {}), ReplicationConfig, _REPLICATION_PREFIX, {})
        self.sources = {
            **own,
            **{f"credentials.{name}": source for name, source in credentials.items()},
            **{f"replication.{name}": source for name, source in replication.items()},
        }
        return settings

    def _sources(
        self, table: Mapping[str, Any], cls: type[Any], prefix: str, flags: Mapping[str, Any], skip: Collection[str] = ()
    ) -> dict[str, str]:
        sources = {name: "file" for name in table if name not in skip}
        sources |= {f.name: "env" for f in fields(cls) if self._environment.get(prefix + f.name.upper())}
        return sources | {f.name: "flag" for f in fields(cls) if flags.get(f.name) is not None}


def _load(table: dict[str, Any], flags: Mapping[str, Any], environment: Mapping[str, str]) -> NodeSettings:
    credentials = _merge(Credentials, table.pop("credentials", {}), environment, flags, _PREFIX, "[credentials]")
    replication = _merge(ReplicationConfig, table.pop("replication", {}), environment, {}, _REPLICATION_PREFIX, "[replication]")
    values = _values(NodeSettings, table, environment, flags, _PREFIX, skip=SECTIONS)
    missing = [name for name in ("node_id", "data") if not values.get(name)]
    if missing:
        name = missing[0]
        raise ConfigError(
            f"The setting {name} is missing. Set --{name.replace('_', '-')} or {_PREFIX}{name.upper()}, or set it in the file."
        )
    return NodeSettings(**values, credentials=credentials, replication=replication)


def target_from(
    nats: str | None,
    namespace: str | None,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] = os.environ,
    *,
    context: str | None = None,
) -> Target:
    """Return how to reach the cluster, from flags (None: not given), the environment and a context.

    A context that the user names overrides the environment. The selected context is the default. It is not used if a flag
    or the environment names the NATS servers, because its credentials are for its own servers.

    Raises:
        ConfigError: A value is not valid, or the file of contexts cannot be used.
        NotFoundError: There is no such context.
    """
    name, values = context_values(nats, environment, context)
    if values:
        context_environment = {_PREFIX + field_name.upper(): value for field_name, value in values.items()}
        environment = (
            {**environment, **context_environment}
            if name == named_context(environment, context)
            else {**context_environment, **environment}
        )
    urls = nats or environment.get(_PREFIX + "NATS") or DEFAULT_NATS
    space = namespace or environment.get(_PREFIX + "NAMESPACE") or DEFAULT_NAMESPACE
    return Target(_split(urls), space, credentials_from(flags, environment))


def credentials_from(flags: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> Credentials:
    """Return credentials from flags (None: not given) and the environment.

    Raises:
        ConfigError: The values exclude each other.
    """
    credentials = _merge(Credentials, {}, environment, flags, _PREFIX, "credentials")
    assert isinstance(credentials, Credentials)
    return credentials


def config_home(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory for configuration files of the user. None: the environment names no such directory and no home."""
    path_text, home = environment.get("XDG_CONFIG_HOME", ""), environment.get("HOME", "")
    return Path(path_text) if os.path.isabs(path_text) else Path(home) / ".config" if home else None


def contexts_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the user's contexts file. None: the user has no home."""
    home = config_home(environment)
    return None if home is None else home / "liftpy" / "contexts.json"


def named_context(environment: Mapping[str, str] = os.environ, context: str | None = None) -> str:
    """Return the context that a flag or the environment names. '': none."""
    return context or environment.get(_PREFIX + "CONTEXT", "")


def context_values(
    nats: str | None, environment: Mapping[str, str] = os.environ, context: str | None = None
) -> tuple[str, dict[str, str]]:
    """Return (name, values) of the context for a command. ('', {}): the command uses none.

    Raises:
        ConfigError: The file of contexts cannot be used.
        NotFoundError: There is no such context.
    """
    named, path = named_context(environment, context), contexts_file(environment)
    if not named and (path is None or nats or environment.get(_PREFIX + "NATS")):
        return "", {}
    contexts = Contexts() if path is None else Contexts.load(path)
    name = named or contexts.selected
    return (name, contexts.values_of(name)) if name else ("", {})


def search_path() -> str:
    """Return the PATH, in which to search for nats-server."""
    return os.environ.get("PATH", os.defpath)


def child_environment() -> dict[str, str]:
    """Return this process's environment without node settings, for the nodes of `liftpy dev`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}


def dev_environment(environment: Mapping[str, str] = os.environ) -> tuple[dict[str, str], list[str]]:
    """Return (the ``LIFTPY_*`` settings for all nodes of `liftpy dev`, the names of the variables that it ignores)."""
    names = {_PREFIX + f.name.upper() for f in fields(NodeSettings) if f.name not in SECTIONS}
    names |= {_REPLICATION_PREFIX + f.name.upper() for f in fields(ReplicationConfig)}
    for prefix in (_PREFIX, _REPLICATION_PREFIX):
        _check_renamed([name.removeprefix(prefix).lower() for name in names], (), environment, prefix)
    variables = {name: environment[name] for name in sorted(names) if environment.get(name)}
    unused = [name for name in variables if name in _NOT_OF_DEV]
    return {name: value for name, value in variables.items() if name not in _NOT_OF_DEV}, unused


def unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the unknown ``LIFTPY_*`` variables, each with the most similar known name. '': none is similar."""
    known = {_PREFIX + f.name.upper() for cls in (NodeSettings, Credentials) for f in fields(cls) if f.name not in SECTIONS}
    known |= {_REPLICATION_PREFIX + f.name.upper() for f in fields(ReplicationConfig)}
    known |= {_PREFIX + "CONTEXT", _RESTARTS, _OPEN_NATS_NOTICE}
    suggestions = {}
    for name in sorted(environment):
        if name.startswith(_PREFIX) and environment[name] and name not in known and not _KUBERNETES.fullmatch(name):
            endings = {other.removeprefix(_PREFIX): other for other in sorted(known - {_RESTARTS, _OPEN_NATS_NOTICE})}
            near = difflib.get_close_matches(name.removeprefix(_PREFIX)[:_MAX_SHOWN], endings, n=1, cutoff=_CLOSE)
            suggestions[name] = endings[near[0]] if near else ""
    return suggestions


def supervisor_of(environment: Mapping[str, str] = os.environ) -> tuple[str, float]:
    """Return (address of the supervisor's socket, watchdog interval in seconds). ('', 0): there is no supervisor."""
    interval, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(os.getpid()))
    mine = interval.isascii() and interval.isdigit() and owner == str(os.getpid())
    return environment.get("NOTIFY_SOCKET", ""), int(interval) / 1e6 if mine else 0.0


def was_open_nats_reported() -> bool:
    """Return whether another process has warned that this NATS server has no authorization."""
    return bool(os.environ.get(_OPEN_NATS_NOTICE))


def quiet_environment() -> dict[str, str]:
    """Return the environment variables that keep a node from warning about a NATS server without authorization."""
    return {_OPEN_NATS_NOTICE: "1"}


def worker_environment() -> dict[str, str]:
    """Return the environment for a worker process, with an import path that contains this program."""
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **quiet_environment()}


def settings_environment(**values: object) -> dict[str, str]:
    """Return the environment variables that pass settings to a child process, so that the process list shows no secret.

    ``values``: setting -> its value. Empty values are left out.
    """
    return {_PREFIX + name.upper(): str(value) for name, value in values.items() if value}


def credentials_environment(credentials: Credentials) -> dict[str, str]:
    """Return the environment variables that pass credentials to a child process."""
    return settings_environment(**{f.name: getattr(credentials, f.name) for f in fields(Credentials)})


def restarts_in_a_row(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of consecutive restarts that led to this process. 0: a normal start."""
    text = environment.get(_RESTARTS, "")
    return min(int(text), _MAX_RESTARTS) if text.isascii() and text.isdigit() else 0


def restarted_environment(in_a_row: int) -> dict[str, str]:
    """Return the environment for the next process of a node that restarts. ``in_a_row``: number of consecutive restarts."""
    return {**os.environ, _RESTARTS: str(min(in_a_row, _MAX_RESTARTS))}


def _read_file(config_file: Path | None) -> dict[str, Any]:
    if config_file is None:
        return {}
    try:
        table = tomllib.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, tomllib.TOMLDecodeError):
            raise ConfigError(f"Cannot parse the settings file {config_file}: {error}. The file must be TOML.") from None
        raise ConfigError(f"Cannot read the settings file: {error}. Check --config.") from None
    except RecursionError:
        raise ConfigError(f"The settings file {config_file} is nested too deeply. Use only sections with settings.") from None
    for name in SECTIONS:
        if not isinstance(table.get(name, {}), dict):
            raise ConfigError(
                f"{name} in the settings file {config_file} is not a section. Put its settings below a line [{name}]."
            )
    return table


def _merge(
    cls: type[Any], table: Mapping[str, Any], environment: Mapping[str, str], flags: Mapping[str, Any], prefix: str, where: str
) -> Any:
    try:
        return cls(**_values(cls, table, environment, flags, prefix))
    except ConfigError as error:
        raise ConfigError(f"Invalid setting in {where}: {error}") from None


def _values(
    cls: type[Any],
    table: Mapping[str, Any],
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    prefix: str,
    skip: Collection[str] = (),
) -> dict[str, Any]:
    known = {f.name: f for f in fields(cls) if f.name not in skip}
    unknown = sorted(set(table) - set(known))
    _check_renamed(known, unknown, environment, prefix)
    if unknown:
        raise ConfigError(f"Unknown setting {unknown[0]!r}. Known settings: {', '.join(known)}.")
    values: dict[str, Any] = {}
    for name, known_field in known.items():
        sources = (flags.get(name), environment.get(prefix + name.upper()) or None, table.get(name))
        raw = next((value for value in sources if value is not None), None)
        if raw is not None:
            values[name] = _convert(name, raw, known_field)
    return values


def _check_renamed(known: Collection[str], unknown: Iterable[str], environment: Mapping[str, str], prefix: str) -> None:
    """Raise ConfigError with the new name if the user has given a setting by its old name."""
    for name in unknown:
        if SETTINGS.get(name) in known:
            raise ConfigError(f"The setting {name} was renamed. Use {SETTINGS[name]} in the file.")
    for old, new in SETTINGS.items():
        if new in known and environment.get(prefix + old.upper()):
            raise ConfigError(f"The environment variable {prefix}{old.upper()} was renamed. Use {prefix}{new.upper()}.")


def _convert(name: str, raw: Any, field: Any) -> Any:
    """Convert the value ``raw`` (text, or a type of TOML) of the setting ``name`` to the type of the default of ``field``.

    Raises ConfigError if that is not possible.
    """
    default = "" if field.default is MISSING else field.default
    try:
        for text in raw if isinstance(raw, list) else (raw,):
            if isinstance(text, str) and not text.isprintable():
                raise ValueError("the value has control characters. Remove them")
        if name == "data":
            return Path(raw).expanduser()
        if isinstance(default, tuple):
            return _split(raw) if isinstance(raw, str) else tuple(map(_text, raw))
        if isinstance(default, bool):
            return _to_bool(raw)
        if isinstance(raw, bool):
            raise ValueError("true and false are not allowed here")
        if isinstance(default, (int, float)):
            return _number(raw, type(default))
        return _text(raw)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        why = f": {error}" if str(error) else ""
        raise ConfigError(f"{name} = {_value_text(name, raw)} is not a {_KINDS[type(default)]}{why}.") from None


_KINDS = {str: "string", tuple: "list of strings", bool: "boolean", int: "whole number", float: "number"}
_MAX_SHOWN = 80


def _value_text(name: str, raw: Any) -> str:
    """Return the value ``raw`` of the setting ``name`` as text for an error: shortened, and without secrets."""
    if name in SECRETS:
        return HIDDEN
    if name == "nats":
        return without_secrets(raw) if isinstance(raw, str) else "[...]"
    text = repr(raw)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _text(raw: Any) -> str:
    if isinstance(raw, (str, int, float)) and not isinstance(raw, bool):
        return str(raw)
    raise ValueError("use a string in quotes")


def _number(raw: Any, kind: type[int] | type[float]) -> int | float:
    """Convert ``raw`` to a number of the type ``kind``. Raises ValueError, without a text if the type says enough.

    A text may contain only ASCII digits, although Python also accepts the digits of other scripts.
    """
    if isinstance(raw, str):
        if not raw.isascii() or "_" in raw:
            raise ValueError("use the digits 0 to 9")
        try:
            return kind(raw)
        except ValueError:
            raise ValueError from None
    if not isinstance(raw, (int, float)) or (kind is int and isinstance(raw, float) and not raw.is_integer()):
        raise ValueError
    return kind(raw)


def _to_bool(raw: Any) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if str(raw).lower() not in known:
        raise ValueError("use true or false")
    return known[str(raw).lower()]


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


HIDDEN = "***"
CLUSTER = "cluster"
"""Source of values that come from the cluster metadata."""


def flat(settings: NodeSettings) -> dict[str, Any]:
    """Return all values of ``settings`` by dotted name, such as ``replication.session_s``. The result includes secrets."""
    values = {f.name: getattr(settings, f.name) for f in fields(NodeSettings) if f.name not in SECTIONS}
    for section in SECTIONS:
        part = getattr(settings, section)
        values |= {f"{section}.{f.name}": getattr(part, f.name) for f in fields(part)}
    return values


def with_values(settings: NodeSettings, changed: Mapping[str, Any]) -> NodeSettings:
    """Return ``settings`` with the values ``changed``, by dotted name. Raises ConfigError if they contradict each other."""
    own = {name: value for name, value in changed.items() if "." not in name}
    for section in SECTIONS:
        prefix = f"{section}."
        section_values = {name.removeprefix(prefix): value for name, value in changed.items() if name.startswith(prefix)}
        if section_values:
            own[section] = replace(getattr(settings, section), **section_values)
    return replace(settings, **own) if own else settings


def defaults() -> dict[str, Any]:
    """Return the default of each setting, by dotted name. '': the setting has no default."""
    values = {f.name: "" if f.default is MISSING else f.default for f in fields(NodeSettings) if f.name not in SECTIONS}
    for section, cls in SECTIONS.items():
        values |= {f"{section}.{f.name}": f.default for f in fields(cls)}
    return values


def rows(running: NodeSettings, read: NodeSettings, sources: Mapping[str, str], live: Collection[str]) -> list[dict[str, Any]]:
    """Return a row for each setting of a node.

    ``running``: current settings. ``read``: settings in the file. ``sources``: source of each setting. ``live``: names of settings
    that a reload can change. Keys of a row: ``name``. ``value``: current value. ``read``: value in the file, if it needs a restart.
    ``source``: default, file, env or flag. ``default``: default value. ``applies``: ``live`` or ``restart``.
    """
    now, waiting, without = flat(running), flat(read), defaults()
    return [
        {
            "name": name,
            "value": _json_value(name, value),
            **({"read": _json_value(name, waiting[name])} if waiting[name] != value else {}),
            "source": sources.get(name, "default"),
            "default": _json_value(name, without[name]),
            "applies": "live" if name in live else "restart",
        }
        for name, value in now.items()
    ]


def _json_value(name: str, value: Any) -> Any:
    """Return a value of the setting ``name`` for JSON. Secrets are replaced by ``HIDDEN``."""
    if name.rpartition(".")[2] in SECRETS:
        return HIDDEN if value else ""
    if name == "nats":
        return [without_secrets(url) for url in value]
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def with_cluster(settings_rows: Sequence[dict[str, Any]], image: ClusterImage) -> list[dict[str, Any]]:
    """Return the rows ``settings_rows``, with the values of the cluster-wide settings from the metadata ``image``.

    The ``source`` and ``applies`` of these rows are ``cluster``.
    """
    quota = image.default_quota
    from_cluster: dict[str, tuple[Any, Any]] = {
        "feature_level": (image.feature_level, NO_LEVEL),
        **{f"default_quota.{f.name}": (getattr(quota, f.name), f.default) for f in fields(quota)},
    }
    without, times = defaults(), image.session_times
    if times is not None:
        in_s = {"replication.session_s": times.session_ms / 1000, "replication.lease_s": times.lease_ms / 1000}
        from_cluster |= {name: (value, without[name]) for name, value in in_s.items()}
    if image.rules is not None:
        from_cluster |= {name: (getattr(image.rules, name), without[name]) for name in ("namespace", "elections")}
    shared = [
        {"name": name, "value": value, "source": CLUSTER, "default": default, "applies": CLUSTER}
        for name, (value, default) in from_cluster.items()
    ]
    return [*(row for row in settings_rows if row["name"] not in from_cluster), *shared]
