"""Options of the format ``liftpy`` for reading and writing. Pure. The names follow Spark's Kafka source.

Option names are case-insensitive. For an unknown option, the error names the closest known one. No secret is an option,
because Spark prints and stores plans: credentials are files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from liftpy.core.base.ids import check_name, check_published, shown
from liftpy.core.base.strict_json import load_json
from liftpy.errors import ConfigError, NotFoundError
from liftpy.spark.offsets import EARLIEST, LATEST, OffsetSpec, parse_spec, parse_times, relative
from liftpy.spark.schema import check_columns, default_columns, did_you_mean

OPTIONS = {
    "nats": "NATS servers, comma separated (default nats://127.0.0.1:4222)",
    "namespace": "namespace of the cluster (default liftpy)",
    "stream": "name of the stream to read, or load(NAME)",
    "subscribe": "names of several streams, comma separated (instead of stream)",
    "subscribePattern": "regular expression for whole stream names, also of streams that are created later (instead of stream)",
    "assign": 'partitions to read, as JSON: {"orders": [0, 2]} (instead of stream)',
    "startingOffsets": "first offset, inclusive: earliest (batch default), latest (streaming default), -10m (time "
    "before now), -1000 (records of each partition before its end), or JSON per partition with -2 for earliest and -1 for latest",
    "endingOffsets": "batch only, end offset, exclusive: latest (default), -10m, -1000, or JSON per partition with -1 for latest",
    "startingTimestamp": "ms since 1970: start at the first record with this or a later leader timestamp (overrides startingOffsets)",
    "startingOffsetsByTimestamp": "start per partition, as JSON of ms since 1970 (startingTimestamp overrides it)",
    "startingOffsetsByTimestampStrategy": "if no record is new enough: latest (default: start at the next record) or error",
    "endingTimestamp": "batch only, ms since 1970: end before the first record with this or a later time (overrides endingOffsets)",
    "endingOffsetsByTimestamp": "batch only, end per partition, as JSON of ms since 1970",
    "minPartitions": "minimum number of Spark partitions: large ranges are split by bytes, between batches (default: not split)",
    "maxRecordsPerPartition": "maximum number of records in a Spark partition (default: no limit)",
    "maxOffsetsPerTrigger": "streaming only: maximum number of records in a micro-batch, over all partitions (default: no limit)",
    "maxBytesPerTrigger": "streaming only: maximum stored size of a micro-batch, such as 256m; combines with maxOffsetsPerTrigger",
    "minOffsetsPerTrigger": "streaming only: number of records to wait for before a micro-batch, at most maxTriggerDelay",
    "maxTriggerDelay": "streaming only: maximum wait for minOffsetsPerTrigger, such as 15m (default), 30s or 1h",
    "cursor": "streaming only: name of a cursor of the cluster that gets the position of the query (liftpy cursor show NAME)",
    "onRecreated": "streaming only, if a stream was deleted and created again: error (default), or earliest to read the new one and "
    "log the loss; failOnDataLoss=false implies earliest",
    "failOnDataLoss": "if retention deleted records: true (default) raises an error, false logs a warning and reads the rest",
    "includeHeaders": "true: add a column headers, array<struct<key string, value binary>> (default false)",
    "topicColumn": "true: add a column topic with the name of the stream, for code that was written for Kafka (default false)",
    "columns": "columns to read, comma separated (default: all); Spark does not prune columns of a Python source, so this saves work",
    "isolation": "committed, the only value: uncommitted records may vanish, so a task that runs again would read other rows",
    "readFrom": "nearest (default): segment files on this host if a node offers them (local_file_reads), else any in-sync one; files: "
    "the same, with a warning for each task without files; leader: only the leader, over NATS",
    "patience": "seconds to retry while NATS or all replicas do not answer (default 30)",
    "nats.creds": "file with a NATS JWT and its seed",
    "nats.nkeySeed": "file with an nkey seed",
    "nats.user": "user name; needs nats.passwordFile",
    "nats.passwordFile": "file with the password of nats.user",
    "nats.tokenFile": "file with a token",
    "nats.tlsCa": "file with the CA certificates to trust",
    "nats.tlsCert": "file with the client certificate",
    "nats.tlsKey": "file with the key of nats.tlsCert",
    "nats.inboxPrefix": "prefix of the subjects for answers to this user (default _INBOX)",
}
"""Option -> description."""

_SPELLING = {name.lower(): name for name in OPTIONS}
_PATH = "path"
"""Option in which Spark passes the argument of ``load(NAME)``."""
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
_FILES = {
    "nats.creds": "creds_file",
    "nats.nkeySeed": "nkey_seed_file",
    "nats.user": "user",
    "nats.passwordFile": "password_file",
    "nats.tokenFile": "token_file",
    "nats.tlsCa": "tls_ca_file",
    "nats.tlsCert": "tls_cert_file",
    "nats.tlsKey": "tls_key_file",
    "nats.inboxPrefix": "inbox_prefix",
}
NO_TABLES = (
    "Catalog tables (CREATE TABLE ... USING liftpy, saveAsTable) cannot be read or inserted into: Spark does not pass their options. "
    "To read, use CREATE TEMPORARY VIEW orders USING liftpy OPTIONS (nats '...', stream 'orders'). To write, use save or start."
)
_OF_TABLES = ("provider", "owner", "external", "is_managed_location", "location", "comment")
"""Properties that Spark's catalog gives each table, and a source as if they were options."""
_READ_FROM = ("nearest", "files", "leader")
_SIZE = re.compile(r"([0-9]{1,19})([kmg]?)b?")
_SIZE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}
_NS_PER_MS = 1_000_000
_MAX_DIGITS = 19
_LAST_MS = 1 << 43
"""Last millisecond that fits into 64 bits of nanoseconds: the year 2248."""
_LONGEST_NS = 30 * 86_400 * 10**9
MAX_PARTITIONS = 100_000
DEFAULT_TRIGGER_DELAY_S = 900.0


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


