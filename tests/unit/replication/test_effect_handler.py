"""Test that the handler protocol has one method of the right type for each effect."""

from __future__ import annotations

from typing import get_args, get_type_hints

from liftpy.core.replication import effects as do
from liftpy.core.replication.effects import EffectHandler, acts_of, method_name


def test_effect_handler_has_one_method_per_effect() -> None:
    methods = {name: hint for name, hint in vars(EffectHandler).items() if callable(hint) and not name.startswith("_")}
    assert set(methods) == {method_name(effect) for effect in get_args(do.Effect)}
    for effect in get_args(do.Effect):
        assert get_type_hints(methods[method_name(effect)])["effect"] is effect


def test_effect_handler_passes_each_effect_to_its_method() -> None:
    class Handler:
        def __getattr__(self, name: str) -> object:
            return lambda effect: f"{name} {effect}"

    acts = acts_of(Handler())  # type: ignore[arg-type]
    assert acts[do.TruncateLog]("this") == "truncate_log this"
    assert set(acts) == set(get_args(do.Effect))
