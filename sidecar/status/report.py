"""Status of a node as one JSON object, over NATS (``<ns>.status.<node>``) and on the status page.

The offsets ``newest_offset``, ``high_watermark`` and ``log_start_offset`` are inclusive. -1 means none.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from liftpy import __version__
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.replication.replica import ReplicaSnapshot
from liftpy.core.wire.decode_errors import by_reason
from liftpy.nats.urls import shown_address
from sidecar.groups.on_demand import CoordinatorsOnDemand
from sidecar.metadata.clock_watch import ClockWatch
from sidecar.metadata.group import MetadataGroup
from sidecar.partition.node_tools import NodeTools
from sidecar.partition.replica_manager import Partitions
from sidecar.partition.scrub import Scrub
from sidecar.partition.worker import PartitionWorker
from sidecar.runtime import clock
from sidecar.transport.connection import BusConnection
from sidecar.transport.connections import NodeConnections

if TYPE_CHECKING:
    from liftpy.core.groups.lag import GroupLag

_TRAFFIC = ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "reconnects")

_NO_LAGS: dict[str, GroupLag] = {}


class Reporter:
    """Collects the status of a node. It changes nothing.

    ``descriptors``: returns the numbers of open files and of their limit, by kind.
    """

    def __init__(
        self,
        node: NodeTools,
        links: NodeConnections,
        clocks: ClockWatch,
        group: MetadataGroup,
        partitions: Partitions,
        scrub: Scrub,
        coordinators: CoordinatorsOnDemand,
        cluster_watch: ControllerMetrics,
        descriptors: Callable[[], dict[str, int]],
    ) -> None:
        self._node = node
        self.settings, self.incarnation, self.links, self._clocks = node.settings, node.incarnation, links, clocks
        self.instruments, self.inflight, self.room = node.instruments, node.inflight, node.memory_budget
        self.read_budget, self.flush_place = node.reads.budget, node.flush_runner.place
        self.group = group
        self.partitions = partitions
        self.cluster_watch = cluster_watch
        self.descriptors = descriptors
        self._scrub = scrub
        self._coordinators = coordinators
        self._started = time.monotonic()

    def page(self, after: tuple[str, int], count: int) -> dict[str, Any]:
        """Return the status of the node with at most ``count`` partitions, those after ``after`` (stream, partition).

        The field ``more`` is True if there are further partitions.
        """
        behind = [worker for worker in self.partitions if (worker.key.stream, worker.key.partition) > after]
        chosen = nsmallest(count, behind, key=lambda worker: (worker.key.stream, worker.key.partition))
        return {**self.report(chosen), "more": len(behind) > len(chosen)}

    def report(self, only: list[PartitionWorker] | None = None) -> dict[str, Any]:
        """Return the status of the node. ``only``: partitions to include. None: all partitions on the node."""
        now_ns = clock.now_ns()
        workers = self.partitions if only is None else only
        copying, state_memory = self._node.copy_limit, self._node.state_memory
        return {
            "node": self.settings.node_id,
            "version": __version__,
            "pid": os.getpid(),
            "incarnation": self.incarnation,
            "uptime_s": round(self.uptime_s, 3),
            "namespace": self.settings.namespace,
            "controller": self.group.is_controller,
            "controllers": self._controllers(),
            "metadata_leader": self.group.leader,
            "metadata_index": self.group.image.index,
            "nats": self.nats(),
            "connections": self._connections(),
            "counters": self.named_counters(),
            "metadata_held": self.group.held,
            "refused": by_reason(self.named_counters()),
            "partitions": [self._partition(worker, now_ns) for worker in workers],
            "scrub": self.scrub(),
            "clock": self.clock(),
            "descriptors": self.descriptors(),
            "copies": {
                "bytes_per_second": copying.bytes_per_second,
                "copied_bytes": copying.copied_bytes,
                "backlog_bytes": copying.backlog_bytes,
                "waited_s": round(copying.waited_ns / 1e9, 3),
                "yielded_s": round(copying.yielded_ns / 1e9, 3),
            },
            "derived": {
                "bound_bytes": state_memory.bound_bytes,
                "size_bytes": state_memory.size_bytes,
                "held": dict(state_memory.by_kind),
                "refused": dict(state_memory.refused),
            },
            "flush_times": self._node.flush_times.report(),
            "flush_place": self.flush_place.report(),
            "coordinators": self.coordinators(),
            "ticks": self.group.ticks(),
            "failed_partitions": {str(key): why for key, why in self.partitions.failed.items()},
        }

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started

    def _controllers(self) -> dict[str, Any]:
        """Return the controllers of the metadata group, as this node knows them.

        Before their first change, the image does not name them. Then a controller knows them from its settings. Another node knows
        none, because its settings may name other nodes.
        """
        controllers, named = self.group.image.controllers, sorted(self.settings.controllers)
        own = named if self.group.is_controller else []
        voters = list(controllers.voters) if controllers.index else own
        shown = {"voters": voters, "learner": controllers.learner, "leaving": controllers.leaving, "index": controllers.index}
        return {**shown, "differ_from_settings": bool(voters) and voters != named}

    def scrub(self) -> dict[str, Any]:
        return self._scrub.report()

    def clock(self) -> dict[str, Any]:
        """Return the state of the wall clock: its difference from other nodes in s, and why it is not trusted ('': it is)."""
        trust = self._clocks.check()
        return {"skew_s": round(trust.skew_ns / 1e9, 3), "doubt": trust.why}

    def coordinators(self) -> list[dict[str, Any]]:
        running = self._coordinators.running
        return running.report() if running is not None else []

    def group_lags(self) -> dict[str, GroupLag]:
        """Return the lag of the groups that this node coordinates, by metric label."""
        running = self._coordinators.running
        return running.lags.by_label if running is not None else {}

    def lags_by_group(self) -> dict[str, GroupLag]:
        """Return the lag of each group that this node coordinates, by name. Each measurement creates a new dict."""
        running = self._coordinators.running
        return running.lags.by_group if running is not None else _NO_LAGS

    def group_rows(self) -> Iterator[dict[str, Any]]:
        running = self._coordinators.running
        return running.group_rows() if running is not None else iter(())

    def group_rows_of(self, name: str) -> dict[str, list[dict[str, Any]]]:
        running = self._coordinators.running
        return (
            running.group_rows_of(name) if running is not None else {"rows": [], "members": [], "positions": [], "history": []}
        )

    @property
    def node_id(self) -> str:
        return self.settings.node_id

    def of_stream(self, stream: str, count: int) -> list[dict[str, Any]]:
        """Return the status of the first ``count`` partitions of a stream on this node, in order."""
        own = [worker for worker in self.partitions if worker.key.stream == stream]
        chosen = nsmallest(count, own, key=lambda worker: worker.key.partition)
        return [self._partition(worker, clock.now_ns()) for worker in chosen]

    def named_counters(self) -> dict[str, int]:
        """Return all named counters of the node. Names of metadata group counters start with ``metadata: ``."""
        return {**self._node.counters, **{f"metadata: {kind}": n for kind, n in self.group.counters.items()}}

    def nats(self) -> dict[str, Any]:
        """Return the state, traffic and errors of the data connections together."""
        links = self.links.all()
        errors: Counter[str] = sum((link.errors for link in links), Counter[str]())
        return {
            "connected": all(link.is_connected for link in links),
            "server": shown_address(self.links.replication.connected_url),
            "max_payload_bytes": self.links.replication.max_payload,
            "send_buffer_bytes": sum(link.unsent_bytes for link in links),
            **{name: sum(link.stats[name] for link in links) for name in _TRAFFIC},
            "errors": dict(errors),
        }

    def _connections(self) -> dict[str, dict[str, Any]]:
        connections = {link.name: _connection(link) for link in self.links.all()}
        inflow = self.links.ingest
        connections[inflow.name] |= {
            "waiting_bytes": inflow.waiting_bytes,
            "most_waiting_bytes": inflow.most_waiting_bytes,
            "server_holds_bytes": inflow.overflow.backlog_bytes,
            "bursts": inflow.bursts,
            "left_out": inflow.dropped_unread,
            "lost_with_connections": inflow.disconnect_loss.lost_messages,
            "connections_with_unknown_loss": inflow.disconnect_loss.unknown,
        }
        return connections

    def _partition(self, worker: PartitionWorker, now_ns: int) -> dict[str, Any]:
        snapshot = worker.replica.snapshot(now_ns)
        ingest = worker.ingest.counters
        return {
            "stream": worker.key.stream,
            "uid": worker.key.uid,
            "partition": worker.key.partition,
            **_replica(snapshot),
            "log_bytes": worker.log.size_bytes,
            "waiting_acks": worker.acks.count,
            "waiting_readers": worker.reads.waiting_count,
            "waiting_readers_bytes": worker.reads.waiting_bytes,
            "flushes": worker.flusher.count,
            "flush_times": worker.flusher.times.report(),
            "records_in": ingest.records,
            "batches_in": ingest.batches,
            "bytes_in": ingest.size_bytes,
            "overloaded": ingest.overloaded,
            "rejected": ingest.rejected,
            "duplicates": ingest.duplicates,
            "replayed_bytes": worker.log_state.replayed_bytes,
            "message_ids": len(worker.log_state.ids),
            "message_ids_bytes": worker.log_state.ids.size_bytes,
            "message_ids_state": "whole" if worker.log_state.ids.is_whole else "lost",
            "message_ids_forgotten": worker.log_state.ids.evicted_count,
            "producers": len(worker.log_state.producers),
            "producers_bytes": worker.log_state.producers.size_bytes + worker.ingest.open_producers_bytes,
            "producers_state": "full" if worker.log_state.producers.is_full else "open",
            "producers_forgotten": worker.log_state.producers.evicted_count,
            "subjects": len(worker.log_state.subjects),
            "subjects_bytes": worker.log_state.subjects.size_bytes,
            "subjects_state": worker.log_state.subjects.state,
            "state_bytes": worker.states.writer.last_bytes,
            "states_written": worker.states.writer.written,
            "states_failed": worker.states.writer.failed + worker.log_state.states_left_out,
            "standby": worker.standby.report(),
            "dropped": dict(ingest.dropped),
            "held_bytes": worker.replica.held_bytes,
            "uncommitted_bytes": worker.replica.uncommitted_bytes,
            "fragment_reassembly_bytes": worker.fetches.fragment_reassembly_bytes,
            "poison_envelopes": worker.ingest.reader.poison_envelopes,
            "refused_replies": worker.ingest.reader.refused_replies,
            "protocol_frames": worker.ingest.reader.protocol_frames,
            "storage_failed": worker.storage_failed,
            "services": worker.services.report(),
            "gone_services": worker.services.left_services(),
        }


def _connection(link: BusConnection) -> dict[str, Any]:
    return {
        "connected": link.is_connected,
        "send_buffer_bytes": link.unsent_bytes,
        **{name: link.stats[name] for name in _TRAFFIC},
        "errors": dict(link.errors),
    }


def _replica(snapshot: ReplicaSnapshot) -> dict[str, Any]:
    return {
        "role": snapshot.role,
        "phase": snapshot.phase,
        "leader": snapshot.leader,
        "leader_epoch": snapshot.leader_epoch,
        "epoch": snapshot.epoch,
        "replicas": list(snapshot.replicas),
        "isr": list(snapshot.isr),
        "target": list(snapshot.target),
        "joining": snapshot.joining,
        "paused": snapshot.paused,
        "copy_lag": snapshot.copy_lag_records,
        "log_start_offset": snapshot.log_start_offset,
        "newest_offset": snapshot.log_end_offset - 1,
        "flushed_offset": snapshot.flushed_end_offset - 1,
        "high_watermark": snapshot.high_watermark,
        "lease": snapshot.lease_is_current,
        "has_slow_disk": snapshot.has_slow_disk,
        "followers": {
            follower.replica: {
                "position": follower.position,
                "lag": follower.lag_records,
                "in_isr": follower.in_isr,
                "caught_up_age_s": round(follower.caught_up_age_s, 3),
                "flush_ms": round(follower.flush_ms, 3),
                "has_slow_disk": follower.has_slow_disk,
            }
            for follower in snapshot.followers
        },
    }
