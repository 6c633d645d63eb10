"""Settings of a stream on the command line: one option and one JSON key per field of StreamConfig, and placement options."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import click

from liftpy.client.placement_plans import PlacementOptions, PlacementPlan, assignment_from_json, tally_rows
from liftpy.config import ALTERABLE, Codec, FlushMode, FlushPolicy, StreamConfig
from liftpy.core.metadata.image import INSUFFICIENT_NODES
from liftpy.core.metadata.placement import MANUAL, POLICIES
from liftpy.errors import ConfigError
from sidecar.cli.options import NOTHING_DONE, Duration, Size
from sidecar.cli.output import print_json, print_table

F = TypeVar("F", bound=Callable[..., Any])
MAX_FILE_BYTES = 1 << 20


class FlushType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Flush policy of a stream on the command line: ``always``, ``interval:100ms`` or ``none``. The interval needs a unit."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> FlushPolicy:
        try:
            return value if isinstance(value, FlushPolicy) else self.policy(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)

    @staticmethod
    def policy(text: str) -> FlushPolicy:
        if re.fullmatch(r"interval:[0-9.]*", text):
            raise ConfigError(f"flush policy {text!r}: the interval needs a unit. Use for example interval:100ms.")
        return FlushPolicy.parse(text)

    @staticmethod
    def text(policy: FlushPolicy) -> str:
        return f"{policy}ms" if policy.mode is FlushMode.INTERVAL else str(policy)


@dataclass(frozen=True, slots=True)
class Setting:
    """Command-line option (``flag``) and JSON key of one field of StreamConfig."""

    field: str
    flag: str
    key: str
    """Key in JSON and in the output of ``show``. It ends with the unit."""
    help: str


_HELP = {
    "ack_policy": "When to send the ack: all (after all in-sync replicas stored the record), leader (after the leader "
    "stored it) or none.",
    "min_isr": "Minimum number of in-sync replicas to commit a record.  [default: 2, or 1 with one replica]",
    "flush": "When to flush records to disk: always (before the ack), interval:DURATION (1ms to 60s) or none.",
    "commit_policy": "Replicas that must store a record before it is committed: all in-sync ones (isr) or a majority (quorum).",
    "retention_age_s": "Delete records older than this. 0 means no limit.",
    "retention_bytes": "Keep about this many bytes of each partition. 0 means no limit.",
    "retention_records": "Keep about this many records of each partition. 0 means no limit.",
    "max_per_subject": "Keep this many of the newest records of each subject. 0 means no limit.",
    "compaction": "Keep only the newest record of each key.",
    "delete_retention_s": "Delete tombstones older than this during compaction.",
    "codec": "Compression of stored and replicated records.",
    "segment_bytes": "Start a new segment file at this size.",
    "segment_age_s": "Start a new segment file after this time. 0 means no time limit.",
    "failover_standby": "Let followers receive and buffer publishes, so that a failover loses no publish. Reduces the "
    "throughput.",
    "dedup_window_s": "Window of deduplication by Nats-Msg-Id of log time. 0 disables deduplication.",
    "read_only": "Reject publishes. Consumers can still read.",
    "max_message_bytes": "Reject larger messages (payload and headers). 0 means the limit of the log format.",
    "optimistic_concurrency": "Reject publishes without an expected offset.",
    "min_isr_hold_timeout_s": "Drop a publish without reply subject after this time, if the ISR is too small to commit it. 0 means "
    "never.",
    "quota_records_per_s": "Maximum publish rate of the whole stream, in records per second. 0 means no limit. If both quotas "
    "are 0, the default quota of the cluster applies.",
    "quota_bytes_per_s": "Maximum publish rate of the whole stream, in bytes per second (payload and headers). 0 means no "
    "limit.",
    "quota_by_token": "Apply the quotas separately to each value of this subject token, counted from 1. 0 means one quota "
    "for all subjects.",
    "quota_exempt": "Exempt this stream from the default quota of the cluster (liftpy settings default-quota).",
}
"""Field of StreamConfig -> help text of its option."""
_KEYS = {"codec": "compression"}
"""Field of StreamConfig -> its name on the command line, where the names differ."""


def _setting(field: str, text: str) -> Setting:
    """Return the option and the JSON key of a field of StreamConfig. ``text``: help text.

    The name of the option does not include a unit of seconds.
    """
    key = _KEYS.get(field, field)
    return Setting(field, "--" + key.removesuffix("_s").removesuffix("_per").replace("_", "-"), key, text)


SETTINGS = tuple(_setting(field, text) for field, text in _HELP.items())
_DEFAULT = StreamConfig()


def setting_options(function: F) -> F:
    """Add an option for each setting of a stream to a command. The command gets ``config: StreamConfig``."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        option_values = {setting.field: kwargs.pop(setting.field) for setting in SETTINGS}
        return function(*args, config=config_from(option_values), **kwargs)

    for setting in reversed(SETTINGS):
        command = _option(setting)(command)
    return command  # type: ignore[return-value]