_DEFAULT = Access()


@dataclass(frozen=True, slots=True)
class Selection:
    """Streams and partitions to read.

    Args:
        streams: Names of streams. Default (): use ``pattern``.
        pattern: Regular expression that the whole name must match. Default '': use ``streams``.
        partitions: (stream, partition) pairs. Default (): all partitions.
    """

    streams: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[tuple[str, int], ...] = ()

    def among(self, present: Iterable[str]) -> list[str]:
        """Return the selected ones of the streams that exist.

        Args:
            present: Names of all streams.

        Raises:
            NotFoundError: A named stream does not exist. The text names the closest one.
        """
        there = sorted(present)
        if self.pattern:
            return [name for name in there if re.fullmatch(self.pattern, name)]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Checked options of one source. ``starting`` None: earliest in a batch query, latest in a streaming query.

    A number of 0 means: not set. ``recreated_earliest``: option ``onRecreated``.
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
        """Read Spark's option map. Raise ConfigError if an option is unknown, missing, given twice or out of range."""
        _check_no_table(given)
        values = {_known(name): value for name, value in given.items() if name.lower() != _PATH}
        if path := next((value for name, value in given.items() if name.lower() == _PATH), ""):
            if values.get("stream", path) != path:
                raise ConfigError(
                    f"load({path!r}) and the option stream = {values['stream']!r} name two streams. Remove one of them."
                )
            values["stream"] = path
        _check_isolation(values)
        return cls(
            access=access_of(values),
            wanted=_selection(values),
            starting=_position(values, "starting", words=("earliest", "latest"), specials=(EARLIEST, LATEST)),
            ending=_position(values, "ending", words=("latest",), specials=(LATEST,)),
            min_partitions=whole_number_of(values, "minPartitions", MAX_PARTITIONS),
            max_records_per_partition=whole_number_of(values, "maxRecordsPerPartition", 1 << 62),
            max_records_per_trigger=whole_number_of(values, "maxOffsetsPerTrigger", 1 << 62),
            max_bytes_per_trigger=size_of(values, "maxBytesPerTrigger"),
            min_records_per_trigger=whole_number_of(values, "minOffsetsPerTrigger", 1 << 62),
            max_trigger_delay_s=_duration(values, "maxTriggerDelay", DEFAULT_TRIGGER_DELAY_S),
            recreated_earliest=choice_of(values, "onRecreated", ("error", "earliest")) == "earliest",
            fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
            columns=_columns(values),
            cursor=check_name(values["cursor"], "cursor") if "cursor" in values else "",
            read_from_leader=choice_of(values, "readFrom", _READ_FROM) == "leader",
            expects_files=choice_of(values, "readFrom", _READ_FROM) == "files",
            patience_s=seconds_of(values, "patience", 30.0),
        )

    def check_batch(self) -> None:
        """Raise ConfigError if an option is only for streaming queries."""
        if self.starting is not None and (self.starting.word == "latest" or LATEST in dict(self.starting.offsets).values()):
            raise ConfigError(
                "startingOffsets cannot be latest (or -1) in a batch query, because it would read nothing. Use "
                "earliest or offsets."
            )
        if self.cursor:
            raise ConfigError("The option cursor is for streaming queries only. Remove it, or use startingOffsets.")
        if self.max_records_per_trigger or self.min_records_per_trigger or self.max_bytes_per_trigger:
            raise ConfigError(
                "maxOffsetsPerTrigger, minOffsetsPerTrigger and maxBytesPerTrigger are for streaming queries only. "
                "Use endingOffsets in a batch query."
            )

    def check_streaming(self) -> None:
        """Raise ConfigError if an option is only for batch queries."""
        if self.ending is not None:
            raise ConfigError(
                "endingOffsets and endingTimestamp are for batch queries only. End a streaming query with its trigger."
            )
        if 0 < self.max_records_per_trigger < self.min_records_per_trigger:
            raise ConfigError(
                "minOffsetsPerTrigger is more than maxOffsetsPerTrigger. Decrease the first, or increase the second."
            )

    @property
    def take_recreated(self) -> bool:
        """True if a streaming query continues with a stream that was deleted and created again."""
        return self.recreated_earliest or not self.fail_on_data_loss


