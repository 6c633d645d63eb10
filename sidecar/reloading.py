"""Settings while a node runs: the file is read again, whole; it is applied whole, or not at all.

Flags and the environment are those of the start, and win as they did then. What only a start can change (``LIVE`` lacks it) is told,
and waits for one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from liftpy.dataclass import dataclass
from liftpy.errors import ConfigError
from sidecar.logs import LOGS
from sidecar.partition.scrub import Scrub
from sidecar.partition.set import Partitions
from sidecar.settings import NodeSettings
from sidecar.supervisor import Supervisor
from sidecar.workers.sharing import shared_out

logger = logging.getLogger("liftpy.node")

LIVE = ("log_level", "log_format", "metrics_streams", "scrub_bytes_per_s")
"""Settings that a running node takes over; with several worker processes all wait for a restart, as the others would not hear of it."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Names of settings: ``applied`` now, and those that ``wait`` for a restart."""

    applied: tuple[str, ...]
    wait: tuple[str, ...]


Again = Callable[[], NodeSettings]
"""Reads and checks the settings; raises ConfigError."""
Parts = Callable[[], tuple[Partitions | None, Scrub | None]]
"""Of the node, as far as they are there."""


class Reloading:
    """``again``: reads and checks the settings, raises ConfigError; ``parts``: what takes them over, beside the log."""

    def __init__(self, settings: NodeSettings, again: Again, parts: Parts) -> None:
        self.running = settings
        """What holds now."""
        self.read = settings
        """What the file says; the next start takes all of it."""
        self._again = again
        self._live = LIVE if settings.workers == 1 else ()
        self._parts = parts

    def reload(self) -> Reloaded:
        """Read them again; raise ConfigError, with nothing changed, if one is wrong."""
        found = shared_out(self._again())
        if found.node_id != self.running.node_id:
            raise ConfigError(f"node_id = {found.node_id!r}: this is {self.running.node_id}; nothing is changed")
        changed = [
            field.name for field in fields(NodeSettings) if getattr(found, field.name) != getattr(self.running, field.name)
        ]
        applied = tuple(name for name in changed if name in self._live)
        self.read, self.running = found, replace(self.running, **{name: getattr(found, name) for name in applied})
        self._take_over(self.running)
        result = Reloaded(applied, tuple(name for name in changed if name not in self._live))
        words = f"taken over: {', '.join(applied) or 'nothing'}"
        logger.info(
            "settings read again; %s", words + (f"; wait for a restart: {', '.join(result.wait)}" if result.wait else "")
        )
        return result

    def _take_over(self, settings: NodeSettings) -> None:
        LOGS.reconfigure(settings.log_level, settings.log_format)
        partitions, scrub = self._parts()
        if partitions is not None:
            partitions.counts.labels.patterns = settings.metrics_streams
        if scrub is not None:
            scrub.change_rate(settings.scrub_bytes_per_s)

    def signalled(self, supervisor: Supervisor) -> None:
        """SIGHUP: what is wrong is logged, and changes nothing."""
        supervisor.reloading()
        try:
            self.reload()
        except ConfigError as error:
            logger.error("settings are as they were: %s", error)
        supervisor.reloaded()

    def shown(self, sources: Mapping[str, str]) -> list[dict[str, Any]]:
        """A row for each setting but secrets: ``name``, ``value`` that holds, ``read`` from the file where that differs,
        ``source``, ``live``."""
        rows = []
        for field in fields(NodeSettings):
            if field.name in ("credentials", "nats"):
                continue  # passwords, and URLs with some
            value, read = getattr(self.running, field.name), getattr(self.read, field.name)
            rows.append(
                {
                    "name": field.name,
                    "value": _plain(value),
                    **({"read": _plain(read)} if read != value else {}),
                    "source": sources.get(field.name, "default"),
                    "live": field.name in self._live,
                }
            )
        return rows


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value if isinstance(value, (str, int, float, bool)) else str(value)
