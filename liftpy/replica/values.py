"""``value``: what events and effects are. Nobody changes one, which the type checker sees to.

A frozen dataclass sees to it at run time, by a call for each field of each object that is made: four times the price, and a replica
makes a dozen of them for each publish.
"""

from __future__ import annotations

from dataclasses import field
from typing import TypeVar, dataclass_transform

from liftpy.dataclass import dataclass

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots, made by keywords, equal and hashed by its fields, and frozen for the type checker."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