def _known(name: str) -> str:
    spelled = _SPELLING.get(name.lower())
    if spelled is None:
        if name.lower() in KAFKA:
            raise ConfigError(f"{name} is an option of Kafka's source. Use {KAFKA[name.lower()]}.")
        if name.lower().startswith("kafka."):
            raise ConfigError(
                f"{name} is an option of Kafka's clients and has no meaning here. Known options: {', '.join(OPTIONS)}."
            )
        raise ConfigError(
            f"Unknown option {shown(name)}{did_you_mean(name, OPTIONS) or '.'} Known options: {', '.join(OPTIONS)}."
        )
    return spelled


def _check_no_table(names: Iterable[str]) -> None:
    """Raise ConfigError if the options are those of a table of Spark's catalog. It may have properties with any name."""
    if any(name.lower() in _OF_TABLES or name.lower().startswith("option.") for name in names):
        raise ConfigError(NO_TABLES)


def access_of(values: Mapping[str, str]) -> Access:
    """Return how to reach the cluster. Raises ConfigError."""
    access = Access(
        servers=values.get("nats", _DEFAULT.servers),
        namespace=check_name(values.get("namespace", _DEFAULT.namespace), "namespace"),
        **{field: values[option] for option, field in _FILES.items() if option in values},
    )
    for url in access.servers.split(","):
        if "@" in url:  # whatever else is in it: it has a user in front, and no other place
            raise ConfigError(
                "The option nats contains a user or password, which every query plan would show. Use nats.creds, "
                "nats.nkey, or nats.user with nats.passwordFile."
            )
    if bool(access.user) != bool(access.password_file):
        raise ConfigError("nats.user and nats.passwordFile belong together. Set both, or neither.")
    return access


def _selection(values: Mapping[str, str]) -> Selection:
    given = [name for name in ("stream", "subscribe", "subscribePattern", "assign") if name in values]
    if len(given) != 1:
        text = "Set exactly one of the options stream, subscribe, subscribePattern and assign"
        raise ConfigError(text if given else f"{text}. {NO_TABLES}")
    text = values[given[0]]
    if given == ["subscribePattern"]:
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(f"subscribePattern = {text!r} is not a valid regular expression: {error}. Correct it.") from None
        return Selection(pattern=text or "$^")
    if given == ["assign"]:
        pairs = _assigned(text)
        return Selection(tuple(sorted({stream for stream, _ in pairs})), partitions=pairs)
    names = [text] if given == ["stream"] else [name.strip() for name in text.split(",")]
    return Selection(tuple(sorted({check_name(name, f"option {given[0]}: stream") for name in names})))


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    try:
        document = load_json(text)
        pairs = {(check_name(stream, "assign: stream"), p) for stream, own in document.items() for p in own}
    except (ValueError, AttributeError, TypeError):
        pairs = set()
    if not pairs or not all(type(partition) is int and partition >= 0 for _, partition in pairs):
        raise ConfigError(f'Invalid assign = {text!r}. Use JSON such as {{"orders": [0, 2]}}.')
    return tuple(sorted(pairs))


