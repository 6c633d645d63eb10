"""What options of the source mean at their bounds."""

from __future__ import annotations

import pytest

from liftpy.errors import ConfigError
from liftpy.spark.offsets import parse_spec
from liftpy.spark.options import Selection, SourceOptions


def test_subscribe_pattern_matches_the_whole_name() -> None:
    assert Selection(pattern="a.*b|c").among(["ab", "abc", "a1b", "c", "cc", "xc"]) == ["a1b", "ab", "c"]


def test_selection_contains_the_named_partitions() -> None:
    some = Selection(("a",), partitions=(("a", 1), ("b", 2)))
    assert [some.takes("a", 1), some.takes("a", 2), some.takes("b", 1), some.takes("b", 2)] == [True, False, False, True]
    assert Selection(("a",)).takes("a", 7)


@pytest.mark.parametrize(
    "text", ["[]", "null", "1", '"x"', "{", "", '{"a": {"0": -3}}', '{"a": {"0": -1}}', '{"a": {"0": -4}}']
)
def test_invalid_offsets_option_is_rejected_with_its_name(text: str) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        parse_spec(text, "startingOffsets", words=("earliest", "latest"), specials=(-2,))


def test_offsets_option_accepts_words_and_objects() -> None:
    found = parse_spec('{"b": {"1": 0}, "a": {"0": -2}}', "startingOffsets", words=("earliest",), specials=(-2,))
    assert found.offsets == ((("a", 0), -2), (("b", 1), 0))
    assert parse_spec("EARLIEST", "startingOffsets", words=("earliest",), specials=(-2,)).word == "earliest"


@pytest.mark.parametrize("text", ["a{99999999999999}", "(" * 20_000, "(?P<", "[", "x" + ")" * 3])
def test_invalid_subscribe_pattern_is_rejected_with_its_name(text: str) -> None:
    with pytest.raises(ConfigError, match="subscribePattern"):
        SourceOptions.parse({"subscribePattern": text, "nats": "nats://x"})
