"""Old names of settings, options, commands and methods of the client.

Old names of settings, options and commands do not work. If a user gives one, the error shows the new name. In Python the
old name of a setting still works as a keyword argument (``accept_old_keywords``), with a DeprecationWarning. So do the old
methods of a client (``client_method``) and the old functions for groups (``client_function``). The next release removes
this module.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import Any, TypeVar

_Made = TypeVar("_Made", bound=Callable[..., Any])

SETTINGS = {
    "copies_at_once": "max_copies",
    "copies_per_node": "max_copies_per_node",
    "copy_bytes_per_second": "copy_bytes_per_s",
    "copy_least_bytes_per_second": "copy_min_bytes_per_s",
    "copy_piece_bytes": "copy_fetch_bytes",
    "copy_share": "copy_duty_cycle",
    "dedup_bytes": "partition_message_id_bytes",
    "effects_at_once": "max_concurrent_effects",
    "emit_poll_s": "emit_poll_interval_s",
    "heartbeat_s": "heartbeat_interval_s",
    "host_groups": "run_group_coordinators",
    "hw_checkpoint_s": "hw_checkpoint_interval_s",
    "ingest_late_s": "max_queue_delay_s",
    "leader_rest_s": "min_leadership_s",
    "max_held_s": "min_isr_hold_timeout_s",
    "node_derived_bytes": "node_dedup_state_bytes",
    "offer_files": "local_file_reads",
    "page_hosts": "dashboard_hostnames",
    "preferred_leaders_every": "preferred_leader_interval_s",
    "probe_after": "follower_ping_delay_s",
    "producer_bytes": "partition_producer_bytes",
    "quiet_rounds": "idle_polls_before_quiet",
    "service_ended_s": "service_ended_retention_s",
    "service_hold_bytes": "service_log_retention_bytes",
    "slow_flush_out_s": "slow_flush_isr_backoff_s",
    "snapshot_every": "snapshot_interval_records",
    "snapshot_fetch_s": "snapshot_fetch_timeout_s",
    "snapshot_piece_bytes": "snapshot_chunk_bytes",
    "state_checkpoint_s": "state_checkpoint_interval_s",
    "subjects_bytes": "partition_subject_index_bytes",
    "tick_s": "tick_interval_s",
}
"""Settings of nodes, streams and services: old name -> new name."""

CLIENT_METHODS = {
    "add_partitions": "admin.add_partitions",
    "allow_internal": "admin.allow_internal",
    "alter_stream": "admin.alter_stream",
    "ask_node": "admin.ask_node",
    "call_service": "services.call",
    "change_controllers": "admin.change_controllers",
    "check_majority": "admin.check_majority",
    "cluster_events": "admin.cluster_events",
    "controller_ids": "admin.controller_ids",
    "default_quota": "admin.default_quota",
    "delete_stream": "admin.delete_stream",
    "describe_cluster": "admin.describe_cluster",
    "elect_leader": "admin.elect_leader",
    "feature_levels": "admin.feature_levels",
    "groups_stream": "groups.stream",
    "list_streams": "admin.list_streams",
    "node_glance": "admin.node_glance",
    "node_health": "admin.node_health",
    "node_ids": "admin.node_ids",
    "node_log_level": "admin.node_log_level",
    "node_settings": "admin.node_settings",
    "node_status": "admin.node_status",
    "pause": "admin.pause",
    "plan_partitions": "admin.plan_partitions",
    "plan_stream": "admin.plan_stream",
    "purge": "admin.purge",
    "query_service": "services.query",
    "reassign": "admin.reassign",
    "reassign_all": "admin.reassign_all",
    "reload_settings": "admin.reload_settings",
    "remove_data": "admin.remove_data",
    "remove_node": "admin.remove_node",
    "reset_node": "admin.reset_node",
    "resume": "admin.resume",
    "session_times": "admin.session_times",
    "set_default_quota": "admin.set_default_quota",
    "set_feature_level": "admin.set_feature_level",
    "set_node": "admin.set_node",
    "set_session_times": "admin.set_session_times",
    "truncate_before": "admin.truncate_before",
    "until_ready": "admin.until_ready",
    "watch_majority": "admin.watch_majority",
}
"""Methods of ``Client`` and ``SyncClient`` until 0.1.0: old name -> new name."""

GROUP_FUNCTIONS = {
    "delete_cursor": "cursors.delete",
    "delete_group": "groups.delete",
    "describe_cursor": "cursors.describe",
    "describe_group": "groups.describe",
    "list_cursors": "cursors.list",
    "list_groups": "groups.list",
    "reset_group": "groups.reset",
    "set_cursor": "cursors.set",
}
"""Functions of ``liftpy.client.group_admin`` until 0.1.0, whose first argument was the client: old name -> new name."""

COMMANDS = {
    "controllers rescue": "controllers force-recover",
    "node may-stop": "node can-stop",
    "page": "dashboard",
    "partition rebalance": "partition elect-preferred",
    "rights": "permissions",
    "settings session": "settings node-session",
    "stream truncate": "stream delete-records",
}
"""Commands: old name -> new name."""

OPTIONS = {
    "backup create --since": "--base",
    "backup drill --node-config": "--config",
    "backup prune --died": "--unfinished",
    "backup restore --node-config": "--config",
    "bench --out": "--output",
    "bench --seconds": "--duration",
    "consume --filter": "--subject",
    "controllers force-recover --as": "--new-controllers",
    "controllers force-recover --out": "--output",
    "controllers force-recover --yes": "--confirm",
    "dashboard --host": "--hostname",
    "dashboard --records": "--show-records",
    "dev --restart-after": "--restart-delay",
    "health --port": "--status-port",
    "log-level --for": "--duration",
    "node drain --timeout-s": "--timeout",
    "partition elect --yes-lose-data": "--confirm STREAM/PARTITION",
    "partition move --timeout-s": "--timeout",
    "partition move --to": "--node",
    "partition transfer --to": "--node",
    "permissions --replies": "--reply-prefix",
    "publish --ack": "--ack-policy",
    "rebalance --leaving": "--without",
    "rebalance --timeout-s": "--timeout",
    "service call --id": "--message-id",
    "service call --offset": "--show-offset",
    "service query --position": "--show-offset",
    "service run --dead-letter": "--dead-letter-stream",
    "service run --output": "--output-stream",
    "service run --partitions": "--partition",
    "service run --snapshot-every": "--snapshot-interval-records",
    "service run --tick-s": "--tick-interval",
    "service skip --dead-letter": "--dead-letter-stream",
    "settings default-quota --by-token": "--quota-by-token",
    "settings default-quota --bytes": "--quota-bytes",
    "settings default-quota --records": "--quota-records",
    "settings node-session --lease-s": "--lease",
    "settings node-session --session-s": "--session",
    "spark archive --every": "--trigger-interval",
    "spark archive --format": "--table-format",
    "spark audit --patience": "--timeout",
    "spark compact --anew": "--rebuild",
    "spark compact --format": "--table-format",
    "spark replay --partitions": "--partitioner",
    "spark replay --rate": "--records-per-s",
    "spark replay --to": "--until",
    "spark stats --every": "--bucket",
    "spark stats --patience": "--timeout",
    "stream add-partitions --to": "--partitions",
    "stream alter --max-held": "--min-isr-hold-timeout",
    "stream alter --replication-factor": "--replicas",
    "stream alter --timeout-s": "--timeout",
    "stream create --ack": "--ack-policy",
    "stream create --codec": "--compression",
    "stream create --commit": "--commit-policy",
    "stream create --max-held": "--min-isr-hold-timeout",
}
"""Options: (command, old name) -> new name."""


def accept_old_keywords(made: _Made) -> _Made:
    """Return ``made``, a function or class, changed so that it accepts old names of settings as keyword arguments.

    A call with an old name gives a DeprecationWarning.
    """
    call = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]  # of the class itself
    own = inspect.signature(call).parameters
    renamed = {old: new for old, new in SETTINGS.items() if new in own}

    @wraps(call)
    def with_new_names(*args: Any, **given: Any) -> Any:
        for old in given.keys() & renamed.keys():
            new = renamed[old]
            if new in given:
                raise TypeError(f"{made.__name__} got {old} and {new}. They are one setting: give {new} only.")
            warnings.warn(f"{made.__name__}: {old} is now called {new}", DeprecationWarning, stacklevel=2)
            given[new] = given.pop(old)
        return call(*args, **given)

    if not isinstance(made, type):
        return with_new_names  # type: ignore[return-value]  # it has the signature of ``made``
    made.__init__ = with_new_names  # type: ignore[misc]
    return made


def client_method(client: Any, name: str) -> Any:
    """Return the method of ``client`` that has replaced the method with the old ``name``, and warn with a DeprecationWarning.

    Raises AttributeError if ``name`` is not an old name.
    """
    new = CLIENT_METHODS.get(name)
    if new is None:
        raise AttributeError(f"{type(client).__name__!r} object has no attribute {name!r}")
    warnings.warn(f"client.{name} was renamed. Use client.{new}.", DeprecationWarning, stacklevel=3)
    return attrgetter(new)(client)


def info_attribute(info: Any, holder: str, name: str) -> Any:
    """Return the attribute ``name`` of the metadata behind a StreamInfo or PartitionInfo, and warn with a DeprecationWarning.

    ``holder``: attribute of ``info`` that has the metadata. Raises AttributeError if the metadata has no such attribute.
    """
    kind = type(info).__name__
    if name.startswith("_") or name == holder or not hasattr(nested := getattr(info, holder), name):
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")
    warnings.warn(
        f"{kind}.{name} is now {kind}.{holder}.{name}, which may change in any version.", DeprecationWarning, stacklevel=3
    )
    return getattr(nested, name)


def client_function(module: str, name: str) -> Any:
    """Return the function that has replaced the old function ``name`` of ``module``, and warn with a DeprecationWarning.

    Raises AttributeError if ``name`` is not an old name.
    """
    new = GROUP_FUNCTIONS.get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} was renamed. Use client.{new}.", DeprecationWarning, stacklevel=3)

    def call(client: Any, *arguments: Any, **named: Any) -> Any:
        return attrgetter(new)(client)(*arguments, **named)

    return call