def _check_isolation(values: Mapping[str, str]) -> None:
    """Raise ConfigError unless the isolation is committed."""
    if choice_of(values, "isolation", ("committed", "uncommitted")) == "uncommitted":
        raise ConfigError(
            "isolation = 'uncommitted' is not supported in Spark. Spark repeats tasks, and uncommitted records "
            "may disappear. Use a Client with ReadOptions(isolation='uncommitted')."
        )


def _position(values: Mapping[str, str], which: str, *, words: tuple[str, ...], specials: tuple[int, ...]) -> OffsetSpec | None:
    strategy = f"{which}OffsetsByTimestampStrategy"
    must_match = strategy in _SPELLING.values() and choice_of(values, strategy, ("latest", "error")) == "error"
    if f"{which}Timestamp" in values:
        since_ns = whole_number_of(values, f"{which}Timestamp", _LAST_MS, lowest=0) * _NS_PER_MS
        return OffsetSpec(timestamp_ns=since_ns, must_match=must_match)
    if f"{which}OffsetsByTimestamp" in values:
        return parse_times(values[f"{which}OffsetsByTimestamp"], f"{which}OffsetsByTimestamp", must_match=must_match)
    text = values.get(f"{which}Offsets")
    return None if text is None else parse_spec(text, f"{which}Offsets", words=words, specials=specials)


def _columns(values: Mapping[str, str]) -> tuple[str, ...]:
    include_headers = _flag(values, "includeHeaders", default=False)
    topic = _flag(values, "topicColumn", default=False)
    if "columns" not in values:
        return default_columns(include_headers=include_headers, topic=topic)
    columns = check_columns([name.strip() for name in values["columns"].split(",")])
    if include_headers and "headers" not in columns:
        raise ConfigError(
            "includeHeaders is true, but the option columns does not contain headers. Remove one of the two options."
        )
    if topic and "topic" not in columns:
        raise ConfigError("topicColumn is true, but the option columns does not contain topic. Remove one of the two options.")
    return columns


def whole_number_of(values: Mapping[str, str], name: str, highest: int, lowest: int = 1) -> int:
    """Return a number from ``lowest`` to ``highest``, 0 if it is missing."""
    text = values.get(name, "")
    if name not in values:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and lowest <= int(text) <= highest):
        raise ConfigError(f"Invalid {name} = {shown(text)}. Use a whole number from {lowest} to {highest}.")
    return int(text)


def size_of(values: Mapping[str, str], name: str) -> int:
    """Return a size from 1 to 2^60 bytes. k, m and g are powers of 1024, as in Spark. 0: not given."""
    if name not in values:
        return 0
    found = _SIZE.fullmatch(values[name].strip().lower())
    size_bytes = int(found[1]) << _SIZE_SHIFTS[found[2]] if found else 0
    if not 1 <= size_bytes <= 1 << 60:
        raise ConfigError(f"Invalid {name} = {values[name]!r}. Use bytes such as 268435456 or 256m, from 1 to 2^60.")
    return size_bytes


def seconds_of(values: Mapping[str, str], name: str, default: float) -> float:
    """Return seconds from 0.1 to 3600."""
    text = values.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 3600:
        raise ConfigError(f"Invalid {name} = {text!r}. Use seconds from 0.1 to 3600.")
    return seconds


def _duration(values: Mapping[str, str], name: str, default_s: float) -> float:
    text = values.get(name)
    if text is None:
        return default_s
    found = relative(f"-{text.strip()}")
    if found is None or not found.back_ns or found.back_ns > _LONGEST_NS:
        raise ConfigError(f"Invalid {name} = {text!r}. Use a duration such as 30s, 15m or 1h, at most 30d.")
    return found.back_ns / 1e9


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    return choice_of(values, name, ("true", "false"), "true" if default else "false") == "true"


