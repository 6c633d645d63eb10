"""The options of the format ``liftpy``: names, defaults, checks. Pure; the conventions are those of Spark's Kafka source.

Option names are case-insensitive (Spark hands them over in lower case). An unknown one is an error that names the nearest
known one. No secret is an option: credentials are named by file, because a plan is printed, logged and stored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from liftpy.core.base.ids import check_name, shown
from liftpy.core.base.strict_json import load_json
from liftpy.errors import ConfigError, NotFoundError
from liftpy.spark.offsets import EARLIEST, LATEST, OffsetSpec, parse_spec, parse_times, relative
from liftpy.spark.schema import check_columns, default_columns, did_you_mean

OPTIONS = {
    "nats": "NATS servers, comma separated (default nats://127.0.0.1:4222)",
    "namespace": "the cluster's namespace (default liftpy)",
    "stream": "the stream to read; the same as load(NAME)",
    "subscribe": "several streams, comma separated (instead of stream)",
    "subscribePattern": "streams whose whole name matches this regular expression, also those made later (instead of stream)",
    "assign": 'some partitions only, JSON such as {"orders": [0, 2]} (instead of stream)',
    "startingOffsets": "earliest (batch), latest (streaming), -10m (so long ago), -1000 (so many records of each partition before "
    "its end), or JSON per partition; -2 earliest, -1 latest; inclusive",
    "endingOffsets": "batch only: latest (default), -10m, -1000, or JSON per partition, exclusive; -1 latest",
    "startingTimestamp": "ms since 1970: from the first record stamped at or after it; wins over startingOffsets",
    "startingOffsetsByTimestamp": "the same for each partition, JSON of ms since 1970; startingTimestamp wins over it",
    "startingOffsetsByTimestampStrategy": "where no record is so new: latest (default: what comes next), or error",
    "endingTimestamp": "batch only, ms since 1970: up to the first record stamped at or after it; wins over endingOffsets",
    "endingOffsetsByTimestamp": "batch only: the same for each partition, JSON of ms since 1970",
    "minPartitions": "split large ranges, by bytes and between batches, so that there are at least this many Spark partitions",
    "maxRecordsPerPartition": "split ranges so that no Spark partition has more records",
    "maxOffsetsPerTrigger": "streaming: records of one micro-batch, over all partitions (default: all there is)",
    "maxBytesPerTrigger": "streaming: bytes of one micro-batch as they are stored, such as 256m; with maxOffsetsPerTrigger both hold",
    "minOffsetsPerTrigger": "streaming: wait until a micro-batch has so many records, for maxTriggerDelay at most",
    "maxTriggerDelay": "streaming: how long minOffsetsPerTrigger may wait, such as 15m (default), 30s, 1h",
    "cursor": "streaming: the name of a cursor of the cluster that says up to where the query has come (liftpy cursor show NAME)",
    "onRecreated": "streaming: a stream that was deleted and made again ends the query (error, default), or is read from its beginning "
    "(earliest), what was lost being logged; failOnDataLoss=false means earliest",
    "failOnDataLoss": "true (default): records gone by retention are an error; false: a warning, and the rest is read",
    "includeHeaders": "true: a column headers, array<struct<key string, value binary>> (default false)",
    "topicColumn": "true: a column topic, the stream's name once more, for code that was written for Kafka (default false)",
    "columns": "which columns, comma separated; Spark does not prune them for a Python source, so this saves most of the work",
    "isolation": "committed (default), the only one: other records may vanish, a task that is run again would not have the same rows",
    "readFrom": "nearest (default): files of a replica on the executor's host whose node offers them (local_file_reads), else any "
    "in-sync replica, spread over them; files: the same, with a warning for each task without them; leader: the leader only, over NATS",
    "patience": "seconds to keep trying while NATS, or any replica, does not answer (default 30)",
    "nats.creds": "file with a NATS JWT and its seed",
    "nats.nkeySeed": "file with an nkey seed",
    "nats.user": "user name; its password stands in the file nats.passwordFile",
    "nats.passwordFile": "file with the password of nats.user",
    "nats.tokenFile": "file with an authentication token",
    "nats.tlsCa": "file with the certificates to trust",
    "nats.tlsCert": "file with our certificate",
    "nats.tlsKey": "file with its key",
    "nats.inboxPrefix": "under which NATS's rights let this user be answered (default _INBOX)",
}
"""Every option and what it means."""

_SPELLING = {name.lower(): name for name in OPTIONS}
_PATH = "path"
"""What ``load(NAME)`` comes as."""
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
"""What Kafka's options are called here, lower case; ``kafka.*`` that is not in it has no counterpart."""
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
    "A table of the catalog (CREATE TABLE ... USING liftpy, saveAsTable) can't be a stream: Spark gives a Python source none of the "
    "table's options: use CREATE TEMPORARY VIEW orders USING liftpy OPTIONS (nats '...', stream 'orders'), and to write save or start"
)
_OF_TABLES = ("provider", "owner", "external", "is_managed_location")
"""Properties that Spark's catalog gives each table, and a source as if they were options."""
_READ_FROM = ("nearest", "files", "leader")
_SIZE = re.compile(r"([0-9]{1,19})([kmg]?)b?")
_SIZE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30}
_NS_PER_MS = 1_000_000
_MAX_DIGITS = 19
_LAST_MS = 1 << 43
"""In nanoseconds still a number of 64 bits: the year 2248."""
_LONGEST_NS = 30 * 86_400 * 10**9
MAX_PARTITIONS = 100_000
DEFAULT_TRIGGER_DELAY_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach the cluster; hashable (the key of the connection cache), and free of secrets: it is part of plans.

    ``servers``: NATS URLs, comma separated. ``namespace``: the cluster's. The others are file names, except ``user`` and
    ``inbox_prefix``.
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
    """Which partitions are read: of ``streams`` by name, or of those whose whole name matches ``pattern``.

    ``partitions``: (stream, partition) pairs that are wanted; empty: all partitions of the streams.
    """

    streams: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[tuple[str, int], ...] = ()

    def among(self, present: Iterable[str]) -> list[str]:
        """The streams to read of those that are there; NotFoundError for a named one that is not, naming the nearest."""
        there = sorted(present)
        if self.pattern:
            return [name for name in there if re.fullmatch(self.pattern, name)]
        for name in self.streams:
            if name not in there:
                near = difflib.get_close_matches(name, there, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "; `liftpy stream list` shows those that do exist"
                raise NotFoundError(f"no stream {name!r}{hint}")
        return list(self.streams)

    def takes(self, stream: str, partition: int) -> bool:
        """Whether that partition of a selected stream is wanted."""
        return not self.partitions or (stream, partition) in self.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """One source's options, checked. ``starting`` None: the default of the kind of query (earliest batch, latest streaming).

    ``max_records_per_trigger``, ``max_bytes_per_trigger``, ``min_records_per_trigger``,
    ``max_records_per_partition``, ``min_partitions``: 0 means not set.
    ``patience_s``: how long nobody may answer. ``recreated_earliest``: onRecreated.
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
        """From Spark's option map; ConfigError for what is unknown, missing, twice or out of bounds."""
        values = {_known(name): value for name, value in given.items() if name.lower() != _PATH}
        if path := next((value for name, value in given.items() if name.lower() == _PATH), ""):
            if values.get("stream", path) != path:
                raise ConfigError(
                    f"load({path!r}) and the option stream = {values['stream']!r} name two streams: drop one of them"
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
        """Raise ConfigError for what makes no sense in a batch query."""
        if self.starting is not None and (self.starting.word == "latest" or LATEST in dict(self.starting.offsets).values()):
            raise ConfigError("startingOffsets can't be latest (or -1) in a batch query: it would read nothing")
        if self.cursor:
            raise ConfigError("cursor is for streaming queries: it says up to where one has come")
        if self.max_records_per_trigger or self.min_records_per_trigger or self.max_bytes_per_trigger:
            raise ConfigError(
                "max- and minOffsetsPerTrigger and maxBytesPerTrigger are for streaming queries; use endingOffsets in a batch query"
            )

    def check_streaming(self) -> None:
        """Raise ConfigError for what makes no sense in a streaming query."""
        if self.ending is not None:
            raise ConfigError("endingOffsets and endingTimestamp are for batch queries; a streaming query ends by its trigger")
        if 0 < self.max_records_per_trigger < self.min_records_per_trigger:
            raise ConfigError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger: no micro-batch could have so many")

    @property
    def take_recreated(self) -> bool:
        """Whether a streaming query goes on with a stream that was deleted and made again."""
        return self.recreated_earliest or not self.fail_on_data_loss


def _known(name: str) -> str:
    spelled = _SPELLING.get(name.lower())
    if spelled is None:
        if name.lower() in KAFKA:
            raise ConfigError(f"{name} is an option of Kafka's source: use {KAFKA[name.lower()]} here")
        if name.lower().startswith("kafka."):
            raise ConfigError(f"{name} is an option of Kafka's clients and means nothing here. Known are: {', '.join(OPTIONS)}")
        check_no_table(name)
        raise ConfigError(f"unknown option {shown(name)}{did_you_mean(name, OPTIONS)}. Known are: {', '.join(OPTIONS)}")
    return spelled


def check_no_table(name: str) -> None:
    """Raise ConfigError for an option that says that this is a table of Spark's catalog."""
    if name.lower() in _OF_TABLES or name.lower().startswith("option."):
        raise ConfigError(NO_TABLES)


def access_of(values: Mapping[str, str]) -> Access:
    """How to reach the cluster; raises ConfigError."""
    access = Access(
        servers=values.get("nats", _DEFAULT.servers),
        namespace=check_name(values.get("namespace", _DEFAULT.namespace), "namespace"),
        **{field: values[option] for option, field in _FILES.items() if option in values},
    )
    for url in access.servers.split(","):
        if "@" in url:  # whatever else is in it: it has a user in front, and no other place
            raise ConfigError("option nats holds a user or password, which every plan would show: use nats.creds or the like")
    if bool(access.user) != bool(access.password_file):
        raise ConfigError("nats.user and nats.passwordFile belong together; give both or neither")
    return access


def _selection(values: Mapping[str, str]) -> Selection:
    given = [name for name in ("stream", "subscribe", "subscribePattern", "assign") if name in values]
    if len(given) != 1:
        text = "say what to read: exactly one of the options stream, subscribe, subscribePattern and assign"
        raise ConfigError(text if given else f"{text}. {NO_TABLES}")
    text = values[given[0]]
    if given == ["subscribePattern"]:
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(f"subscribePattern = {text!r} is not a regular expression: {error}") from None
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
        raise ConfigError(f'assign = {text!r}: use JSON such as {{"orders": [0, 2]}}')
    return tuple(sorted(pairs))


def _check_isolation(values: Mapping[str, str]) -> None:
    """Raise ConfigError for anything but committed."""
    if choice_of(values, "isolation", ("committed", "uncommitted")) == "uncommitted":
        raise ConfigError(
            "isolation = 'uncommitted' is not for Spark, which runs tasks and micro-batches again and takes what they read for the "
            "same: records that are not committed may vanish. A Client reads them, by ReadOptions(isolation='uncommitted')"
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
        raise ConfigError("includeHeaders is true but the option columns does not name headers: drop one of them")
    if topic and "topic" not in columns:
        raise ConfigError("topicColumn is true but the option columns does not name topic: drop one of them")
    return columns


def whole_number_of(values: Mapping[str, str], name: str, highest: int, lowest: int = 1) -> int:
    """From ``lowest`` to ``highest``; 0 where it is not given."""
    text = values.get(name, "")
    if name not in values:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and lowest <= int(text) <= highest):
        raise ConfigError(f"{name} = {shown(text)}: use a whole number from {lowest} to {highest}")
    return int(text)


def size_of(values: Mapping[str, str], name: str) -> int:
    """Bytes from 1 to 2^60, with k, m or g for powers of 1024 as Spark has them; 0: not given."""
    if name not in values:
        return 0
    found = _SIZE.fullmatch(values[name].strip().lower())
    size_bytes = int(found[1]) << _SIZE_SHIFTS[found[2]] if found else 0
    if not 1 <= size_bytes <= 1 << 60:
        raise ConfigError(f"{name} = {values[name]!r}: use bytes such as 268435456 or 256m, from 1 to 2^60")
    return size_bytes


def seconds_of(values: Mapping[str, str], name: str, default: float) -> float:
    """From 0.1 to 3600."""
    text = values.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 3600:
        raise ConfigError(f"{name} = {text!r}: use seconds from 0.1 to 3600")
    return seconds


def _duration(values: Mapping[str, str], name: str, default_s: float) -> float:
    text = values.get(name)
    if text is None:
        return default_s
    found = relative(f"-{text.strip()}")
    if found is None or not found.back_ns or found.back_ns > _LONGEST_NS:
        raise ConfigError(f"{name} = {text!r}: use a duration such as 30s, 15m or 1h, at most 30d")
    return found.back_ns / 1e9


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    return choice_of(values, name, ("true", "false"), "true" if default else "false") == "true"


def choice_of(values: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str = "") -> str:
    """One of ``allowed``, the first unless it is given or there is a ``default``."""
    value = values.get(name, default or allowed[0]).lower()
    if value not in allowed:
        raise ConfigError(f"{name} = {values[name]!r}: use {' or '.join(allowed)}")
    return value
