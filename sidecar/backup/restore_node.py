"""Helper of a restore: an ordinary node on the machine of the command, for the duration of the restore.

Goal: records enter a cluster byte for byte, without a way to write into a log that others could use. So the protocol
has nothing new:
the helper is a replica that has the log already, and the others copy it like any replica that moves.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from sidecar.dev.cluster import DevNode
from sidecar.runtime.settings import Target, child_environment, credentials_environment, nats_environment, quiet_environment

PREFIX = "restore-"
"""Prefix of the helpers' ids."""


@dataclass(frozen=True, slots=True)
class HelperSettings:
    """Settings of the helper node. ``config``: a settings file for values that the target lacks. None: only the target's."""

    node_id: str
    data: Path
    target: Target
    controllers: tuple[str, ...]
    rack: str = ""
    config: Path | None = None


def helper_node(settings: HelperSettings) -> DevNode:
    """Return the helper node, not started yet. It ends with this process."""
    flags = {
        "--node-id": settings.node_id,
        "--data": str(settings.data),
        "--namespace": settings.target.namespace,
        "--controllers": ",".join(settings.controllers),
        "--status-port": "-1",
        "--weight": "0",
    }
    if settings.rack:
        flags["--rack"] = settings.rack
    if settings.config is not None:
        flags["--config"] = str(settings.config)
    command = [sys.executable, "-m", "sidecar", "--json"]
    for flag, value in flags.items():
        command += [flag, value]
    checkout = str(Path(__file__).resolve().parent.parent.parent)
    path = os.pathsep.join([checkout, *filter(None, child_environment().get("PYTHONPATH", "").split(os.pathsep))])
    own = {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "LIFTPY_RUN_GROUP_COORDINATORS": "false",
        "LIFTPY_SCRUB_BYTES_PER_S": "0",
    }
    nats = nats_environment(",".join(settings.target.nats))
    credentials = credentials_environment(settings.target.credentials) if settings.config is None else {}
    return DevNode(
        settings.node_id, command, {**child_environment(), **own, **nats, **credentials, **quiet_environment()}, None
    )
