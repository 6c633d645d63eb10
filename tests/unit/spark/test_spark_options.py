"""Test options, columns and offsets of the Spark source, without Spark."""

from __future__ import annotations

import pytest

from liftpy.errors import ConfigError, InvalidNameError, NotFoundError
from liftpy.spark.offsets import OffsetSpec
from liftpy.spark.options import OPTIONS, TABLE, Access, Option, Selection, SinkOptions, SourceOptions
from liftpy.spark.schema import arrow_schema
from tests.each import each


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"stream": "orders", **options})


@each("option", TABLE)
def test_spark_option_documented_default_equals_the_parsed_default(option: Option) -> None:
    assert option.help.endswith(".")
    assert option.expected
    assert not option.choices or option.parse(option.choices[0][0].upper()) == option.choices[0][0]
    if option.field:
        sink = SinkOptions(access=Access(), stream="") if "writes" in option.takers[0] else parse()
        owner = Access() if option.table == "connection" else sink
        assert getattr(owner, option.field) == option.default


def test_spark_source_with_only_a_stream_option_has_the_default_options() -> None:
    options = SourceOptions.parse({"stream": "orders"})
    assert options == SourceOptions(access=Access(), wanted=Selection(("orders",)))
    assert options.columns == ("key", "value", "subject", "stream", "partition", "offset", "timestamp", "leader_epoch")
    assert options.fail_on_data_loss


def test_spark_source_accepts_every_known_option() -> None:
    values = {
        "minPartitions": "4", "maxOffsetsPerTrigger": "10", "failOnDataLoss": "true", "includeHeaders": "true",
        "readFrom": "leader", "patience": "2.5", "startingTimestamp": "1", "endingTimestamp": "2", "namespace": "ns",
        "startingOffsets": "earliest", "endingOffsets": "latest", "columns": "offset,headers",
        "startingOffsetsByTimestamp": '{"orders": {"0": 5}}', "endingOffsetsByTimestamp": '{"orders": {"0": 5}}',
        "startingOffsetsByTimestampStrategy": "error", "maxRecordsPerPartition": "5", "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "5m", "maxBytesPerTrigger": "5m", "onRecreated": "earliest", "topicColumn": "false",
        "isolation": "committed", "cursor": "nightly",
    }  # fmt: skip
    for name in OPTIONS:
        pairs = ("nats.user", "nats.passwordFile", "nats.tlsCert", "nats.tlsKey")
        if name not in ("stream", "subscribe", "subscribePattern", "assign", *pairs):
            parse(**{name: values.get(name, "a-file-or-host")})
    given = {"nats.user": "u", "nats.passwordFile": "f", "nats.tlsCert": "c", "nats.tlsKey": "k"}
    assert parse(**given).access.user == "u"
    assert parse(minPartitions="1").min_partitions == 1


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("kafka.bootstrap.servers", "Use nats."),
        ("KAFKA.sasl.jaas.config", "nats.creds"),
        ("kafka.max.poll.records", "and has no meaning here"),
        ("fetchOffset.numRetries", "Use patience."),
        ("topic", "Use stream."),
    ],
)
def test_spark_source_with_a_kafka_option_raises_with_the_liftpy_option(given: str, ours: str) -> None:
    with pytest.raises(ConfigError, match="of Kafka's") as caught:
        parse(**{given: "x"})
    assert ours in str(caught.value)


def test_spark_source_load_path_is_the_stream_name() -> None:
    assert SourceOptions.parse({"path": "orders"}) == SourceOptions.parse({"stream": "orders"}) == parse(path="orders")
    for more in ({"stream": "b"}, {"subscribe": "b"}):
        with pytest.raises(ConfigError):
            SourceOptions.parse({"path": "orders", **more})


def test_spark_source_relative_starting_offset_is_parsed_to_a_record_count_or_a_duration() -> None:
    def starting(text: str) -> OffsetSpec | None:
        return parse(startingOffsets=text).starting

    assert starting("-1000") == OffsetSpec(back_records=1000)
    assert starting("-10m") == OffsetSpec(back_ns=600 * 10**9)
    assert starting("-2") == OffsetSpec(word="earliest")
    assert starting("-1") == OffsetSpec(word="latest")
    assert OffsetSpec(back_ns=5).as_of(12) == OffsetSpec(timestamp_ns=7)
    assert OffsetSpec(back_ns=50).as_of(12) == OffsetSpec(timestamp_ns=0)
    for wrong in ("-0m", "-0", "10m", "-3 m", "-5y", "--5", "-1.5h"):
        with pytest.raises(ConfigError, match="startingOffsets"):
            starting(wrong)
    with pytest.raises(ConfigError):
        parse(endingOffsets="-2")


