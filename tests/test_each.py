"""Test the table of rows in one test."""

from __future__ import annotations

import pytest

from tests.each import each


def test_each_tries_all_rows_and_names_the_row_of_each_failure() -> None:
    tried: list[tuple[int, str]] = []

    @each("number", [1, pytest.param(2, id="two"), 3])
    @each(("word", "length"), [("a", 1), ("bb", 2)])
    def test(number: int, word: str, length: int) -> None:
        tried.append((number, word))
        assert number != 2 or length == 1

    with pytest.raises(AssertionError) as caught:
        test()
    assert tried == [(number, word) for number in (1, 2, 3) for word in ("a", "bb")]
    assert caught.value.__notes__ == ["in the row {'word': 'bb', 'length': 2}", "in the row {'number': 2}"]
    with pytest.raises(AssertionError, match="empty"):
        each("number", [])


async def test_each_awaits_an_async_test_and_keeps_its_fixtures() -> None:
    tried: list[tuple[int, str]] = []

    @each("number", [1, 2])
    async def test(fixture: str, number: int) -> None:
        tried.append((number, fixture))
        raise ValueError

    with pytest.raises(ExceptionGroup, match="2 rows fail"):
        await test(fixture="given")
    assert tried == [(1, "given"), (2, "given")]
