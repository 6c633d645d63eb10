"""Options of the format ``liftpy`` for reading and writing: one table. Pure. The names follow Spark's Kafka source.

``TABLE`` has one row for each option. The parser, the checks, the error texts and the tables of ``docs/spark.md`` come
from this table. To add an option, add a row, and a field of the same name in ``SourceOptions``, ``SinkOptions`` or ``Access``.

Option names are case-insensitive. For an unknown option, the error names the closest known one. No secret is an option,
because Spark prints and stores plans: credentials are files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from liftpy.core.base.ids import check_name, check_published, is_internal, quote
from liftpy.core.base.strict_json import load_json
from liftpy.errors import ConfigError, NotFoundError
from liftpy.spark.offsets import EARLIEST, LATEST, OffsetSpec, parse_spec, parse_times, relative
from liftpy.spark.schema import check_columns, default_columns, did_you_mean

BATCH_QUERY, STREAMING_QUERY = "batch queries", "streaming queries"
BATCH_WRITE, STREAMING_WRITE = "batch writes", "streaming writes"
READS, WRITES = (BATCH_QUERY, STREAMING_QUERY), (BATCH_WRITE, STREAMING_WRITE)
MAX_PARTITIONS = 100_000
DEFAULT_TRIGGER_DELAY_S = 900.0
DEFAULT_TASK_BYTES = 1 << 30
_MAX_COUNT = 1 << 62
_LAST_MS = 1 << 43
"""Last millisecond that fits into 64 bits of nanoseconds: the year 2248."""
_LONGEST_NS = 30 * 86_400 * 10**9
_NS_PER_MS = 1_000_000
_MAX_DIGITS = 19
_SIZE = re.compile(r"([0-9]{1,19})([kmg]?)b?")
_SEED = re.compile(r"S[A-Z2-7]{57}")
"""Seed of an nkey."""
_SIZE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}
_ROUND_NUMBER = 1 << 40
"""Powers of two from this number on are shown as 2^N."""


def _number(value: float) -> str:
    whole = int(value)
    if whole >= _ROUND_NUMBER and whole & (whole - 1) == 0:
        return f"2^{whole.bit_length() - 1}"
    return f"{value:g}" if value < 1000 else f"{whole:,}"


@dataclass(frozen=True, slots=True)
class Kind:
    """Type of an option: how its text is parsed.

    Args:
        expects: Text about valid values, for errors and documentation. ``{low}``, ``{high}``, ``{unit}`` and
            ``{choices}``
            come from the option.
        parse: Function of the option and its text. It returns the value, or raises ConfigError or InvalidNameError.
    """

    expects: str
    parse: Callable[[Option, str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Row of the table of options.

    Args:
        name: Name, as users write it.
        kind: Type of the value.
        help: One sentence about the meaning.
        table: Table of ``docs/spark.md`` that has the option.
        takers: Queries and writes that accept the option.
        field: Field of the parsed options that has the value. Default '': the parser combines several options.
        default: Value if the option is not set. Default None.
        default_text: Default, as the documentation shows it. Default '': that of ``default``.
        low: Minimum, inclusive.
        high: Maximum, inclusive.
        unit: Unit of numbers.
        choices: Valid words and their meanings. The first one is the default.
        instead: Sentence about what to do where the option is not accepted.
    """

    name: str
    kind: Kind
    help: str
    table: str
    takers: tuple[str, ...] = READS
    field: str = ""
    default: Any = None
    default_text: str = ""
    low: float = 0
    high: float = 0
    unit: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    instead: str = "Remove it."

    @property
    def expected(self) -> str:
        """Text for users that says which values of the option are valid."""
        *firsts, last = (word for word, _ in self.choices) if self.choices else ("",)
        words = " or ".join(filter(None, (", ".join(firsts), last)))
        return self.kind.expects.format(low=_number(self.low), high=_number(self.high), unit=self.unit, choices=words)

    @property
    def shown_default(self) -> str:
        """Default, as the documentation shows it. '': there is none."""
        return self.default_text or (self.choices[0][0] if self.choices else "" if self.default is None else str(self.default))

    @property
    def meaning(self) -> str:
        """The help, the meaning of each valid word, and the queries or writes that accept the option if not all do."""
        words = " ".join(f"`{word}`: {meaning}." for word, meaning in self.choices if meaning)
        only = "" if len(self.takers) != 1 else f"Only for {self.takers[0]}."
        return " ".join(filter(None, (self.help, words, only)))

    @property
    def description(self) -> str:
        """Text for the documentation: the meaning, the valid values and the default of the option."""
        default = f" Default: {self.shown_default}." if self.shown_default else ""
        return f"{self.meaning} Use {self.expected}.{default}"

    def parse(self, text: str) -> Any:
        """Return the value of ``text``. Raises ConfigError or InvalidNameError that names the option."""
        return self.kind.parse(self, text)

    def invalid(self, text: str) -> ConfigError:
        return ConfigError(f"Invalid {self.name} = {quote(text)}. Use {self.expected}.")