def test_spark_source_timestamps_per_partition_are_parsed_to_nanoseconds() -> None:
    by_time = {"startingOffsetsByTimestamp": '{"orders": {"0": 5, "1": 7}}'}
    assert parse(**by_time).starting == OffsetSpec(times=((("orders", 0), 5_000_000), (("orders", 1), 7_000_000)))
    strict = parse(**by_time, startingOffsetsByTimestampStrategy="error").starting
    assert strict is not None
    assert strict.must_match
    assert parse(startingTimestamp="9", **by_time).starting == OffsetSpec(timestamp_ns=9_000_000)
    assert parse(startingTimestamp="0").starting == parse(endingTimestamp="0").ending == OffsetSpec(timestamp_ns=0)
    assert parse(endingOffsetsByTimestamp='{"orders": {"0": 5}}').ending == OffsetSpec(times=((("orders", 0), 5_000_000),))
    for wrong in ("5", "{}", '{"s": {"0": -1}}', '{"s": {"0": 99999999999999999}}', '{"s": {}}', '{"s": {"0": "5"}}', "{"):
        with pytest.raises(ConfigError, match="startingOffsetsByTimestamp"):
            parse(startingOffsetsByTimestamp=wrong)


def test_spark_source_micro_batch_minimum_and_delay_options_are_parsed_to_numbers() -> None:
    options = parse(minOffsetsPerTrigger="5", maxTriggerDelay="30s")
    assert (options.min_records_per_trigger, options.max_trigger_delay_s) == (5, 30.0)
    assert parse().max_trigger_delay_s == 900.0
    for wrong in ("0s", "30", "1y", "31d", ""):
        with pytest.raises(ConfigError, match="maxTriggerDelay"):
            parse(maxTriggerDelay=wrong)
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger is more"):
        parse(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4").check_streaming()
    with pytest.raises(ConfigError):
        parse(minOffsetsPerTrigger="5").check_batch()


def test_spark_topic_column_option_adds_a_topic_column() -> None:
    assert "topic" not in parse(includeHeaders="true").columns
    assert "topic" in parse(topicColumn="true").columns
    assert parse(columns="topic,value").columns == ("topic", "value")
    with pytest.raises(ConfigError, match="topicColumn"):
        parse(topicColumn="true", columns="value")


def test_spark_include_headers_option_adds_a_headers_column() -> None:
    assert "headers" not in parse().columns
    assert parse(columns="value, headers", includeHeaders="true").columns == ("value", "headers")
    with pytest.raises(ConfigError, match="columns does not contain headers"):
        parse(columns="value", includeHeaders="true")


@each(
    "given",
    [
        {"minPartitions": "two"}, {"patience": "nan"}, {"columns": "offset,offset"}, {"columns": ""},
        {"startingOffsets": "[1]"}, {"startingOffsets": '{"orders": 3}'},
        {"startingOffsets": '{"orders": {"0": true}}'}, {"startingOffsets": '{"orders": {"0": -3}}'},
        {"startingOffsets": '{"orders": {"zero": 3}}'}, {"startingOffsets": '{"orders": {"٣": 3}}'},
        {"startingOffsets": '{"orders": {"00000000000000000000": 3}}'},
        {"isolation": "uncommitted"}, {"startingOffsets": "{}"}, {"startingOffsets": '{"orders": {}}'}, {"endingOffsets": "{}"},
        {"startingOffsets": '{"orders": {"0": 3, "00": 4}}'},
        {"endingOffsets": '{"orders": {"0": -2}}'},
    ],
)  # fmt: skip
def test_spark_source_with_invalid_options_raises_config_error(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse(**given)


WRONG = {
    "nats": "nats://me:secret@host", "namespace": "a.b", "stream": "a.b", "subscribe": "a,,b", "subscribePattern": "(", "assign": "{}",
    "startingOffsets": "newest", "endingOffsets": "earliest", "startingTimestamp": "2026-01-01", "endingTimestamp": "-1",
    "startingOffsetsByTimestamp": "5", "endingOffsetsByTimestamp": "{}", "startingOffsetsByTimestampStrategy": "earliest",
    "minPartitions": "0", "maxRecordsPerPartition": "few", "maxOffsetsPerTrigger": "-1", "maxBytesPerTrigger": "5t",
    "minOffsetsPerTrigger": "1.5", "maxTriggerDelay": "1y", "cursor": "a b", "onRecreated": "latest", "failOnDataLoss": "yes",
    "includeHeaders": "1", "topicColumn": "no", "columns": "offset,colour", "isolation": "dirty", "readFrom": "near", "patience": "0",
    "nats.user": "u", "nats.passwordFile": "f", "nats.tlsCert": "c", "nats.tlsKey": "k",
}  # fmt: skip
FILES = {"nats.creds", "nats.nkeySeed", "nats.tokenFile", "nats.tlsCa", "nats.inboxPrefix"}
"""What is looked at when a connection is made."""


def test_spark_source_with_an_invalid_option_raises_with_the_option_name() -> None:
    assert WRONG.keys() | FILES == OPTIONS.keys()
    for name, value in WRONG.items():
        ways = {"stream": "orders"} if name not in ("subscribe", "subscribePattern", "assign") else {}
        with pytest.raises((ConfigError, InvalidNameError), match=f"(?i){name}"):
            SourceOptions.parse({**ways, name: value})


@pytest.mark.parametrize(
    "given",
    [
        {}, {"stream": "a", "subscribe": "b"}, {"assign": "a"}, {"assign": '{"a": 1}'}, {"assign": '{"a": [-1]}'},
        {"assign": '{"a": ["0"]}'}, {"assign": '{"a.b": [0]}'}, {"assign": '{"a": [[0]]}'},
    ],
)  # fmt: skip
def test_spark_source_without_exactly_one_stream_selection_option_is_rejected(given: dict[str, str]) -> None:
    with pytest.raises((ConfigError, InvalidNameError)):
        SourceOptions.parse(given)


def test_spark_source_selects_streams_by_list_pattern_or_assignment() -> None:
    present = ["a", "ab", "b"]

    def selected(**given: str) -> list[str]:
        return SourceOptions.parse(given).wanted.among(present)

    assert selected(subscribe="b, a,b") == ["a", "b"]
    assert selected(subscribePattern="a.*") == ["a", "ab"]
    assert selected(subscribePattern="") == []
    some = SourceOptions.parse({"assign": '{"b": [2, 0]}'}).wanted
    assert some.among(present) == ["b"]
    assert [p for p in range(4) if some.takes("b", p)] == [0, 2]


@pytest.mark.parametrize("url", ["nats://me:secret@host:4222", "token@host", "nats://h1,nats://t@h2"])
def test_spark_source_url_with_a_secret_is_rejected_without_the_secret_in_the_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(nats=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["nats://me:secret@host:4222", "secret@host"])
@pytest.mark.parametrize(
    "given",
    [
        {"stream": "{}"},
        {"subscribe": "a,{}"},
        {"path": "{}"},
        {"path": "{}", "stream": "a"},
        {"stream": "a", "namespace": "{}"},
        {"subscribe": "a", "cursor": "{}"},
    ],
)
def test_spark_url_with_a_secret_as_a_name_is_rejected_without_the_secret_in_the_error(url: str, given: dict[str, str]) -> None:
    options = {name: text.format(url) for name, text in given.items()}
    for parse_options in (SourceOptions.parse, SinkOptions.parse):
        if parse_options == SinkOptions.parse and "subscribe" in options:
            continue
        with pytest.raises(ConfigError, match=r"is a URL, but .* set the option nats") as caught:
            parse_options(options)
        assert "secret" not in str(caught.value)


SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"  # of the NATS documentation


@pytest.mark.parametrize("name", ["nats.creds", "nats.nkeySeed", "nats.tlsKey", "nats.tokenFile"])
@pytest.mark.parametrize(
    "text", [SEED, f"-----BEGIN USER NKEY SEED-----\n{SEED}\n", "-----BEGIN PRIVATE KEY-----", "two\nlines"]
)
def test_spark_source_with_a_secret_instead_of_a_file_is_rejected_without_the_secret_in_the_error(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"The option {name} contains a secret") as caught:
        parse(**{name: text})
    assert text not in str(caught.value)
    assert SEED not in str(caught.value)


def test_spark_source_with_several_kinds_of_credentials_raises_with_their_option_names() -> None:
    with pytest.raises(ConfigError, match=r"nats\.creds, nats\.user\. Set only one"):
        parse(**{"nats.creds": "a", "nats.user": "u", "nats.passwordFile": "f"})
    with pytest.raises(ConfigError, match=r"nats\.nkeySeed, nats\.tokenFile\. Set only one"):
        parse(**{"nats.nkeySeed": "a", "nats.tokenFile": "f"})


def test_spark_source_with_streaming_options_in_a_batch_query_raises_config_error() -> None:
    parse(startingOffsets="latest").check_streaming()
    parse(cursor="nightly").check_streaming()
    at_latest = {"startingOffsets": '{"orders": {"0": -1}}'}
    for wrong in ({"startingOffsets": "latest"}, at_latest, {"maxOffsetsPerTrigger": "5"}, {"cursor": "nightly"}):
        with pytest.raises(ConfigError):
            parse(**wrong).check_batch()
    for wrong in ({"endingOffsets": "latest"}, {"endingTimestamp": "5"}):
        with pytest.raises(ConfigError):
            parse(**wrong).check_streaming()


def test_spark_source_of_a_missing_stream_raises_with_the_nearest_stream_name() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'orders'"):
        Selection(("order",)).among({"orders": 1, "clicks": 2})


def test_spark_selection_without_names_or_with_a_text_raises_config_error() -> None:
    """Each character of a text would be a name, and an audit of no stream would find no difference."""
    for wrong in (lambda: Selection(), lambda: Selection(partitions=(("orders", 0),))):
        with pytest.raises(ConfigError, match="names no stream"):
            wrong()
    with pytest.raises(ConfigError, match="Pass a tuple of names"):
        Selection("orders")  # type: ignore[arg-type]


def test_spark_source_arrow_schema_equals_that_of_spark() -> None:
    types = pytest.importorskip("pyspark.sql.pandas.types")
    columns = parse(includeHeaders="true").columns
    assert "headers" in columns
    schema = arrow_schema(columns)
    assert types.to_arrow_schema(types.from_arrow_schema(schema), timezone="UTC").equals(schema)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1", 1), ("268435456", 1 << 28), ("256m", 256 << 20), ("3K", 3 << 10), ("2gb", 2 << 30), (" 5m ", 5 << 20)],
)
def test_spark_byte_size_option_accepts_units_of_spark(text: str, size_bytes: int) -> None:
    assert parse(maxBytesPerTrigger=text).max_bytes_per_trigger == size_bytes


@pytest.mark.parametrize("text", ["0", "", "-5", "5t", "1.5m", "m", "1e9", "٣", "9" * 20, f"{1 << 61}"])
def test_spark_byte_size_option_that_is_invalid_raises_with_the_accepted_format(text: str) -> None:
    with pytest.raises(ConfigError, match="Use bytes such as 268435456"):
        parse(maxBytesPerTrigger=text)


def test_spark_starting_offsets_option_with_epochs_without_offsets_raises_config_error() -> None:
    given = parse(startingOffsets='{"orders": {"0": 20, "1": -2, "epochs": {"0": 3}, "uid": "u"}}').starting
    assert given is not None
    assert given.known is not None
    assert given.known.lasts == {("orders", 0): (19, 3)}
    with pytest.raises(ConfigError, match="epochs of orders/1 without an offset"):
        parse(startingOffsets='{"orders": {"0": 20, "epochs": {"1": 3}}}')
    with pytest.raises(ConfigError, match="is not a partition number and its offset"):
        parse(startingOffsets='{"orders": {"0": 20, "epochs": {"0": 0}}}')


@pytest.mark.parametrize(
    ("name", "meant"),
    [("startingOffset", "startingOffsets"), ("STREAMS", "stream"), ("xyz", ""), ("delimiter", ""), ("x" * 10_000, "")],
)
def test_spark_source_with_an_unknown_option_suggests_only_a_similar_option(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match="Unknown option") as refused:
        SourceOptions.parse({"stream": "orders", name: "1"})
    assert (f"did you mean '{meant}'?" in str(refused.value)) == bool(meant)
    assert ("did you mean" in str(refused.value)) == bool(meant)
    assert len(str(refused.value)) < 2000


def test_spark_source_as_a_catalog_table_raises_with_the_alternative() -> None:
    # as Spark 4.3 gives them for CREATE TABLE t USING liftpy OPTIONS (nats ..., stream ...), and without OPTIONS
    # and with LOCATION and TBLPROPERTIES
    for given in (
        {"provider": "liftpy", "option.stream": "a", "stream": "a"},
        {"owner": "root", "provider": "liftpy"},
        {"location": "/tmp/x", "stream": "a", "provider": "liftpy"},
        {"team": "shop", "comment": "ours", "stream": "a", "provider": "liftpy"},
    ):
        for parse in (SourceOptions.parse, SinkOptions.parse):
            with pytest.raises(ConfigError, match=r"^Catalog tables .*CREATE TEMPORARY VIEW .*save or start\.$"):
                parse(given)


def test_spark_source_without_a_stream_raises_with_the_stream_option() -> None:
    with pytest.raises(
        ConfigError,
        match=r"exactly one of the options stream.*CREATE TABLE .* USING liftpy, saveAsTable.*CREATE TEMPORARY VIEW",
    ):
        SourceOptions.parse({"nats": "nats://h:1"})
    with pytest.raises(ConfigError, match=r"exactly one of the options stream, subscribe, subscribePattern and assign\.$"):
        SourceOptions.parse({"stream": "a", "subscribe": "b"})


@pytest.mark.parametrize("text", ["a{99999999999999}", "(" * 20_000, "(?P<", "[", "x" + ")" * 3])
def test_spark_subscribe_pattern_option_that_is_invalid_raises_with_the_option_name(text: str) -> None:
    with pytest.raises(ConfigError, match="subscribePattern"):
        SourceOptions.parse({"subscribePattern": text, "nats": "nats://x"})
