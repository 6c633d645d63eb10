"""Settings of a stream on the command line: one option and one JSON key per field of StreamConfig."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import click

from liftpy.config import ALTERABLE, Codec, FlushPolicy, StreamConfig

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Setting:
    """Option and JSON key of one field of StreamConfig."""

    field: str
    flag: str
    key: str
    """Key in JSON and in the output of ``show``. It ends with the unit."""
    help: str


SETTINGS = (
    Setting(
        "ack_policy",
        "--ack",
        "ack",
        "When a publish with a reply subject is acked: all (committed), leader (flushed on the leader) or none.",
    ),
    Setting(
        "min_isr", "--min-isr", "min_isr", "In-sync replicas needed to commit a record.  [default: 2, or 1 with one replica]"
    ),
    Setting(
        "flush",
        "--flush",
        "flush",
        "When records are flushed to disk: always (before the commit), interval:<ms> (1 to 60000) or none.",
    ),
    Setting(
        "commit_policy",
        "--commit",
        "commit",
        "Replicas that must have flushed a record: isr (all in-sync replicas) or quorum (a majority).",
    ),
    Setting("retention_age_s", "--retention-age", "retention_age_s", "Age at which records are deleted, in seconds. 0: never."),
    Setting(
        "retention_bytes",
        "--retention-bytes",
        "retention_bytes",
        "Size of a partition beyond which the oldest records are deleted, in bytes. 0: no limit.",
    ),
    Setting(
        "retention_records",
        "--retention-records",
        "retention_records",
        "Number of records in a partition beyond which the oldest are deleted. 0: no limit.",
    ),
    Setting(
        "max_per_subject", "--max-per-subject", "max_per_subject", "Number of newest records to keep per subject. 0: keep all."
    ),
    Setting("compaction", "--compaction", "compaction", "Keep only the newest record of each key."),
    Setting(
        "delete_retention_s",
        "--delete-retention",
        "delete_retention_s",
        "Time until compaction deletes a tombstone, in seconds.",
    ),
    Setting("codec", "--codec", "codec", "Compression of stored and replicated batches."),
    Setting("segment_bytes", "--segment-bytes", "segment_bytes", "Size at which a new segment file begins, in bytes."),
    Setting(
        "segment_age_s", "--segment-age", "segment_age_s", "Age at which a new segment file begins, in seconds. 0: no limit."
    ),
    Setting(
        "failover_standby",
        "--failover-standby",
        "failover_standby",
        "Followers also buffer published messages, so that a failover loses none. It lowers the throughput.",
    ),
    Setting(
        "dedup_window_s",
        "--dedup-window",
        "dedup_window_s",
        "Time in which a Nats-Msg-Id is stored once, in seconds of log time. 0: ids are ignored.",
    ),
    Setting("read_only", "--read-only", "read_only", "Reject all publishes. Reading goes on."),
    Setting(
        "max_message_bytes",
        "--max-message-bytes",
        "max_message_bytes",
        "Maximum size of payload and headers of a message, in bytes. 0: no limit of the stream.",
    ),
    Setting(
        "optimistic_concurrency",
        "--optimistic-concurrency",
        "optimistic_concurrency",
        "Reject publishes that do not name the offset that they expect.",
    ),
    Setting(
        "min_isr_hold_timeout_s",
        "--max-held",
        "min_isr_hold_timeout_s",
        "Time to hold publishes without reply subject while too few replicas are in sync, in seconds. 0: no limit.",
    ),
    Setting(
        "quota_records_per_s",
        "--quota-records",
        "quota_records_per_s",
        "Records per second over all partitions. The leader rejects more. 0 in both quotas: the cluster's default quota.",
    ),
    Setting(
        "quota_bytes_per_s",
        "--quota-bytes",
        "quota_bytes_per_s",
        "Bytes per second over all partitions, payload and headers. The leader rejects more. 0: no limit.",
    ),
    Setting(
        "quota_by_token",
        "--quota-by-token",
        "quota_by_token",
        "Number of the subject token (from 1) whose values have separate quotas. 0: one quota for the stream.",
    ),
    Setting(
        "quota_exempt",
        "--quota-exempt",
        "quota_exempt",
        "The cluster's default quota (liftpy settings default-quota) does not apply to this stream.",
    ),
)
_DEFAULT = StreamConfig()


def setting_options(function: F) -> F:
    """Add an option for each setting; the command gets ``config: StreamConfig``."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        given = {setting.field: kwargs.pop(setting.field) for setting in SETTINGS}
        return function(*args, config=config_from(given), **kwargs)

    for setting in reversed(SETTINGS):
        command = _option(setting)(command)
    return command  # type: ignore[return-value]


def alterable_options(function: F) -> F:
    """Add an option for each setting that may change later; the command gets ``settings``: those that were given, by field."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        given = {field: kwargs.pop(field) for field in ALTERABLE}
        settings = {field: _value(getattr(_DEFAULT, field), text) for field, text in given.items() if text is not None}
        return function(*args, settings=settings, **kwargs)

    for setting in reversed(SETTINGS):
        if setting.field in ALTERABLE:
            command = _option(setting, altered=True)(command)
    return command  # type: ignore[return-value]


def config_from(given: dict[str, Any]) -> StreamConfig:
    """The configuration of what the options gave, by field; raise ConfigError naming what is wrong."""
    return StreamConfig(**{name: _value(getattr(_DEFAULT, name), text) for name, text in given.items()})


def shown(config: StreamConfig, replica_count: int) -> dict[str, Any]:
    """Every setting by its key, as JSON has it: what holds for partitions of ``replica_count`` replicas."""
    values = {setting.key: _text(getattr(config, setting.field)) for setting in SETTINGS}
    return {**values, "min_isr": config.effective_min_isr(replica_count)}


def changed(config: StreamConfig, replica_count: int) -> dict[str, Any]:
    """``shown`` without what is as it comes, for people: ack, min.isr, flush and commit are always there."""
    every, ordinary = shown(config, replica_count), shown(_DEFAULT, replica_count)
    always = ("ack", "min_isr", "flush", "commit")
    return {key: value for key, value in every.items() if key in always or value != ordinary[key]}


def _option(setting: Setting, *, altered: bool = False) -> Callable[[Any], Any]:
    """``altered``: what is not given stays as it is."""
    default = getattr(_DEFAULT, setting.field)
    shows = "[default:" not in setting.help and not altered
    words: dict[str, Any] = {"default": None if altered else _text(default), "show_default": shows, "help": setting.help}
    if isinstance(default, bool):
        negative = setting.flag.replace("--", "--no-", 1)
        return click.option(f"{setting.flag}/{negative}", setting.field, **words)
    if isinstance(default, Enum):
        kind: Any = click.Choice([_text(member) for member in type(default)])
    else:
        kind = {int: click.INT, float: click.FLOAT}.get(type(default), click.STRING)
    return click.option(setting.flag, setting.field, type=kind, **words)


def _value(default: Any, given: Any) -> Any:
    if isinstance(default, FlushPolicy):
        return FlushPolicy.parse(given)
    if isinstance(default, Codec):
        return Codec[given.upper()]
    return type(default)(given)


def _text(value: Any) -> Any:
    """As the command line and JSON have it."""
    if isinstance(value, Codec):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, FlushPolicy) else value
