"""The settings of a stream on the command line: an option of ``stream create`` and an entry of ``stream show`` for each field of
``StreamConfig``. The table below is the only place; a test holds it against the fields."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import click

from liftpy.config import ALTERABLE, Codec, FlushPolicy, StreamConfig
from sidecar.cli.options import Duration, Size

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Setting:
    """How one field of StreamConfig is given and shown."""

    field: str
    flag: str
    key: str
    """In JSON and in what ``show`` prints; the unit is in the name."""
    help: str


SETTINGS = (
    Setting("ack_policy", "--ack-policy", "ack_policy", "When a publisher with a reply inbox is answered."),
    Setting("min_isr", "--min-isr", "min_isr", "In-sync replicas needed to commit.  [default: 2, or 1 with one replica]"),
    Setting("flush", "--flush", "flush", "When records reach the disk: always, interval:<ms>, none."),
    Setting(
        "commit_policy",
        "--commit-policy",
        "commit_policy",
        "What commits a record: all in-sync replicas or a majority (quorum).",
    ),
    Setting("retention_age_s", "--retention-age", "retention_age_s", "Delete records older than this, such as 7d; 0: keep."),
    Setting("retention_bytes", "--retention-bytes", "retention_bytes", "Keep about this many bytes a partition; 0: all."),
    Setting(
        "retention_records", "--retention-records", "retention_records", "Keep about this many records a partition; 0: all."
    ),
    Setting("max_per_subject", "--max-per-subject", "max_per_subject", "Keep the newest so many of each subject; 0: all."),
    Setting("compaction", "--compaction", "compaction", "Keep the newest record of each key, drop what it supersedes."),
    Setting("delete_retention_s", "--delete-retention", "delete_retention_s", "Compaction drops a tombstone after this time."),
    Setting("codec", "--compression", "compression", "Compression of what is stored and replicated."),
    Setting("segment_bytes", "--segment-bytes", "segment_bytes", "A new segment file begins at this many bytes."),
    Setting("segment_age_s", "--segment-age", "segment_age_s", "A new segment begins after this time; 0: by bytes alone."),
    Setting(
        "failover_standby",
        "--failover-standby",
        "failover_standby",
        "Followers listen too: nothing published is lost in a fail-over. It costs throughput.",
    ),
    Setting(
        "dedup_window_s",
        "--dedup-window",
        "dedup_window_s",
        "A Nats-Msg-Id is stored once within this time; 0: ids are ignored.",
    ),
    Setting("read_only", "--read-only", "read_only", "Refuse what is published; readers go on."),
    Setting(
        "max_message_bytes",
        "--max-message-bytes",
        "max_message_bytes",
        "Refuse a larger message (payload and headers); 0: what a log takes.",
    ),
    Setting(
        "optimistic_concurrency",
        "--optimistic-concurrency",
        "optimistic_concurrency",
        "Refuse a publish that does not name the offset it expects.",
    ),
    Setting(
        "min_isr_hold_timeout_s",
        "--min-isr-hold-timeout",
        "min_isr_hold_timeout_s",
        "Drop, and count, a publish without reply subject that is held longer than this while the ISR is below min_isr; 0: hold it.",
    ),
    Setting(
        "quota_records_per_s",
        "--quota-records",
        "quota_records_per_s",
        "Refuse what is published beyond so many records a second, of the whole stream; 0: no bound, both 0: the cluster's default.",
    ),
    Setting(
        "quota_bytes_per_s",
        "--quota-bytes",
        "quota_bytes_per_s",
        "The same in bytes a second, of payload and headers; 0: as above.",
    ),
    Setting(
        "quota_by_token",
        "--quota-by-token",
        "quota_by_token",
        "The quotas hold for each value of this token of the subject, counted from 1; 0: for all together.",
    ),
    Setting(
        "quota_exempt",
        "--quota-exempt",
        "quota_exempt",
        "Without a quota of its own it has none: the cluster's default (liftpy settings default-quota) does not hold.",
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
    """Return ``shown`` without defaults. ack_policy, min_isr, flush and commit_policy are always there."""
    every, ordinary = shown(config, replica_count), shown(_DEFAULT, replica_count)
    always = ("ack_policy", "min_isr", "flush", "commit_policy")
    return {key: value for key, value in every.items() if key in always or value != ordinary[key]}


def _option(setting: Setting, *, altered: bool = False) -> Callable[[Any], Any]:
    """``altered``: what is not given stays as it is."""
    default = getattr(_DEFAULT, setting.field)
    shows = "[default:" not in setting.help and not altered
    unit = _unit(setting.field)
    if unit is not None:
        text = None if altered else unit.text(default)
        return click.option(
            setting.flag,
            setting.field,
            type=unit(),
            default=text,
            show_default=shows,
            metavar=unit.name.upper(),
            help=setting.help,
        )
    words: dict[str, Any] = {"default": None if altered else _text(default), "show_default": shows, "help": setting.help}
    if isinstance(default, bool):
        negative = setting.flag.replace("--", "--no-", 1)
        return click.option(f"{setting.flag}/{negative}", setting.field, **words)
    if isinstance(default, Enum):
        kind: Any = click.Choice([_text(member) for member in type(default)])
    else:
        kind = {int: click.INT, float: click.FLOAT}.get(type(default), click.STRING)
    return click.option(setting.flag, setting.field, type=kind, **words)


def _unit(field: str) -> type[Duration] | type[Size] | None:
    """Return the type of an option that has a unit; None for another one."""
    if field.endswith(("_bytes", "_bytes_per_s")):
        return Size
    return Duration if field.endswith("_s") and not field.endswith("_per_s") else None


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
