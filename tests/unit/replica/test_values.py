"""Events and effects are values, and cheap to make: a replica makes a dozen for each publish."""

from __future__ import annotations

import dataclasses

import pytest

from liftpy.core.replication import effects, events

VALUES = [
    made
    for module in (events, effects)
    for made in vars(module).values()
    if isinstance(made, type) and dataclasses.is_dataclass(made) and made.__module__ == module.__name__
]


@pytest.mark.parametrize("made", VALUES, ids=lambda made: made.__name__)
def test_it_has_slots_and_keywords_and_sets_its_fields_without_a_call_for_each(made: type) -> None:
    settings = made.__dataclass_params__  # type: ignore[attr-defined]
    assert "__slots__" in vars(made)
    assert all(field.kw_only for field in dataclasses.fields(made))
    assert (settings.frozen, settings.eq, settings.unsafe_hash) == (False, True, True), "frozen is for the type checker alone"
    assert len(VALUES) > 60


def test_equal_ones_are_one() -> None:
    one, same, other = (events.LogFlushed(end_offset=end_offset) for end_offset in (3, 3, 4))
    assert one == same != other
    assert {one, same, other} == {one, other}
