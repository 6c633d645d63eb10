"""Divides the limits of a node between its processes, and sends settings to workers.

Not shared out: what a process has by itself (open files, maps), what is a partition's, a connection's or an answer's.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from liftpy.config import ReplicationConfig
from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.publish.memory_budget import LEAST_LIMIT_BYTES
from liftpy.errors import ConfigError
from liftpy.nats.credentials import Credentials
from sidecar.runtime.settings import NodeSettings

SHARED_OUT = {
    "ingest_buffer_bytes": 8192,
    "node_unreplicated_bytes": 512,
    "node_dedup_state_bytes": 512,
    "node_standby_bytes": 512,
    "copy_bytes_per_s": 1,
    "copy_min_bytes_per_s": 1,
}
"""Bounds of ``ReplicationConfig`` that are a node's -> what a process has at least; 0 stays 0."""


def shared_out(settings: NodeSettings) -> NodeSettings:
    """The settings of each of the node's processes."""
    count = settings.workers
    if count == 1:
        return settings
    own: dict[str, Any] = {
        name: max(least, getattr(settings.replication, name) // count) if getattr(settings.replication, name) else 0
        for name, least in SHARED_OUT.items()
    }
    limit = settings.memory_limit_bytes
    return replace(
        settings,
        memory_limit_bytes=max(LEAST_LIMIT_BYTES, limit // count) if limit else 0,
        scrub_bytes_per_s=max(1, settings.scrub_bytes_per_s // count) if settings.scrub_bytes_per_s else 0,
        replication=replace(settings.replication, **own),
    )


def folder_of(data: Path, share: WorkerShare) -> Path:
    """Return the directory for a process's own files: that of the node for the first one."""
    return data if not share.number else data / "workers" / str(share.number)


def settings_to_json(settings: NodeSettings) -> dict[str, Any]:
    """Encode for ``settings_from_json`` of the same version."""
    return {**asdict(settings), "data": str(settings.data.absolute())}


def settings_from_json(said: dict[str, Any]) -> NodeSettings:
    """Decode settings. Raise ConfigError if they are invalid."""
    try:
        lists = {f.name for f in fields(NodeSettings) if isinstance(said[f.name], list)}
        values: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in said.items()}
        values["data"] = Path(values["data"])
        values["credentials"] = Credentials(**values["credentials"])
        values["replication"] = ReplicationConfig(**values["replication"])
        return NodeSettings(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"Internal error: a worker received invalid settings: {error!r}") from None
