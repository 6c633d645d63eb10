"""Settings of one service process. Names end with the unit, and every value is checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from liftpy.client.arguments import check_bounds
from liftpy.core.base.ids import check_name
from liftpy.core.services.outbox import MAX_ROUTES, Route
from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, GROUPS_SERVICE, GROUPS_STREAM, check_inbox_prefixes
from liftpy.errors import ConfigError
from liftpy.renamed import accept_old_keywords


@accept_old_keywords
@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings of a service host. All nodes of a service need equal ``service``, ``snapshot_interval_records`` and
    ``output_stream``.

    Attributes:
        node: Sidecar in the host of the service. The service reads only from it.
        data: Directory for snapshots. Each process of a service and partition has its own.
        output_stream: Stream for the outputs. '': the service emits none. Outputs of partition N go to its partition N,
            which must not have other writers.
        dead_letter_stream: Stream for skipped records, in the partition of the same number, or 0. '': they are only
            logged.
        snapshot_interval_records: Number of offsets between two snapshots. It limits the next replay.
        snapshot_interval_s: Maximum time between snapshots of this node, in seconds.
        snapshot_bytes: Maximum size of the log between snapshots of this node, in bytes.
        snapshots_kept: Number of newest snapshot files to keep. One older file stays if outputs may be produced again from it.
        heartbeat_interval_s: Interval of heartbeats, in seconds. Below a third of the sidecar's lease.
        outbox_records: Maximum number of unwritten outputs. A LEADER waits at this number.
        outbox_bytes: Maximum size of unwritten outputs, in bytes. A LEADER waits at this size.
        emit_window: Maximum number of outputs sent before the first ack.
        emit_poll_interval_s: Interval at which a follower reads the LEADER's progress in the outputs, in seconds.
        step_s: Maximum time of applying records or answering queries before the heartbeats run, in seconds.
        max_snapshot_bytes: Maximum size of a snapshot of this or another node, in bytes.
        max_concurrent_effects: Maximum number of effect handlers at a time.
        effect_timeout_s: Timeout of an effect handler, in seconds. After a timeout, the effect runs again.
        tick_interval_s: Minimum interval in seconds at which a LEADER appends empty records while a timer is due and no
            record arrives. 0: never.
        parameters_digest: Digest of the parameters of the service (``liftpy.core.services.rules``). b"": none.
        reply_prefixes: Allowed prefixes of inboxes for replies (``liftpy.core.wire.subjects``).
        snapshot_fetch_timeout_s: Time to look for another node's snapshot if the log begins above the own ones, in
            seconds.
        snapshot_chunk_bytes: Size of one message of a snapshot download, in bytes.
        routes: Other streams to which outputs are copied.
    """

    service: str
    stream: str
    node: str
    data: Path
    partition: int = 0
    output_stream: str = ""
    dead_letter_stream: str = ""
    snapshot_interval_records: int = 10_000
    snapshot_interval_s: float = 300.0
    snapshot_bytes: int = 256 * 1024 * 1024
    snapshots_kept: int = 3
    heartbeat_interval_s: float = 0.25
    outbox_records: int = 65_536
    outbox_bytes: int = 32 * 1024 * 1024
    emit_window: int = 4096
    emit_poll_interval_s: float = 0.5
    emit_timeout_s: float = 3.0
    step_s: float = 0.02
    read_wait_s: float = 1.0
    read_max_bytes: int = 1024 * 1024
    max_snapshot_bytes: int = 1 << 30
    max_concurrent_effects: int = 8
    effect_timeout_s: float = 60.0
    tick_interval_s: float = 0.0
    parameters_digest: bytes = b""
    reply_prefixes: tuple[str, ...] = DEFAULT_INBOX_PREFIXES
    snapshot_fetch_timeout_s: float = 30.0
    snapshot_chunk_bytes: int = 256 * 1024
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.service, "service")
        check_name(self.stream, "stream")
        if self.service == GROUPS_SERVICE and self.stream != GROUPS_STREAM:  # queries name only the service
            raise ConfigError(
                f"Invalid service name {self.service!r}. The coordinators of groups, queues and cursors have this name, so the service "
                "would answer their queries. Choose another name (--name)."
            )
        check_name(self.node, "node")
        if self.output_stream:
            check_name(self.output_stream, "output stream")
        if self.dead_letter_stream:
            check_name(self.dead_letter_stream, "dead-letter stream")
        if self.dead_letter_stream and self.dead_letter_stream in (self.stream, self.output_stream):
            raise ConfigError(
                "dead_letter_stream is the same as the input or output stream. Choose another stream (--dead-letter-stream)."
            )
        stream_names = {self.stream, self.output_stream, self.dead_letter_stream}
        for route in self.routes:
            check_name(route.name, "route")
            check_name(route.stream, "route's stream")
            if route.stream in stream_names:
                raise ConfigError(
                    f"Route {route.name}: the service already uses stream {route.stream}. Choose another stream (--route)."
                )
            stream_names.add(route.stream)
        if len({route.name for route in self.routes}) < len(self.routes) or len(self.routes) > MAX_ROUTES:
            raise ConfigError(f"Invalid routes. Names must be unique, and at most {MAX_ROUTES} routes are allowed (--route).")
        if self.routes and not self.output_stream:
            raise ConfigError("A route copies from the output stream. Set an output stream (--output-stream).")
        if self.output_stream == self.stream:
            raise ConfigError(
                "output_stream is the input stream, so the service would read its own outputs. Choose another stream "
                "(--output-stream)."
            )
        check_inbox_prefixes(self.reply_prefixes)
        bounds: dict[str, tuple[float, float]] = {
            "partition": (0, 1 << 20),
            "snapshot_interval_records": (1, 1 << 40),
            "snapshot_interval_s": (0.01, 1 << 30),
            "snapshot_bytes": (4096, 1 << 50),
            "snapshots_kept": (2, 1000),
            "heartbeat_interval_s": (0.01, 10),
            "outbox_records": (1, 10_000_000),
            "outbox_bytes": (4096, 4 << 30),
            "emit_window": (1, 65_536),
            "emit_poll_interval_s": (0.01, 60),
            "emit_timeout_s": (0.1, 60),
            "max_concurrent_effects": (1, 256),
            "effect_timeout_s": (0.01, 3600),
            "tick_interval_s": (0, 3600),
            "step_s": (0.001, 1),
            "read_wait_s": (0, 30),
            "read_max_bytes": (4096, 64 << 20),
            "max_snapshot_bytes": (4096, 16 << 30),
            "snapshot_fetch_timeout_s": (0, 3600),
            "snapshot_chunk_bytes": (4096, 8 << 20),
        }
        check_bounds(self, bounds)
