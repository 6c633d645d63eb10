"""Settings by dotted names, one row each: ``rack``, ``credentials.creds_file``, ``replication.session_s``. No row has a secret."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from liftpy.client.credentials import Credentials
from liftpy.client.urls import shown
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.level_range import FIRST
from liftpy.config import ReplicationConfig
from sidecar.settings import NodeSettings

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
        "feature_level": (image.feature_level, FIRST),
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
