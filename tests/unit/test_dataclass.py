"""``liftpy.dataclass`` makes what the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from liftpy.core.base import dataclass as module

quick: Callable[..., Any] = module.dataclass


def plain(decorate: Callable[..., Any], **options: bool) -> Any:
    class Value:
        """Of each kind of field one."""

        first: int
        second: str = "b"
        places: list[int] = field(default_factory=list)
        hidden: int = field(default=3, repr=False)
        unequal: int = field(default=4, compare=False)
        unhashed: int = field(default=5, hash=False)
        named: int = field(default=6, kw_only=True)
        fixed: int = field(default=7, init=False)
        made: list[int] = field(default_factory=list, init=False)
        of_all: ClassVar[int] = 8

        def doubled(self) -> int:
            return self.first * 2

    return decorate(**options)(Value)


def one_field(decorate: Callable[..., Any], **options: bool) -> Any:
    class One:
        """A tuple of one is compared by identity first."""

        value: Any

    return decorate(**options)(One)


def none(decorate: Callable[..., Any], **options: bool) -> Any:
    class Nothing:
        """No field."""

    return decorate(**options)(Nothing)


OPTIONS = [
    {"frozen": frozen, "slots": slots, "kw_only": kw_only, "eq": eq}
    for frozen in (False, True)
    for slots in (False, True)
    for kw_only in (False, True)
    for eq in (False, True)
] + [{"frozen": False, "slots": True, "kw_only": True, "eq": eq, "unsafe_hash": True} for eq in (False, True)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_is_as_the_librarys(options: dict[str, bool]) -> None:
    for make in (plain, one_field, none):
        ours, theirs = make(quick, **options), make(dataclasses.dataclass, **options)
        assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
        assert ours.__match_args__ == theirs.__match_args__
        assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
        assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)
        assert (ours.__hash__ is None) == (theirs.__hash__ is None)
        assert ours.__init__.__qualname__.endswith("__init__")
        assert ours.__init__.__module__ == __name__


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_objects_behave_as_the_librarys(options: dict[str, bool]) -> None:
    for decorate in (quick, dataclasses.dataclass):
        kind = plain(decorate, **options)
        first, same = kind(first=1), kind(first=1)
        assert first.second == "b"
        assert first.places == []
        assert first.places is not same.places
        assert (first.hidden, first.unequal, first.named, first.fixed, first.made) == (3, 4, 6, 7, [])
        assert (first == same) is options["eq"]
        assert first != kind(first=2)
        assert first != (1,)
        assert (kind(first=1, unequal=9) == first) is options["eq"]
        shown = "(first=1, second='b', places=[], unequal=4, unhashed=5, named=6, fixed=7, made=[])"
        assert repr(first) == kind.__qualname__ + shown
        assert dataclasses.replace(first, second="c").second == "c"
        assert dataclasses.asdict(first)["places"] == []
        assert copy.copy(first).first == 1
        assert copy.deepcopy(first).second == "b"
        with pytest.raises(TypeError):
            kind(1, "b", [], 3, 4, 5, 6)
        with pytest.raises(TypeError):
            kind()
        if options["frozen"]:
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
                first.first = 2
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'first'"):
                del first.first
        else:
            first.first = 2
            assert first.doubled() == 4


def test_hashes_are_of_the_compared_fields_and_a_nan_is_itself() -> None:
    for decorate in (quick, dataclasses.dataclass):
        kind = one_field(decorate, frozen=True, slots=True)
        nan = float("nan")
        assert hash(kind(3)) == hash((3,))
        assert kind(nan) == kind(nan)
        assert kind(nan) != kind(float("nan"))
        assert hash(none(decorate, frozen=True)()) == hash(())
        empty = none(decorate)
        assert empty() == empty()
        assert hash(one_field(decorate, slots=True, unsafe_hash=True)(3)) == hash((3,))
    unhashable = one_field(quick)
    with pytest.raises(TypeError, match="unhashable"):
        hash(unhashable(1))


@quick(frozen=True, slots=True)
class Travels:
    """Found by its name when it is read back."""

    a: int
    b: tuple[str, ...] = ()


def test_a_frozen_one_with_slots_is_pickled_and_copied() -> None:
    travels = Travels(1, ("x",))
    assert pickle.loads(pickle.dumps(travels)) == travels
    assert copy.copy(travels) == travels
    match travels:
        case Travels(number, names):
            assert (number, names) == (1, ("x",))


def test_what_a_class_brings_itself_stays() -> None:
    @quick(frozen=True, slots=True)
    class Own:
        """Compares, hashes and shows itself; looks at itself when made."""

        a: int

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    assert Own(1) == 5
    assert hash(Own(1)) == 7
    assert repr(Own(2)) == "own"
    with pytest.raises(ValueError, match="negative"):
        Own(-1)


def test_a_mutable_one_that_holds_itself_is_shown() -> None:
    kind = one_field(quick, slots=True)
    ring = kind(None)
    ring.value = ring
    assert repr(ring).endswith("One(value=...)")


def test_what_asks_for_more_is_the_librarys() -> None:
    @quick(frozen=True, order=True)
    class Ordered:
        """The library knows how."""

        a: int

    @quick(frozen=True)
    class Child(Ordered):  # type: ignore[misc]
        """Of a dataclass."""

        b: int

    assert Ordered(1) < Ordered(2)
    assert Child(1, 2).b == 2
    with pytest.raises(TypeError, match="cannot inherit"):

        @quick
        class Mutable(Ordered):  # type: ignore[misc]
            """Not of a frozen one."""

            c: int

    @quick
    class Passing:
        """Takes what it does not keep."""

        d: dataclasses.InitVar[int]

        def __post_init__(self, d: int) -> None:
            self.kept = d

    assert Passing(5).kept == 5
