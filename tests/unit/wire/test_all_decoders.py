"""Test every decoder with a short run of ``python -m tests.fuzz``, and that no decoder is missing there [A6]."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.core.wire import frames
from liftpy.errors import ProtocolError
from tests.each import each
from tests.fuzz.decoder import Decoder
from tests.fuzz.found import decoders
from tests.fuzz.registry import ELSEWHERE, all_decoders
from tests.fuzz.run import fuzz, judge

ALL = all_decoders()
COUNT = 300


@each("decoder", ALL)
def test_decoder_of_any_bytes_returns_a_value_or_raises_its_declared_error(decoder: Decoder) -> None:
    found = fuzz(decoder, COUNT, seed=1)
    assert found.count == COUNT


def test_decoder_of_each_valid_sample_raises_no_error() -> None:
    """Else its damage shows nothing. Some are made of anything, and may be refused; but not all of a decoder's."""
    for decoder in ALL:
        assert any(_is_taken(decoder, sample) for sample in decoder.samples), decoder.name


def _is_taken(decoder: Decoder, sample: bytes) -> bool:
    try:
        return judge(decoder, sample)
    except decoder.errors:
        return False


def test_fuzzer_has_a_case_for_every_decoder() -> None:
    covered = {name for decoder in ALL for name in decoder.covers}
    found = decoders()
    assert found - covered - ELSEWHERE.keys() == set(), "neither in a decoder's `covers` nor in ELSEWHERE"
    assert (covered | ELSEWHERE.keys()) - found == set(), "there is no such function any more"
    named = {decoder.name.removeprefix("frame ") for decoder in ALL}
    assert {of.__name__ for of in frames._TYPES} <= named


def test_fuzzer_reports_undeclared_errors_hangs_and_changed_results() -> None:
    def raises(data: bytes) -> Any:
        if len(data) % 7 == 3:
            raise KeyError("x")
        raise ProtocolError("y")

    for decoder in (
        Decoder("raises", [b"sample"], raises, (ProtocolError,)),
        Decoder("forgets", [b"sample"], lambda data: data[:3], (), lambda meaning: meaning + b"x" * len(meaning)),
        Decoder("takes memory", [b"sample"], lambda data: bytearray(1 << 20), memory_bytes=1 << 19),
    ):
        with pytest.raises(AssertionError, match=decoder.name):
            fuzz(decoder, 300, seed=1)
