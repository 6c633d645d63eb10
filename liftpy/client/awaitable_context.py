"""``AwaitableContext``: a call that you can ``await``, or use with ``async with`` to also close the result."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

_T = TypeVar("_T", bound=AbstractAsyncContextManager[Any])


class AwaitableContext(Coroutine[Any, Any, _T], Generic[_T]):
    """The result of a call such as ``connect``: await it for the object, or use it with ``async with`` to also close the object.

    Use it once.
    """

    def __init__(self, opening: Coroutine[Any, Any, _T]) -> None:
        self._opening = opening
        self._opened: _T | None = None

    def __await__(self) -> Generator[Any, Any, _T]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        return self._opening.send(value)

    def throw(self, *what: Any) -> Any:
        return self._opening.throw(*what)

    def close(self) -> None:
        self._opening.close()

    async def __aenter__(self) -> _T:
        self._opened = await self._opening
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._opened is not None
        return await self._opened.__aexit__(kind, error, trace)
