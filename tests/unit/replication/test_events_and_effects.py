"""Test that events and effects are values with slots."""

from __future__ import annotations

import dataclasses

from liftpy.core.replication import effects, events
from tests.each import each

VALUES = [
    made
    for module in (events, effects)
    for made in vars(module).values()
    if isinstance(made, type) and dataclasses.is_dataclass(made) and made.__module__ == module.__name__
]


@each("made", VALUES)
def test_replica_events_and_effects_have_slots_and_keyword_only_fields(made: type) -> None:
    settings = made.__dataclass_params__  # type: ignore[attr-defined]
    assert "__slots__" in vars(made)
    assert all(field.kw_only for field in dataclasses.fields(made))
    assert (settings.frozen, settings.eq, settings.unsafe_hash) == (False, True, True), "frozen is for the type checker alone"
    assert len(VALUES) > 60


def test_replica_events_with_equal_fields_are_equal() -> None:
    one, same, other = (events.LogFlushed(end_offset=end_offset) for end_offset in (3, 3, 4))
    assert one == same != other
    assert {one, same, other} == {one, other}