def _text(_: Option, text: str) -> str:
    return text


def _file(option: Option, text: str) -> str:
    if "\n" in text or "-----BEGIN" in text or _SEED.fullmatch(text.strip()):
        raise ConfigError(
            f"The option {option.name} contains a secret, which every query plan would show. Write the secret into a file on "
            f"all hosts, and set {option.name} to the path of this file."
        )
    return text


def _parse_name(option: Option, text: str) -> str:
    return check_name(_check_is_no_url(text, f"option {option.name}", option.name), option.name)


def _check_is_no_url(text: str, what: str, named: str = "stream") -> str:
    """Return ``text``. Raise ConfigError if it is a URL. The error has no part of the URL, which may have a password.

    ``named``: what the option names.
    """
    if "://" in text or "@" in text:
        raise ConfigError(
            f"The {what} is a URL, but it names a {named}. Use the name of the {named}, and set the option nats to the URL."
        )
    return text


def _names(option: Option, text: str) -> tuple[str, ...]:
    names = _check_is_no_url(text, f"option {option.name}").split(",")
    return tuple(sorted({check_name(name.strip(), f"option {option.name}: stream") for name in names}))


def _stream(option: Option, text: str) -> tuple[str, ...]:
    return (check_name(_check_is_no_url(text, f"option {option.name}"), f"option {option.name}: stream"),)


def _target(option: Option, text: str) -> str:
    return check_published(_check_is_no_url(text, f"option {option.name}"))


def _urls(option: Option, text: str) -> str:
    if "@" in text:  # it has a user in front, and no other place
        raise ConfigError(
            f"The option {option.name} contains a user or password, which every query plan would show. Use nats.creds, "
            "nats.nkeySeed, or nats.user with nats.passwordFile."
        )
    return text