def alterable_options(function: F) -> F:
    """Add an option for each setting that ``alter`` can change. The command gets ``settings``, the values of given options by field."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        option_values = {field: kwargs.pop(field) for field in ALTERABLE}
        settings = {field: _value(getattr(_DEFAULT, field), text) for field, text in option_values.items() if text is not None}
        return function(*args, settings=settings, **kwargs)

    for setting in reversed(SETTINGS):
        if setting.field in ALTERABLE:
            command = _option(setting, altered=True)(command)
    return command  # type: ignore[return-value]


def config_from(option_values: dict[str, Any]) -> StreamConfig:
    """Return the stream configuration with the option values ``option_values``, by field. Raises ConfigError if a value is wrong."""
    with naming_options():
        return StreamConfig(**{name: _value(getattr(_DEFAULT, name), text) for name, text in option_values.items()})


@contextmanager
def naming_options() -> Iterator[None]:
    """In ConfigErrors of this block, replace the name of a setting at the beginning by the name of its option."""
    try:
        yield
    except ConfigError as error:
        name, blank, rest = str(error).partition(" ")
        flag = next((setting.flag for setting in SETTINGS if setting.field == name), "")
        if flag and flag not in rest:
            raise ConfigError(f"{flag}{blank}{rest}") from None
        raise


def settings_as_json(config: StreamConfig, replica_count: int) -> dict[str, Any]:
    """Return all settings by their JSON keys. ``replica_count``: number of replicas that defaults depend on."""
    values = {setting.key: _text(getattr(config, setting.field)) for setting in SETTINGS}
    return {**values, "min_isr": config.effective_min_isr(replica_count)}


def settings_to_show(config: StreamConfig, replica_count: int) -> dict[str, Any]:
    """Return the settings that people should see: those without default values, and always ack, min_isr, flush and commit."""
    every, ordinary = settings_as_json(config, replica_count), settings_as_json(_DEFAULT, replica_count)
    always = ("ack_policy", "min_isr", "flush", "commit_policy")
    return {key: value for key, value in every.items() if key in always or value != ordinary[key]}


def _option(setting: Setting, *, altered: bool = False) -> Callable[[Any], Any]:
    """Return the click option of a setting. ``altered``: True if a missing option means no change, for ``alter``."""
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
    if isinstance(default, FlushPolicy):
        kind: Any = FlushType()
        words["metavar"] = "POLICY"
    elif isinstance(default, Enum):
        kind = click.Choice([_text(member) for member in type(default)])
    else:
        kind = {int: click.INT, float: click.FLOAT}.get(type(default), click.STRING)
    return click.option(setting.flag, setting.field, type=kind, **words)


def _unit(field: str) -> type[Duration] | type[Size] | None:
    if field.endswith(("_bytes", "_bytes_per_s")):
        return Size
    return Duration if field.endswith("_s") and not field.endswith("_per_s") else None


def _value(default: Any, text: Any) -> Any:
    if isinstance(default, FlushPolicy):
        return text if isinstance(text, FlushPolicy) else FlushType.policy(text)
    if isinstance(default, Codec):
        return Codec[text.upper()]
    return type(default)(text)


def _text(value: Any) -> Any:
    """Return the value of a setting in the form that the command line and JSON use."""
    if isinstance(value, Codec):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    return FlushType.text(value) if isinstance(value, FlushPolicy) else value


# ---- placement -------------------------------------------------------------------------------------------------------


def placement_options(function: F) -> F:
    """Add --placement, --assignment, --allow-offline and --dry-run.

    The command gets the arguments ``placement`` (PlacementOptions) and ``dry_run``.
    """

    @functools.wraps(function)
    def command(*args: Any, policy: str | None, assignment: Path | None, allow_offline: bool, **kwargs: Any) -> Any:
        if policy is not None and assignment is not None:
            raise click.UsageError("--placement and --assignment cannot be combined. Remove one of them.")
        if allow_offline and assignment is None:
            raise click.UsageError(
                "--allow-offline needs --assignment. A placement policy never chooses a node that is not live."
            )
        manual = () if assignment is None else assignment_from_json(_read_settings_file(assignment))
        if assignment is not None and not manual:
            raise click.BadParameter("The file assigns no partitions. Add at least one.", param_hint="--assignment")
        options = PlacementOptions(policy=MANUAL if manual else policy or "", assignment=manual, allow_offline=allow_offline)
        return function(*args, placement=options, **kwargs)

    for option in (
        click.option(
            "--dry-run", is_flag=True, help="Print the assignment, and the load of each node and rack. Change nothing."
        ),
        click.option("--allow-offline", is_flag=True, help="Allow nodes that are not live in --assignment."),
        click.option(
            "--assignment",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help='JSON file with a manual assignment, preferred leader first: [{"id": 0, "replicas": ["n1", "n2"]}, ...].',
        ),
        click.option(
            "--placement", "policy", type=click.Choice(list(POLICIES)), help="Strategy that assigns replicas to nodes."
        ),
    ):
        command = option(command)
    return command  # type: ignore[return-value]


def _read_settings_file(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise click.BadParameter(f"{path} has more than {MAX_FILE_BYTES} bytes. Use a smaller file.", param_hint="--assignment")
    return text


def show_plan(plan: PlacementPlan, stream: str, as_json: bool) -> None:
    """Print where the replicas of a stream would be placed."""
    if as_json:
        print_json(plan_json(plan, stream))
        return
    if plan.waits:
        click.echo(f"stream {stream} would wait, {INSUFFICIENT_NODES}: {plan.waits}")
        return
    for note in plan.notes:
        click.echo(f"note: {note}")
    rows = [
        (str(plan.first_partition + number), replicas[0], " ".join(replicas)) for number, replicas in enumerate(plan.replicas)
    ]
    print_table(("partition", "leader", "replicas"), rows, folds=("replicas",), title=stream)
    print_table(("node", "leaders", "replicas"), tally_rows(plan.by_node()), title="nodes")
    if plan.by_rack():
        print_table(("rack", "leaders", "replicas"), tally_rows(plan.by_rack()), title="racks")
    click.echo(NOTHING_DONE)


def plan_json(plan: PlacementPlan, stream: str) -> dict[str, Any]:
    """Return a placement plan as the JSON object of ``--json``. ``partitions`` can be used as an assignment."""
    return {
        "stream": stream,
        "dry_run": True,
        "waits": plan.waits,
        "notes": list(plan.notes),
        "partitions": [
            {"id": plan.first_partition + number, "replicas": list(replicas)} for number, replicas in enumerate(plan.replicas)
        ],
        "nodes": {node: asdict(tally) for node, tally in plan.by_node().items()},
        "racks": {rack: asdict(tally) for rack, tally in plan.by_rack().items()},
    }
