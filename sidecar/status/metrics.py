"""Prometheus metrics of one node, gathered when they are asked for: nothing on the data path counts twice.

One registry per node. Labels are node-wide sums, not partitions: a node may hold thousands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from liftpy.wire.refusals import by_reason
from sidecar.status.report import Reporter

_SUMS = {
    "records_in": ("liftpy_ingest_records", "Records appended as leader."),
    "bytes_in": ("liftpy_ingest_bytes", "Bytes of record batches appended as leader."),
    "batches_in": ("liftpy_ingest_batches", "Record batches appended as leader."),
    "overloaded": ("liftpy_ingest_overloaded", "Publishes refused or dropped because a bound was reached."),
    "rejected": ("liftpy_ingest_rejected", "Publishes answered with a negative ack."),
    "duplicates": ("liftpy_ingest_duplicates", "Publishes left out because a record has their message id, or sequence."),
    "message_ids_forgotten": ("liftpy_message_ids_forgotten", "Message ids that went before their time, for want of room."),
    "producers_forgotten": ("liftpy_producers_forgotten", "Producers that went before their time, for want of room."),
    "replayed_bytes": ("liftpy_replayed_bytes", "Bytes of logs that were read again for what is derived from them."),
    "states_written": ("liftpy_derived_states_written", "Checkpoints of what is derived from logs."),
    "states_failed": ("liftpy_derived_states_failed", "Checkpoints of what is derived from logs that could not be written."),
    "poison_envelopes": ("liftpy_ingest_poison_envelopes", "Publishes that look enveloped and are not."),
    "refused_replies": ("liftpy_refused_replies", "Reply subjects outside the inbox prefixes."),
    "flushes": ("liftpy_log_flushes", "Flushes of logs."),
}


_BYTES = {
    "held_bytes": "Publishes that are held back: their partition's ISR is short, or its followers are behind.",
    "uncommitted_bytes": "Appended by leaders here and not committed, about.",
    "waiting_readers_bytes": "What readers in a long poll cost, of those that wait here.",
    "message_ids_bytes": "Message ids within the windows of the partitions here, about.",
    "producers_bytes": "What is known of producers by the partitions here, about.",
    "subjects_bytes": "Last offsets of subjects, of the partitions here whose publishers expect such, about.",
    "assembling_bytes": "Held by followers here of batches that come in pieces and are not whole yet.",
}


_GROUPS = {
    "groups": "Groups whose coordinator is LEADER here.",
    "group_members": "Their live members.",
    "group_queues": "Their partitions of work queues.",
    "group_records_out": "Records of work queues that workers have and have not settled.",
}


class NodeCollector(Collector):
    """Turns a node's report into metric families."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every scrape."""
        report = self._reporter.report()
        partitions: list[dict[str, Any]] = report["partitions"]
        for name, (metric, text) in _SUMS.items():
            yield CounterMetricFamily(metric, text, value=sum(p[name] for p in partitions))
        led = [p for p in partitions if p["role"] == "LEADER"]
        yield from self._numbers(partitions, led)
        yield from self._copies(report["copies"], partitions)
        yield from self._derived(report["derived"])
        behind = sum(len(p["isr"]) < len(p["replicas"]) for p in led)
        yield GaugeMetricFamily("liftpy_partitions_under_replicated", "Led here, with replicas out of the ISR.", value=behind)
        slow = sum(p["has_slow_disk"] + sum(f["has_slow_disk"] for f in p["followers"].values()) for p in led)
        text = "Of partitions led here, this node's and others', whose flushes are far slower than the rest's."
        yield GaugeMetricFamily("liftpy_replicas_with_slow_disks", text, value=slow)
        dropped = CounterMetricFamily(
            "liftpy_ingest_dropped", "Publishes that nobody waits for, not stored.", labels=["reason"]
        )
        for reason, count in sorted(sum((Counter(p["dropped"]) for p in partitions), Counter[str]()).items()):
            dropped.add_metric([reason], count)
        yield dropped
        yield from self._standby(sum((Counter(p["standby"]) for p in partitions), Counter()))
        for name, text in _BYTES.items():
            yield GaugeMetricFamily(f"liftpy_{name}", text, value=sum(p[name] for p in partitions))
        full = sum(p["subjects_state"] == "full" for p in partitions)
        text = "Partitions here with more subjects than subjects_bytes hold: no last sequence of a subject can be expected."
        yield GaugeMetricFamily("liftpy_partitions_with_too_many_subjects", text, value=full)
        waiting = sum(p["waiting_acks"] for p in partitions)
        yield GaugeMetricFamily("liftpy_waiting_acks", "Publishers that wait for an ack.", value=waiting)
        uncommitted = sum(p["newest_offset"] - p["high_watermark"] for p in led)
        yield GaugeMetricFamily("liftpy_uncommitted_records", "Records of led partitions above HW.", value=uncommitted)
        services = [service for p in partitions for service in p.get("services", ())]
        yield from self._services(services, sum(len(p.get("gone_services", ())) for p in partitions))
        yield from self._coordinators(report["coordinators"])
        yield from self._nats(report["nats"])
        yield from self._connections(report["connections"])
        yield from self._flushes(report["flush_times"])
        yield from self._flush_place(report["flush_place"])
        yield from self._ticks(report["ticks"])
        if scrub := report["scrub"]:
            text = "Bytes of logs read back from the disk and checked."
            yield CounterMetricFamily("liftpy_scrub_bytes", text, value=scrub["checked_bytes"])
            yield CounterMetricFamily("liftpy_scrub_findings", "Damage that the scrub has found.", value=scrub["findings"])
            text = "When the scrub was last through all logs, Unix time; 0: never."
            yield GaugeMetricFamily("liftpy_scrub_last_full_pass_seconds", text, value=scrub["last_full_pass_s"])
        if descriptors := report["descriptors"]:
            yield GaugeMetricFamily("liftpy_open_files", "Descriptors that are open.", value=descriptors["open"])
            yield GaugeMetricFamily("liftpy_open_files_limit", "How many there may be.", value=descriptors["limit"])
            text = "Replicas that the limit of open files is enough for."
            yield GaugeMetricFamily("liftpy_partition_budget", text, value=descriptors["partition_budget"])
            yield GaugeMetricFamily("liftpy_open_maps", "Sealed segments that are held open.", value=descriptors["maps"])
        held = GaugeMetricFamily(
            "liftpy_metadata_held", "What a controller keeps of the metadata group's log, by kind.", labels=["of"]
        )
        for kind, size in report["metadata_held"].items():
            held.add_metric([kind], size)
        yield held
        refused = CounterMetricFamily("liftpy_frames_refused", "Frames that were not taken, by reason.", labels=["reason"])
        for reason, count in sorted(report["refused"].items()):
            refused.add_metric([reason], count)
        yield refused
        events = CounterMetricFamily("liftpy_events", "Rare events, by kind.", labels=["kind"])
        for kind, count in sorted(report["counters"].items()):
            if not by_reason({kind: count}):
                events.add_metric([kind], count)
        yield events

    def _numbers(self, partitions: list[dict[str, Any]], led: list[dict[str, Any]]) -> Iterator[Metric]:
        yield GaugeMetricFamily("liftpy_partitions", "Replicas on this node.", value=len(partitions))
        yield GaugeMetricFamily("liftpy_partitions_led", "Partitions that this node leads.", value=len(led))
        quiet = sum(p["phase"] == "FOLLOWER_QUIET" for p in partitions)
        yield GaugeMetricFamily("liftpy_partitions_quiet", "Followed here without news, asked for with others.", value=quiet)
        paused = sum(bool(p["paused"]) for p in led)
        yield GaugeMetricFamily("liftpy_partitions_paused", "Led here, and paused by operators.", value=paused)

    def _derived(self, derived: dict[str, Any]) -> Iterator[Metric]:
        text = "Memory for what is derived from the logs of the partitions here, about, by kind."
        held = GaugeMetricFamily("liftpy_derived_bytes", text, labels=["of"])
        for kind, size in sorted(derived["held"].items()):
            held.add_metric([kind], size)
        yield held
        text = "How much that may be (node_derived_bytes); leaders refuse what is new from seven eighths of it on."
        yield GaugeMetricFamily("liftpy_derived_bound_bytes", text, value=derived["bound_bytes"])
        text = "Publishes that were refused since there was no room for what they need, by kind."
        refused = CounterMetricFamily("liftpy_derived_refused", text, labels=["of"])
        for kind, count in sorted(derived["refused"].items()):
            refused.add_metric([kind], count)
        yield refused

    def _standby(self, counted: Counter[str]) -> Iterator[Metric]:
        text = "Memory for what was heard while standing by."
        yield GaugeMetricFamily("liftpy_standby_bytes", text, value=counted.pop("held_bytes", 0))
        text = "Messages that were heard while standing by, by what became of them."
        standby = CounterMetricFamily("liftpy_standby_messages", text, labels=["state"])
        for state, count in counted.items():
            standby.add_metric([state], count)
        yield standby

    def _coordinators(self, coordinators: list[dict[str, Any]]) -> Iterator[Metric]:
        """Numbers of groups are those of the coordinators that are LEADER here, so that a sum over nodes counts each once."""
        leading = [one for one in coordinators if one["role"] == "LEADER"]
        running = GaugeMetricFamily("liftpy_coordinators", "Coordinators of groups here, by state.", labels=["state"])
        running.add_metric(["leader"], len(leading))
        running.add_metric(["follower"], sum(one["role"] == "FOLLOWER" for one in coordinators))
        running.add_metric(["failing"], sum(bool(one["problem"]) for one in coordinators))
        yield running
        for name, text in _GROUPS.items():
            yield GaugeMetricFamily(f"liftpy_{name}", text, value=sum(one[name.removeprefix("group_")] for one in leading))
        text = "Of memory, about: the states of the coordinators here; each has its own bound."
        yield GaugeMetricFamily("liftpy_coordinator_state_bytes", text, value=sum(one["state_bytes"] for one in coordinators))
        text = "The bound of one coordinator; it takes no new group, member, position or queue beyond."
        bound = max((one["bound_bytes"] for one in coordinators), default=0)
        yield GaugeMetricFamily("liftpy_coordinator_state_bound_bytes", text, value=bound)

    def _services(self, services: list[dict[str, Any]], gone: int) -> Iterator[Metric]:
        yield GaugeMetricFamily("liftpy_services", "Replicated services registered with this node.", value=len(services))
        lag = max((service["lag"] for service in services), default=0)
        yield GaugeMetricFamily("liftpy_service_lag_records", "Records that the slowest service is behind HW.", value=lag)
        text = "Bytes of snapshots that services have fetched from, or given to, those beside other nodes, since they began."
        moved = GaugeMetricFamily("liftpy_service_snapshot_bytes", text, labels=["way"])
        for way in ("fetched", "given"):
            moved.add_metric([way], sum(service[f"{way}_bytes"] for service in services))
        yield moved
        text = "Replicated services that were registered with this node, and are not any more."
        yield GaugeMetricFamily("liftpy_services_gone", text, value=gone)
        text = "Records that replicated services stand at, since they can't apply them."
        yield GaugeMetricFamily("liftpy_services_failing", text, value=sum(bool(s.get("failing")) for s in services))
        leaders = [s for s in services if s.get("role") == "LEADER"]
        text = "Outputs of services that are LEADER here, not written yet."
        yield GaugeMetricFamily("liftpy_service_output_backlog", text, value=sum(s.get("output_backlog", 0) for s in leaders))
        stuck = [s.get("since_output_s") or 0 for s in leaders if s.get("output_backlog")]
        text = "Since a LEADER's outputs were last written, where some wait: the longest."
        yield GaugeMetricFamily("liftpy_service_output_age_seconds", text, value=max(stuck, default=0))
        ages = [s["since_snapshot_s"] for s in services if s.get("since_snapshot_s") is not None]
        text = "Since a service's newest snapshot was stored: the longest."
        yield GaugeMetricFamily("liftpy_service_snapshot_age_seconds", text, value=max(ages, default=0))
        text = "Of the states in the services' newest snapshots."
        yield GaugeMetricFamily("liftpy_service_state_bytes", text, value=sum(s.get("snapshot_bytes", 0) for s in services))
        queries = GaugeMetricFamily(
            "liftpy_service_queries", "Queries of the services that are here, by what became of them.", labels=["state"]
        )
        for state in ("waiting", "answered", "refused"):
            queries.add_metric([state], sum(s.get(f"queries_{state}", 0) for s in services))
        yield queries

    def _flushes(self, times: dict[str, float]) -> Iterator[Metric]:
        flushes = GaugeMetricFamily(
            "liftpy_log_flush_seconds", "Of this node's last flushes, as publishers wait for them.", labels=["of"]
        )
        for name, milliseconds in times.items():
            flushes.add_metric([name.removesuffix("_ms")], milliseconds / 1000)
        yield flushes

    def _copies(self, copies: dict[str, float], partitions: list[dict[str, Any]]) -> Iterator[Metric]:
        learners = sum(p["role"] == "LEARNER" for p in partitions)
        yield GaugeMetricFamily("liftpy_partitions_copied", "Copied to this node: it is a learner of them.", value=learners)
        text = "Partitions led here whose replicas are wanted elsewhere, or more or fewer of them."
        moving = [p for p in partitions if p["role"] == "LEADER" and p["target"]]
        yield GaugeMetricFamily("liftpy_partitions_moving", text, value=len(moving))
        text = "Bytes of records that this node's learners were sent; growth of the partitions meanwhile included."
        yield CounterMetricFamily("liftpy_copied_bytes", text, value=copies["copied_bytes"])
        text = "Of them, what counted against the node's bound of bytes a second."
        yield CounterMetricFamily("liftpy_copied_backlog_bytes", text, value=copies["backlog_bytes"])
        text = "By how much fetches of learners were put off, summed up."
        yield CounterMetricFamily("liftpy_copies_put_off_seconds", text, value=copies["waited_s"])
        text = (
            "By how much copies have slowed down because pieces took long; more in a second than out of it: something is busy."
        )
        yield CounterMetricFamily("liftpy_copies_yielded_seconds", text, value=copies["yielded_s"])

    def _ticks(self, ticks: dict[str, float]) -> Iterator[Metric]:
        text = "How late the last ticks of the metadata group came; none on a node that is no controller."
        lateness = GaugeMetricFamily("liftpy_metadata_tick_lateness_seconds", text, labels=["of"])
        for name in ("p50_ms", "p99_ms", "max_ms") if ticks else ():
            lateness.add_metric([name.removesuffix("_ms")], ticks[name] / 1000)
        yield lateness
        text = "Ticks of the metadata group that came more than 50 ms late."
        yield CounterMetricFamily("liftpy_metadata_late_ticks", text, value=ticks.get("late", 0))

    def _flush_place(self, place: dict[str, int]) -> Iterator[Metric]:
        text = "1 while short flushes run on the event loop, because this disk is faster than a hand-over to a thread."
        yield GaugeMetricFamily("liftpy_log_flushes_on_loop", text, value=int(place["on_loop"]))
        text = "How often flushing has moved between the event loop and threads."
        yield CounterMetricFamily("liftpy_log_flush_moves", text, value=place["moves"])
        done = CounterMetricFamily("liftpy_log_flushes_by_place", "Flushes of logs, by where they ran.", labels=["place"])
        done.add_metric(["loop"], place["done_on_loop"])
        done.add_metric(["thread"], place["done_in_thread"])
        done.add_metric(["tried out"], place["probed"])
        yield done

    def _nats(self, nats: dict[str, Any]) -> Iterator[Metric]:
        yield GaugeMetricFamily("liftpy_nats_connected", "1 while connected to NATS.", value=int(nats["connected"]))
        traffic = ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "reconnects")
        for name in traffic:
            yield CounterMetricFamily(f"liftpy_nats_{name}", f"nats-py's {name}.", value=nats[name])
        errors = CounterMetricFamily("liftpy_nats_errors", "Errors and drops of the NATS connection, by kind.", labels=["kind"])
        for kind, count in sorted(nats["errors"].items()):
            errors.add_metric([kind], count)
        yield errors

    def _connections(self, connections: dict[str, Any]) -> Iterator[Metric]:
        up = GaugeMetricFamily("liftpy_connection_up", "1 while connected, of each connection for data.", labels=["connection"])
        unsent = GaugeMetricFamily("liftpy_connection_unsent_bytes", "What waits to be sent.", labels=["connection"])
        back = CounterMetricFamily("liftpy_connection_reconnects", "How often it came back.", labels=["connection"])
        for name, connection in connections.items():
            up.add_metric([name], int(connection["connected"]))
            unsent.add_metric([name], connection["send_buffer_bytes"])
            back.add_metric([name], connection["reconnects"])
        yield from (up, unsent, back)
        ingest = connections["ingest"]
        text = "Read from the ingest connection and not looked at."
        yield GaugeMetricFamily("liftpy_ingest_buffer_bytes", text, value=ingest["waiting_bytes"])
        text = "Delivered by a NATS server over a connection that it closed, and never arrived."
        yield CounterMetricFamily("liftpy_ingest_lost_with_connections", text, value=ingest["lost_with_connections"])
        text = "Ingest connections that were lost, and nobody can say what with them."
        yield CounterMetricFamily("liftpy_ingest_unknown_losses", text, value=ingest["connections_with_unknown_loss"])


def exposition(reporter: Reporter) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(reporter))
    return generate_latest(registry)