def _pattern(option: Option, text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{option.name} = {text!r} is not a valid regular expression: {error}. Correct it.") from None
    return text or "$^"


def _parse_assignment(option: Option, text: str) -> tuple[tuple[str, int], ...]:
    try:
        document = load_json(text)
        pairs = {(check_name(stream, "assign: stream"), p) for stream, own in document.items() for p in own}
    except (ValueError, AttributeError, TypeError):
        pairs = set()
    if not pairs or not all(type(partition) is int and partition >= 0 for _, partition in pairs):
        raise option.invalid(text)
    return tuple(sorted(pairs))


def _start(option: Option, text: str) -> OffsetSpec:
    return parse_spec(text, option.name, words=("earliest", "latest"), specials=(EARLIEST, LATEST))


def _end(option: Option, text: str) -> OffsetSpec:
    return parse_spec(text, option.name, words=("latest",), specials=(LATEST,))


def _moment(option: Option, text: str) -> OffsetSpec:
    return OffsetSpec(timestamp_ns=_whole_number(option, text) * _NS_PER_MS)


def _moments(option: Option, text: str) -> OffsetSpec:
    return parse_times(text, option.name, must_match=False)


def _whole_number(option: Option, text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not is_number or not option.low <= int(text) <= option.high:
        raise option.invalid(text)
    return int(text)


def _size(option: Option, text: str) -> int:
    match = _SIZE.fullmatch(text.strip().lower())
    size_bytes = int(match[1]) << _SIZE_SHIFTS[match[2]] if match else 0
    if not option.low <= size_bytes <= option.high:
        raise option.invalid(text)
    return size_bytes


def _seconds(option: Option, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise option.invalid(text) from None
    if not option.low <= seconds <= option.high:
        raise option.invalid(text)
    return seconds


def _duration(option: Option, text: str) -> float:
    time_spec = relative(f"-{text.strip()}")
    if time_spec is None or not time_spec.back_ns or time_spec.back_ns > _LONGEST_NS:
        raise option.invalid(text)
    return time_spec.back_ns / 1e9


def _choice(option: Option, text: str) -> str:
    if text.lower() not in (word for word, _ in option.choices):
        raise option.invalid(text)
    return text.lower()


def _flag(option: Option, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise option.invalid(text)
    return text.lower() == "true"


def _columns(_: Option, text: str) -> tuple[str, ...]:
    return check_columns([name.strip() for name in text.split(",")])


def _isolation(option: Option, text: str) -> str:
    if text.lower() == "uncommitted":
        raise ConfigError(
            "isolation = 'uncommitted' is not supported in Spark. Spark repeats tasks, and uncommitted records "
            "may disappear. Use a Client with ReadOptions(isolation='uncommitted')."
        )
    return _choice(option, text)


def _write_id(option: Option, text: str) -> str:
    size_bytes = len(text.encode(errors="replace"))
    if not option.low <= size_bytes <= option.high or not text.isprintable():
        raise option.invalid(text)
    return text


URLS = Kind("URLs, separated by commas", _urls)
FILE = Kind("a path", _file)
TEXT = Kind("text", _text)
NAME = Kind("a name", _parse_name)
STREAM = Kind("a name", _stream)
TARGET = Kind("a name", _target)
NAMES = Kind("names, separated by commas", _names)
PATTERN = Kind("a regular expression", _pattern)
ASSIGNMENT = Kind('JSON such as {{"orders": [0, 2]}}', _parse_assignment)
START = Kind('earliest, latest, -10m, -1000 or JSON such as {{"orders": {{"0": 23, "1": -2}}}}', _start)
END = Kind('latest, -10m, -1000 or JSON such as {{"orders": {{"0": 23, "1": -1}}}}', _end)
TIME = Kind("a whole number of {unit} from {low} to {high}", _moment)
TIMES = Kind('JSON such as {{"orders": {{"0": 1767225600000}}}}, in {unit}', _moments)
COUNT = Kind("a whole number from {low} to {high}", _whole_number)
BYTES = Kind("a whole number of bytes from {low} to {high}", _whole_number)
SIZE = Kind("bytes such as 268435456 or 256m, from {low} to {high}", _size)
SECONDS = Kind("seconds from {low} to {high}", _seconds)
DURATION = Kind("a duration such as 30s, 15m or 1h, at most 30d", _duration)
FLAG = Kind("true or false", _flag)
CHOICE = Kind("{choices}", _choice)
ISOLATION = Kind("{choices}", _isolation)
COLUMN_NAMES = Kind("names of columns, separated by commas", _columns)
WRITE_ID = Kind("printable text of {low} to {high} bytes", _write_id)

_SINCE_1970 = "ms since 1970"
_USE_END = "Use endingOffsets in a batch query."
_END_BY_TRIGGER = "End a streaming query with its trigger."
_ALL = (*READS, *WRITES)

TABLE = (
    Option(name="stream", kind=STREAM, table="streams", help="Name of one stream, which `load(NAME)` sets too."),
    Option(name="subscribe", kind=NAMES, table="streams", help="Names of several streams."),
    Option(
        name="subscribePattern", kind=PATTERN, table="streams",
        help="Pattern for whole stream names, also for streams that are created later. It matches internal streams (`_...`) only "
        "if it begins with `_`.",
    ),
    Option(name="assign", kind=ASSIGNMENT, table="streams", help="Partitions to read."),
    Option(
        name="startingOffsets", kind=START, table="range", field="starting",
        default_text="earliest (batch), latest (streaming)",
        help="First offset, inclusive.",
    ),
    Option(
        name="endingOffsets", kind=END, table="range", takers=(BATCH_QUERY,), field="ending", default_text="latest",
        help="End offset, exclusive.", instead=_END_BY_TRIGGER,
    ),
    Option(
        name="startingTimestamp", kind=TIME, table="range", unit=_SINCE_1970, high=_LAST_MS, field="starting",
        help="The query starts at the first record that was stamped then or later, and ignores startingOffsets.",
    ),
    Option(
        name="startingOffsetsByTimestamp", kind=TIMES, table="range", unit=_SINCE_1970, field="starting",
        help="Start time of each partition, if startingTimestamp is not set.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy", kind=CHOICE, table="range",
        choices=(("latest", "start at the next record"), ("error", "fail, as Kafka's source does")),
        help="Start of a partition without a record that is new enough.",
    ),
    Option(
        name="endingTimestamp", kind=TIME, table="range", takers=(BATCH_QUERY,), unit=_SINCE_1970, high=_LAST_MS, field="ending",
        help="The query ends before the first record that was stamped then or later, and ignores endingOffsets.",
        instead=_END_BY_TRIGGER,
    ),
    Option(
        name="endingOffsetsByTimestamp", kind=TIMES, table="range", takers=(BATCH_QUERY,), unit=_SINCE_1970, field="ending",
        help="End time of each partition, if endingTimestamp is not set.", instead=_END_BY_TRIGGER,
    ),
    Option(
        name="minPartitions", kind=COUNT, table="size", field="min_partitions", default=0, low=1, high=MAX_PARTITIONS,
        default_text="one for each partition",
        help="Minimum number of tasks, which are divided between partitions by bytes and rounded up.",
    ),
    Option(
        name="maxRecordsPerPartition", kind=COUNT, table="size", field="max_records_per_partition", default=0, low=1,
        high=_MAX_COUNT, default_text="no limit", help="Maximum number of records of a task.",
    ),
    Option(
        name="maxOffsetsPerTrigger", kind=COUNT, table="size", takers=(STREAMING_QUERY,), field="max_records_per_trigger",
        default=0, low=1, high=_MAX_COUNT, default_text="no limit", instead=_USE_END,
        help="Maximum number of records of a micro-batch, divided between partitions in proportion to their unread records.",
    ),
    Option(
        name="maxBytesPerTrigger", kind=SIZE, table="size", takers=(STREAMING_QUERY,), field="max_bytes_per_trigger",
        default=0, low=1, high=1 << 60, unit="bytes", default_text="no limit", instead=_USE_END,
        help="Maximum size of a micro-batch as stored, divided evenly, but at least one batch of records.",
    ),
    Option(
        name="minOffsetsPerTrigger", kind=COUNT, table="size", takers=(STREAMING_QUERY,), field="min_records_per_trigger",
        default=0, low=1, high=_MAX_COUNT, default_text="no minimum", instead=_USE_END,
        help="Minimum number of records of a micro-batch, except for the first one and for `availableNow`.",
    ),
    Option(
        name="maxTriggerDelay", kind=DURATION, table="size", field="max_trigger_delay_s", default=DEFAULT_TRIGGER_DELAY_S,
        default_text="15m", unit="s", help="Maximum time to wait for minOffsetsPerTrigger (batch queries ignore it).",
    ),
    Option(
        name="cursor", kind=NAME, table="other", takers=(STREAMING_QUERY,), field="cursor", default="", default_text="none",
        help="Name of a cursor of the cluster that shows other tools the progress of the query.",
        instead="Remove it, or use startingOffsets.",
    ),
    Option(
        name="onRecreated", kind=CHOICE, table="loss", default_text="error, or earliest with failOnDataLoss = false",
        choices=(
            ("error", "the streaming query fails"),
            ("earliest", "the query reads the new stream from its beginning and logs the number of lost records"),
        ),
        help="Action if a stream was deleted and created again (batch queries ignore it).",
    ),
    Option(
        name="failOnDataLoss", kind=FLAG, table="loss", field="fail_on_data_loss", default=True, default_text="true",
        help="Records that retention has deleted are an error (true), or a warning before the rest is read (false).",
    ),
    Option(
        name="includeHeaders", kind=FLAG, table="columns", default=False, default_text="false",
        help="Adds the column `headers` of the type `array<struct<key string, value binary>>`.",
    ),
    Option(
        name="topicColumn", kind=FLAG, table="columns", default=False, default_text="false",
        help="Adds the column `topic` with the name of the stream, for code that was written for Kafka.",
    ),
    Option(
        name="columns", kind=COLUMN_NAMES, table="columns", default_text="all but headers and topic",
        help="Columns to read: Spark does not prune columns of a Python source, so this saves most of the work.",
    ),
    Option(
        name="isolation", kind=ISOLATION, table="other", help="Records to read.",
        choices=(("committed", "committed records only, because uncommitted ones may vanish before Spark repeats a task"),),
    ),
    Option(
        name="readFrom", kind=CHOICE, table="other",
        choices=(
            ("nearest", "segment files on the host of the task, otherwise any in-sync replica over NATS"),
            ("files", "as nearest, with a warning for each task without files"),
            ("leader", "only the leader, over NATS"),
        ),
        help="Replica that serves a task.",
    ),
    Option(
        name="patience", kind=SECONDS, table="other", field="patience_s", default=30.0, default_text="30", low=0.1, high=3600,
        unit="s", help="Time for which a task retries while NATS or all replicas do not answer.",
    ),
    Option(
        name="stream", kind=TARGET, table="write", takers=WRITES, field="stream", default="", default_text="column `stream`",
        help="Name of the stream to write to, which `save(NAME)` and `start(NAME)` set too.",
    ),
    Option(
        name="order", kind=CHOICE, table="write", takers=WRITES,
        choices=(
            ("content", "each task sorts its rows by key, value and headers"),
            ("plan", "the rows keep the order of the plan, for plans without a shuffle"),
        ),
        help="Order of the rows of a task. A repeated micro-batch must have an equal order.",
    ),
    Option(
        name="nullValues", kind=CHOICE, table="write", takers=WRITES,
        choices=(("error", "the task fails"), ("tombstone", "the row deletes its key in a compacted stream")),
        help="Meaning of a null in the column `value`.",
    ),
    Option(
        name="writeId", kind=WRITE_ID, table="write", takers=(BATCH_WRITE,), field="write_id", default="", low=1, high=100,
        default_text="none", help="Name of this write, so that a repeated write with the name stores nothing twice.",
        instead="Remove it, because a streaming query has an id in its checkpoint.",
    ),
    Option(
        name="batchId", kind=COUNT, table="write", takers=(BATCH_WRITE,), field="batch_id", default=0, low=0, high=_MAX_COUNT,
        help="Number of this write among the writes with its writeId, which increases, such as the batch id of `foreachBatch`.",
        instead="Remove it, because Spark numbers the micro-batches of a streaming query.",
    ),
    Option(
        name="maxTaskBytes", kind=BYTES, table="write", takers=WRITES, field="max_task_bytes", default=DEFAULT_TASK_BYTES,
        default_text="1 GiB", low=1, high=1 << 40, unit="bytes",
        help="Maximum size of the rows of one task of an exactly-once write, which the task holds in memory.",
    ),
    Option(
        name="patience", kind=SECONDS, table="write", takers=WRITES, field="patience_s", default=120.0, default_text="120",
        low=0.1, high=3600, unit="s", help="Time for which a task retries while NATS or a leader does not answer.",
    ),
    Option(
        name="nats", kind=URLS, table="connection", takers=_ALL, field="servers", default="nats://127.0.0.1:4222",
        help="NATS servers, without user and password.",
    ),
    Option(
        name="namespace", kind=NAME, table="connection", takers=_ALL, field="namespace", default="liftpy",
        help="Namespace of the cluster.",
    ),
    *(
        Option(name=name, kind=kind, table="connection", takers=_ALL, field=field, default="", default_text=default, help=help)
        for name, kind, field, default, help in (
            ("nats.creds", FILE, "creds_file", "none", "File with a NATS JWT and its seed."),
            ("nats.nkeySeed", FILE, "nkey_seed_file", "none", "File with an nkey seed."),
            ("nats.user", TEXT, "user", "none", "User name, which needs nats.passwordFile."),
            ("nats.passwordFile", FILE, "password_file", "none", "File with the password of nats.user."),
            ("nats.tokenFile", FILE, "token_file", "none", "File with a token."),
            ("nats.tlsCa", FILE, "tls_ca_file", "those of the system", "File with the CA certificates to trust."),
            ("nats.tlsCert", FILE, "tls_cert_file", "none", "File with the client certificate."),
            ("nats.tlsKey", FILE, "tls_key_file", "none", "File with the key of nats.tlsCert."),
            ("nats.inboxPrefix", TEXT, "inbox_prefix", "_INBOX", "Prefix of the subjects for answers that the permissions allow."),
        )
    ),
)  # fmt: skip
"""All options. If two options have the same name, they have different takers."""


def options_of(takers: Iterable[str]) -> dict[str, Option]:
    """Return the options that at least one of ``takers`` (kinds of queries and writes) accepts, by name."""
    wanted = set(takers)
    return {option.name: option for option in TABLE if wanted & set(option.takers)}


_SOURCE, _SINK = options_of(READS), options_of(WRITES)
OPTIONS = {name: option.description for name, option in _SOURCE.items()}
"""Option for reading -> description."""
SINK_OPTIONS = {name: option.description for name, option in _SINK.items()}
"""Option for writing -> description."""
CREDENTIALS = {option.field: name for name, option in _SOURCE.items() if name.startswith("nats.")}
"""Field of ``Access`` -> option that sets it."""
_KINDS_OF_CREDENTIALS = ("creds_file", "nkey_seed_file", "user", "token_file")

_PATH = "path"
"""Option in which Spark passes the argument of ``load(NAME)``, ``save(NAME)`` and ``start(NAME)``."""
SPARK_OPTIONS = ("checkpointlocation", "queryname", _PATH, "outputmode")
"""Options that Spark adds itself to those of a sink."""
KAFKA = {
    "kafka.bootstrap.servers": "nats",
    "kafka.security.protocol": "nats.tlsCa (and nats.tlsCert, nats.tlsKey)",
    "kafka.ssl.truststore.location": "nats.tlsCa",
    "kafka.ssl.keystore.location": "nats.tlsCert and nats.tlsKey",
    "kafka.sasl.jaas.config": "nats.creds, nats.nkeySeed, or nats.user with nats.passwordFile",
    "kafka.sasl.mechanism": "nats.creds, nats.nkeySeed, or nats.user with nats.passwordFile",
    "kafkaconsumer.polltimeoutms": "patience",
    "fetchoffset.numretries": "patience",
    "fetchoffset.retryintervalms": "patience",
    "topic": "stream",
}
"""Option of Kafka's source (lower case) -> option here. Other ``kafka.*`` options have no equivalent."""
NO_TABLES = (
    "Catalog tables (CREATE TABLE ... USING liftpy, saveAsTable) cannot be read or inserted into: Spark does not pass their options. "
    "To read, use CREATE TEMPORARY VIEW orders USING liftpy OPTIONS (nats '...', stream 'orders'). To write, use save or start."
)
_OF_TABLES = ("provider", "owner", "external", "is_managed_location", "location", "comment")
"""Properties that Spark's catalog gives each table. Spark passes them to a source as if they were options."""


class UserOptions:
    """Texts of the options that a user set, by their known names.

    Args:
        given: Spark's option map.
        known: Options that this source or sink accepts.
        ignored: Options of Spark, in lower case.

    Raises:
        ConfigError: An option is unknown, or the options are those of a catalog table.
    """

    def __init__(self, given: Mapping[str, str], known: Mapping[str, Option], ignored: Iterable[str] = ()) -> None:
        if any(name.lower() in _OF_TABLES or name.lower().startswith("option.") for name in given):
            raise ConfigError(NO_TABLES)
        self._known = known
        self._texts = {_spelled(name, known): text for name, text in given.items() if name.lower() not in ignored}
        path = next((text for name, text in given.items() if name.lower() == _PATH), "")
        _check_is_no_url(path, "argument of load, save or start")
        if path and self._texts.setdefault("stream", path) != path:
            raise ConfigError(
                f"The path {path!r} and the option stream = {self._texts['stream']!r} name two streams. Remove one of them."
            )

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def value(self, name: str) -> Any:
        """Return the value of an option, or its default. Raises ConfigError or InvalidNameError."""
        option = self._known[name]
        if name in self._texts:
            return option.parse(self._texts[name])
        return option.choices[0][0] if option.choices else option.default

    def fields(self, *tables: str) -> dict[str, Any]:
        """Return the value of each option that sets one field of the parsed options, by field.

        ``tables``: tables of ``docs/spark.md`` whose options are returned.
        """
        own = (one for one in self._known.values() if one.field and one.table in tables)
        return {one.field: self.value(one.name) for one in own}


def _spelled(name: str, known: Mapping[str, Option]) -> str:
    lower, reads = name.lower(), known is _SOURCE
    spelled = next((one for one in known if one.lower() == lower), None)
    if spelled is not None:
        return spelled
    if lower == "atomic" and not reads:
        raise ConfigError(
            "The option atomic does not exist. Each row is visible once, as soon as it is committed, before its "
            "micro-batch ends. Remove the option."
        )
    if lower in KAFKA:
        raise ConfigError(f"{name} is an option of Kafka's {'source' if reads else 'sink'}. Use {KAFKA[lower]}.")
    names = f"Known options: {', '.join(known)}."
    if lower.startswith("kafka."):
        raise ConfigError(f"{quote(name)} is an option of Kafka's clients and has no meaning here. {names}")
    wrong = ""
    if lower in (one.name.lower() for one in TABLE):
        wrong = f". It is an option for {'writing, not for reading' if reads else 'reading, not for writing'}"
    raise ConfigError(f"Unknown option {quote(name)}{wrong}{did_you_mean(name, known) or '.'} {names}")


def replace_start(options: Mapping[str, str], starts: str) -> dict[str, str]:
    """Return ``options`` with ``starts`` as the option startingOffsets, and without the other options that set the start.

    These options take precedence over startingOffsets.
    """
    others = {one.name.lower() for one in _SOURCE.values() if one.table == "range" and one.name.startswith("starting")}
    return {**{name: text for name, text in options.items() if name.lower() not in others}, "startingOffsets": starts}


def replace_streams(options: Mapping[str, str], partitions: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Return ``options`` with ``partitions`` as the option assign, and without the other options that name streams."""
    others = {_PATH, *(one.name.lower() for one in _SOURCE.values() if one.table == "streams")}
    assigned: dict[str, list[int]] = {}
    for stream, partition in sorted(partitions):
        assigned.setdefault(stream, []).append(partition)
    return {**{name: text for name, text in options.items() if name.lower() not in others}, "assign": json.dumps(assigned)}


def _check_query_kind(parsed: object, taker: str, known: Mapping[str, Option]) -> None:
    others: dict[str, list[Option]] = {}
    for option in known.values():
        if option.field and taker not in option.takers:
            others.setdefault(option.field, []).append(option)
    for field, options in others.items():
        if getattr(parsed, field) != options[0].default:
            *firsts, last = (option.name for option in options)
            names = f"Options {', '.join(firsts)} and {last} are" if firsts else f"Option {last} is"
            raise ConfigError(f"{names} for {options[0].takers[0]} only. {options[0].instead}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach the cluster. It contains no secrets, because it is part of Spark plans.

    Args:
        servers: NATS URLs, comma separated. Default ``nats://127.0.0.1:4222``.
        namespace: Namespace of the cluster. Default ``liftpy``.
        creds_file: File with a NATS JWT and its seed. Default '': not used.
        nkey_seed_file: File with an nkey seed. Default '': not used.
        user: User name. Needs ``password_file``. Default '': not used.
        password_file: File with the password of ``user``. Default '': not used.
        token_file: File with a token. Default '': not used.
        tls_ca_file: File with the CA certificates to trust. Default '': those of the system.
        tls_cert_file: File with the client certificate. Default '': not used.
        tls_key_file: File with the key of ``tls_cert_file``. Default '': not used.
        inbox_prefix: Prefix of the subjects for answers. Default '': ``_INBOX``.
    """

    servers: str = "nats://127.0.0.1:4222"
    namespace: str = "liftpy"
    creds_file: str = ""
    nkey_seed_file: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    inbox_prefix: str = ""


def access_of(given: Mapping[str, str]) -> Access:
    """Return how to reach the cluster.

    Args:
        given: Options such as ``nats`` and ``nats.creds``. Other options of the source are ignored.

    Raises:
        ConfigError: An option is unknown or invalid. Or one of two options is set that belong together. Or several kinds of
            credentials are set.
    """
    return _access(UserOptions(given, _SOURCE))


def _access(options: UserOptions) -> Access:
    access = Access(**options.fields("connection"))
    if bool(access.user) != bool(access.password_file):
        raise ConfigError("nats.user and nats.passwordFile belong together. Set both, or neither.")
    if bool(access.tls_cert_file) != bool(access.tls_key_file):
        raise ConfigError("nats.tlsCert and nats.tlsKey belong together. Set both, or neither.")
    kinds = [CREDENTIALS[field] for field in _KINDS_OF_CREDENTIALS if getattr(access, field)]
    if len(kinds) > 1:
        raise ConfigError(f"Several kinds of credentials are set: {', '.join(kinds)}. Set only one of them.")
    return access


def check_stream_names(streams: object) -> None:
    """Raise ConfigError if ``streams`` is a text. Each of its characters would be a name."""
    if isinstance(streams, (str, bytes)):
        raise ConfigError(f"Invalid streams = {quote(str(streams))}. Pass a tuple of names, such as ({quote(str(streams))},).")


@dataclass(frozen=True, slots=True)
class Selection:
    """Streams and partitions to read.

    Args:
        streams: Names of streams. Default (): use ``pattern``.
        pattern: Regular expression that the whole name must match. Default '': use ``streams``. It selects internal
            streams only if it begins with ``_``.
        partitions: (stream, partition) pairs. Default (): all partitions.

    Raises:
        ConfigError: Neither streams nor a pattern are named, or ``streams`` is a text.
    """

    streams: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        check_stream_names(self.streams)
        if not (self.streams or self.pattern):
            raise ConfigError('The selection names no stream. Set streams, such as ("orders",), or pattern, such as ".*".')

    def among(self, present: Iterable[str], *, internal: bool = False) -> list[str]:
        """Return the selected ones of the streams that exist.

        A pattern selects internal streams (names that begin with ``_``) only if the pattern itself begins with ``_``.

        Args:
            present: Names of all streams.
            internal: If True, every pattern selects internal streams. Default False.

        Raises:
            NotFoundError: A named stream does not exist. The text names the closest one.
        """
        there = sorted(present)
        if self.pattern:
            internal = internal or self.pattern.startswith("_")
            return [name for name in there if (internal or not is_internal(name)) and re.fullmatch(self.pattern, name)]
        for name in self.streams:
            if name not in there:
                raise NotFoundError(
                    f"Stream {name!r} does not exist{did_you_mean(name, there) or '.'} Check `liftpy stream list`."
                )
        return list(self.streams)

    def takes(self, stream: str, partition: int) -> bool:
        """Return whether a partition of a selected stream is selected.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
        """
        return not self.partitions or (stream, partition) in self.partitions


def _selection(options: UserOptions) -> Selection:
    ways = [name for name, option in _SOURCE.items() if option.table == "streams" and name in options]
    if len(ways) != 1:
        text = "Set exactly one of the options stream, subscribe, subscribePattern and assign"
        raise ConfigError(f"{text}." if ways else f"{text}. {NO_TABLES}")
    value = options.value(ways[0])
    if ways == ["subscribePattern"]:
        return Selection(pattern=value)
    if ways == ["assign"]:
        return Selection(tuple(sorted({stream for stream, _ in value})), partitions=value)
    return Selection(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options of one source. A number of 0 means that the option is not set.

    Attributes:
        access: How to reach the cluster.
        wanted: Streams and partitions to read.
        starting: Start of the query. None: earliest in a batch query, latest in a streaming query.
        ending: End of a batch query. None: latest.
        min_partitions: Minimum number of tasks.
        max_records_per_partition: Maximum number of records of a task.
        max_records_per_trigger: Maximum number of records of a micro-batch.
        max_bytes_per_trigger: Maximum stored size of a micro-batch, in bytes.
        min_records_per_trigger: Number of records for which a micro-batch waits.
        max_trigger_delay_s: Maximum time of this wait, in seconds.
        fail_on_data_loss: True if deleted records are an error.
        recreated_earliest: True if the option ``onRecreated`` is ``earliest``.
        columns: Names of the columns, in order.
        cursor: Name of the cursor that gets the position of the query. '': none.
        read_from_leader: True if only the leader is asked.
        expects_files: True if a task without local files logs a warning.
        patience_s: Maximum time without an answer, in seconds.
    """

    access: Access
    wanted: Selection
    starting: OffsetSpec | None = None
    ending: OffsetSpec | None = None
    min_partitions: int = 0
    max_records_per_partition: int = 0
    max_records_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_records_per_trigger: int = 0
    max_trigger_delay_s: float = DEFAULT_TRIGGER_DELAY_S
    fail_on_data_loss: bool = True
    recreated_earliest: bool = False
    columns: tuple[str, ...] = default_columns(include_headers=False, topic=False)
    cursor: str = ""
    read_from_leader: bool = False
    expects_files: bool = False
    patience_s: float = 30.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return the checked options of a query. ``given``: Spark's option map.

        Raises:
            ConfigError: An option is unknown, missing or invalid, or two options contradict each other.
            InvalidNameError: An option contains an invalid name.
        """
        options = UserOptions(given, _SOURCE, (_PATH,))
        options.value("isolation")
        read_from = options.value("readFrom")
        return cls(
            access=_access(options),
            wanted=_selection(options),
            starting=_position(options, "starting"),
            ending=_position(options, "ending"),
            recreated_earliest=options.value("onRecreated") == "earliest",
            columns=_chosen_columns(options),
            read_from_leader=read_from == "leader",
            expects_files=read_from == "files",
            **options.fields("size", "loss", "other"),
        )

    def check_batch(self) -> None:
        """Raise ConfigError if an option is set that batch queries do not accept."""
        if self.starting is not None and (self.starting.word == "latest" or LATEST in dict(self.starting.offsets).values()):
            raise ConfigError(
                "startingOffsets cannot be latest (or -1) in a batch query, because it would read nothing. Use "
                "earliest or offsets."
            )
        _check_query_kind(self, BATCH_QUERY, _SOURCE)

    def check_streaming(self) -> None:
        """Raise ConfigError if an option is set that streaming queries do not accept."""
        _check_query_kind(self, STREAMING_QUERY, _SOURCE)
        if 0 < self.max_records_per_trigger < self.min_records_per_trigger:
            raise ConfigError(
                "minOffsetsPerTrigger is more than maxOffsetsPerTrigger. Decrease the first, or increase the second."
            )

    @property
    def accept_recreated(self) -> bool:
        """True if a streaming query continues with a stream that was deleted and created again."""
        return self.recreated_earliest or not self.fail_on_data_loss


def _position(options: UserOptions, which: str) -> OffsetSpec | None:
    """Return the start or the end of a query. None: no option sets it. ``which``: "starting" or "ending".

    Options take effect in this order: one time for all partitions, times of partitions, offsets.
    """
    must_match = which == "starting" and options.value("startingOffsetsByTimestampStrategy") == "error"
    for name in (f"{which}Timestamp", f"{which}OffsetsByTimestamp"):
        if name in options:
            timed: OffsetSpec = options.value(name)
            return replace(timed, must_match=must_match)
    spec: OffsetSpec | None = options.value(f"{which}Offsets")
    return spec


def _chosen_columns(options: UserOptions) -> tuple[str, ...]:
    include_headers, topic = options.value("includeHeaders"), options.value("topicColumn")
    if "columns" not in options:
        return default_columns(include_headers=include_headers, topic=topic)
    columns: tuple[str, ...] = options.value("columns")
    for option, column, is_set in (("includeHeaders", "headers", include_headers), ("topicColumn", "topic", topic)):
        if is_set and column not in columns:
            raise ConfigError(
                f"{option} is true, but the option columns does not contain {column}. Remove one of the two options."
            )
    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of one sink.

    Attributes:
        access: How to reach the cluster.
        stream: Name of the stream to write to. '': the column ``stream`` names it.
        write_id: Name of an exactly-once batch write. '': none.
        batch_id: Number of the write among those with its name.
        by_content: True if each task sorts its rows.
        tombstones: True if a null value is a tombstone.
        max_task_bytes: Maximum size of the rows of a task, in bytes.
        patience_s: Maximum time without an answer, in seconds.
    """

    access: Access
    stream: str = ""
    write_id: str = ""
    batch_id: int = 0
    by_content: bool = True
    tombstones: bool = False
    max_task_bytes: int = DEFAULT_TASK_BYTES
    patience_s: float = 120.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Return the checked options of a write. ``given``: Spark's option map.

        Raises:
            ConfigError: An option is unknown or invalid.
            InvalidNameError: The stream has an invalid name.
        """
        options = UserOptions(given, _SINK, SPARK_OPTIONS)
        if "batchId" in options and "writeId" not in options:
            raise ConfigError("The option batchId needs the option writeId. Set writeId to a name of the query.")
        return cls(
            access=_access(options),
            by_content=options.value("order") == "content",
            tombstones=options.value("nullValues") == "tombstone",
            **options.fields("write"),
        )

    def check_streaming(self) -> None:
        """Raise ConfigError if an option is set that only batch writes accept."""
        _check_query_kind(self, STREAMING_WRITE, _SINK)
