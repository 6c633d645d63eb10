"""Reloads the settings of a running node: the whole file is read, and applied completely or not at all.

Flags and environment variables keep their values from the start, and override the file. Settings outside of ``LIVE`` apply
after a restart. The answer names them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from liftpy.errors import ConfigError
from liftpy.nats.credentials import PROOFS, Credentials
from sidecar.partition.replica_manager import Partitions
from sidecar.partition.scrub import Scrub
from sidecar.runtime.logs import LOGS
from sidecar.runtime.restarts import Supervisor
from sidecar.runtime.settings import NodeSettings, SettingsLoader, flat, rows, with_values
from sidecar.tracing.node_tracing import Tracing
from sidecar.workers.workers import divided_settings

logger = logging.getLogger("liftpy.node")

LIVE = (
    "log_level",
    "log_format",
    "metrics_streams",
    "dashboard_hostnames",
    "scrub_bytes_per_s",
    "trace",
    "trace_endpoint",
    "replication.copy_bytes_per_s",
    "replication.copy_min_bytes_per_s",
    "replication.copy_duty_cycle",
    "replication.copy_fetch_bytes",
    "replication.preferred_leader_interval_s",
    *(f"credentials.{name}" for name in PROOFS),
)
"""Settings that a running node applies, in all of its processes."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """Names of the settings that a reload has changed. ``applied``: they apply now. ``wait``: they apply after a restart."""

    applied: tuple[str, ...]
    wait: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReloadableParts:
    """The parts of a node that can apply new settings while it runs.

    ``others``: passes the settings to the worker processes. ``prefer``: sets the interval, in seconds, at which the metadata group
    transfers leaderships to preferred leaders. ``keys``: passes credentials to the NATS connections, which reconnect. A part that
    has not started yet is None.
    """

    partitions: Partitions | None
    scrub: Scrub | None
    dashboard_hostnames: Callable[[Iterable[str]], None]
    prefer: Callable[[float], None] | None
    others: Callable[[NodeSettings], None]
    keys: Callable[[Credentials], None]
    tracing: Tracing

    def trace(self, settings: NodeSettings) -> None:
        def partitions() -> None:
            for worker in self.partitions or ():
                worker.trace()

        self.tracing.apply_settings(settings, partitions)


class SettingsReloader:
    """Reloads the settings of a running node.

    ``source``: reads the settings. None: they never change. ``parts``: returns the parts that apply settings. ``prove``: checks new
    credentials with a connection, and raises ConfigError if NATS rejects them.
    """

    def __init__(
        self,
        settings: NodeSettings,
        source: SettingsLoader | None,
        parts: Callable[[], ReloadableParts],
        prove: Callable[[Credentials], Awaitable[None]],
    ) -> None:
        self.running = settings
        """Settings that the node uses now."""
        self._preferred_every = settings.replication.preferred_leader_interval_s
        self.read = settings
        """Settings as read last. The node uses all of them after its next start."""
        self._source = source
        self._parts = parts
        self._prove = prove
        self._proofs = settings.credentials.proofs()
        """Digests of the files that the current settings name. A file may change under the same name."""
        self._turn = asyncio.Lock()
        self._applied: NodeSettings | None = None
        """Settings of each process by the last reload. None: there was no reload."""

    async def reload(self) -> ReloadResult:
        """Read the settings again and apply them. Raises ConfigError if one is wrong, and then changes nothing."""
        async with self._turn:
            return await self._reload()

    async def _reload(self) -> ReloadResult:
        new_settings = self._source.load() if self._source is not None else self.read
        if new_settings.node_id != self.running.node_id:
            raise ConfigError(
                f"The file says node_id = {new_settings.node_id!r}, but this node is {self.running.node_id!r}. Correct the file."
            )
        new, current = flat(new_settings), flat(self.running)
        changed = [name for name, value in new.items() if value != current[name]]
        proofs = new_settings.credentials.proofs()
        renewed = [f"credentials.{name}" for name, proof in proofs.items() if proof != self._proofs[name]]
        changed += [name for name in renewed if name not in changed]
        self._parts().tracing.check(new_settings)
        if renewed:
            new_settings.credentials.nats_options()  # it raises if a file of credentials cannot be read
            await self._prove(new_settings.credentials)
        applied = tuple(name for name in changed if name in LIVE)
        running = with_values(self.running, {name: new[name] for name in applied})
        self.read, self.running = new_settings, running
        each = divided_settings(running)
        self.apply_settings(each)
        self._parts().others(each)
        result = ReloadResult(applied, tuple(name for name in changed if name not in LIVE))
        names = [",".join(changes) or "none" for changes in (result.applied, result.wait)]
        logger.info("settings reloaded applied=%s waiting_for_restart=%s", *names)
        return result

    def apply_settings(self, settings: NodeSettings) -> None:
        """Apply those of the new ``settings`` in this process that do not need a restart."""
        self._applied = settings
        proofs = settings.credentials.proofs()
        LOGS.reconfigure(settings.log_level, settings.log_format)
        parts = self._parts()
        if parts.partitions is not None:
            parts.partitions.counts.labels.patterns = settings.metrics_streams
            parts.partitions.copy_limit.change(settings.replication)
        if parts.scrub is not None:
            parts.scrub.change_rate(settings.scrub_bytes_per_s)
        parts.dashboard_hostnames(settings.dashboard_hostnames)
        parts.trace(settings)
        if proofs != self._proofs:
            self._proofs = proofs
            parts.keys(settings.credentials)
        if parts.prefer is not None and settings.replication.preferred_leader_interval_s != self._preferred_every:
            self._preferred_every = settings.replication.preferred_leader_interval_s
            parts.prefer(self._preferred_every)

    def apply_again(self) -> None:
        """Apply the settings of reloads during the start to the parts that have started since then."""
        if self._applied is not None:
            self.apply_settings(self._applied)
            self._parts().others(self._applied)

    async def reload_after_signal(self, supervisor: Supervisor) -> dict[str, Any]:
        """Reload the settings after SIGHUP or ``liftpy settings reload``, and report it to the supervisor.

        Return the names ``applied`` and ``wait`` (for a restart). After an error nothing is changed, and the result has only ``error``.
        """
        supervisor.reloading()
        try:
            result = await self.reload()
            answer: dict[str, Any] = {"applied": list(result.applied), "wait": list(result.wait)}
        except ConfigError as error:
            logger.error("settings not reloaded error=%s: keeping the current ones", error)
            answer = {"error": str(error)}
        finally:
            supervisor.reloaded()
        return answer

    def setting_rows(self) -> list[dict[str, Any]]:
        return rows(self.running, self.read, self._source.sources if self._source is not None else {}, LIVE)
