"""Every field of StreamConfig survives the option, the protobuf message and ``stream show``."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

import click
import pytest
from click.testing import CliRunner

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.metadata.codec import CONFIG
from liftpy.errors import ConfigError
from sidecar.cli.stream_settings import SETTINGS, setting_options, settings_as_json, settings_to_show
from tests.each import each

FIELDS = [field.name for field in fields(StreamConfig)]


def other(name: str) -> Any:
    """A value that is not the default."""
    default = getattr(StreamConfig(), name)
    if isinstance(default, Enum):
        return next(member for member in reversed(type(default)) if member is not default)
    if isinstance(default, FlushPolicy):
        return FlushPolicy.parse("interval:20")
    return not default if isinstance(default, bool) else default + 3


def given(*words: str) -> StreamConfig:
    """What ``stream create`` makes of ``words``."""
    found: list[StreamConfig] = []

    @click.command()
    @setting_options
    def command(config: StreamConfig) -> None:
        found.append(config)

    done = CliRunner().invoke(command, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return found[0]


@each("name", FIELDS)
def test_stream_setting_from_the_command_line_is_stored_and_shown_unchanged(name: str) -> None:
    wanted = StreamConfig(**{name: other(name)})
    (setting,) = [setting for setting in SETTINGS if setting.field == name]
    text = settings_as_json(wanted, 32)[setting.key]
    if isinstance(text, bool):
        words = [setting.flag if text else setting.flag.replace("--", "--no-")]
    else:
        words = [setting.flag, str(text)]
    assert given(*words) == wanted
    assert CONFIG.from_pb(CONFIG.to_pb(wanted)) == wanted
    assert text != settings_as_json(StreamConfig(), 32)[setting.key]
    assert settings_to_show(wanted, 32)[setting.key] == text


def test_stream_settings_without_options_are_the_defaults() -> None:
    assert given() == StreamConfig() == CONFIG.from_pb(CONFIG.to_pb(StreamConfig()))
    assert set(settings_to_show(StreamConfig(), 3)) == {"ack_policy", "min_isr", "flush", "commit_policy"}


def test_stream_setting_out_of_bounds_raises_with_the_option_name() -> None:
    with pytest.raises(ConfigError, match="--segment-bytes"):
        given("--segment-bytes", "5")


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("interval:100ms", 100), ("interval:1s", 1000), ("interval:0.25s", 250), ("interval:1m", 60_000)]
)
def test_flush_option_accepts_an_interval_with_a_unit(text: str, milliseconds: int) -> None:
    assert given("--flush", text).flush == FlushPolicy.parse(f"interval:{milliseconds}")


@pytest.mark.parametrize("text", ["often", "interval:100", "interval:0ms", "interval:61s", "interval:ms", "always:1"])
def test_flush_option_with_an_invalid_policy_is_rejected(text: str) -> None:
    with pytest.raises(
        AssertionError, match=r"'--flush': flush policy '.*': (use always, none or an|the) interval .*interval:100ms"
    ):
        given("--flush", text)


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("--retention-age", "7d", "retention_age_s", 7 * 86_400.0),
        ("--retention-age", "1.5h", "retention_age_s", 5400.0),
        ("--dedup-window", "90", "dedup_window_s", 90.0),
        ("--segment-bytes", "64MiB", "segment_bytes", 64 << 20),
        ("--quota-bytes", "10MB", "quota_bytes_per_s", 10_000_000),
        ("--segment-bytes", "4096", "segment_bytes", 4096),
    ],
)
def test_stream_setting_with_a_unit_is_parsed_to_seconds_or_bytes(option: str, text: str, field: str, value: float) -> None:
    assert getattr(given(option, text), field) == value


@pytest.mark.parametrize("text", ["nan", "7x", "-5m", "1 d", ""])
def test_duration_option_that_is_invalid_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(AssertionError, match=r"90s, 5m, 1\.5h or 7d"):
        given(f"--retention-age={text}")