def choice_of(values: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str = "") -> str:
    """Return one of ``allowed``. Default: ``default``, or the first."""
    value = values.get(name, default or allowed[0]).lower()
    if value not in allowed:
        raise ConfigError(f"Invalid {name} = {values[name]!r}. Use {' or '.join(allowed)}.")
    return value


# Options of the format ``liftpy`` for writing.


SINK_OPTIONS = {
    "stream": "name of the stream to append to, or save(NAME) or start(NAME); without it, the column stream names it for each row",
    "order": "content (default): each task sorts its rows, so that a repeated micro-batch is equal after a shuffle; plan: the order "
    "of the plan, for plans without a shuffle",
    "nullValues": "error (default), or tombstone: a null value deletes its key in a compacted stream",
    "writeId": "batch only: name of this write, 1 to 100 bytes; a second run under the same name writes nothing twice",
    "maxTaskBytes": "maximum memory for the rows of one task of an exactly-once write, in bytes (default 1073741824)",
    "patience": "seconds to retry while NATS or a leader does not answer (default 120)",
    **{name: what for name, what in OPTIONS.items() if name.split(".")[0] in ("nats", "namespace")},
}
"""Option -> description."""

SPARKS_OWN = ("checkpointlocation", "queryname", "path", "outputmode")
"""Options that Spark adds itself. ``path`` is the name in ``save(NAME)`` and ``start(NAME)``."""
_SINK_SPELLING = {name.lower(): name for name in SINK_OPTIONS}
_MAX_ID_BYTES = 100
DEFAULT_TASK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of one sink. ``stream`` '': the column ``stream`` names it. ``write_id`` '': none."""

    access: Access
    stream: str = ""
    write_id: str = ""
    by_content: bool = True
    tombstones: bool = False
    max_task_bytes: int = DEFAULT_TASK_BYTES
    patience_s: float = 120.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read Spark's option map. Raise ConfigError if an option is unknown, given twice or out of range."""
        _check_no_table(given)
        values = {_known_sink_option(name): value for name, value in given.items() if name.lower() not in SPARKS_OWN}
        path = next((value for name, value in given.items() if name.lower() == "path"), "")
        if path and values.setdefault("stream", path) != path:
            raise ConfigError(
                f"save or start({path!r}) and the option stream = {values['stream']!r} name two streams. Remove one of them."
            )
        write_id = values.get("writeId", "")
        if "writeId" in values and not 0 < len(write_id.encode(errors="replace")) <= _MAX_ID_BYTES:
            raise ConfigError(f"Invalid writeId. Use 1 to {_MAX_ID_BYTES} bytes.")
        if not write_id.isprintable():
            raise ConfigError(f"Invalid writeId = {shown(write_id)}. Use printable characters.")
        return cls(
            access=access_of(values),
            stream=check_published(values["stream"]) if "stream" in values else "",
            write_id=write_id,
            by_content=choice_of(values, "order", ("content", "plan")) == "content",
            tombstones=choice_of(values, "nullValues", ("error", "tombstone")) == "tombstone",
            max_task_bytes=whole_number_of(values, "maxTaskBytes", 1 << 40) or DEFAULT_TASK_BYTES,
            patience_s=seconds_of(values, "patience", 120.0),
        )

    def check_streaming(self) -> None:
        """Raise ConfigError if an option is only for batch writes."""
        if self.write_id:
            raise ConfigError(
                "writeId is for batch writes only. A streaming query has an id in its checkpoint. Remove writeId."
            )


def _known_sink_option(name: str) -> str:
    spelled = _SINK_SPELLING.get(name.lower())
    if spelled is not None:
        return spelled
    if name.lower() == "atomic":
        raise ConfigError(
            "The option atomic does not exist. Each row is visible once, as soon as it is committed, before its "
            "micro-batch ends. Remove the option."
        )
    if name.lower() in KAFKA:
        raise ConfigError(f"{name} is an option of Kafka's sink. Use {KAFKA[name.lower()]}.")
    near = did_you_mean(name, SINK_OPTIONS)
    whose = ". It is an option for reading, not for writing" if name.lower() in map(str.lower, OPTIONS) else ""
    raise ConfigError(f"Unknown option {shown(name)}{whose}{near or '.'} Known options: {', '.join(SINK_OPTIONS)}.")
