"""The client without asyncio: each call waits until it is done.

    from liftpy.client import sync

    with sync.connect("nats://127.0.0.1:4222") as client:
        client.create_stream("orders", "shop.orders", exist_ok=True)
        ack = client.publish("orders", b"one", key=b"k")
        for record in client.consume("orders", until="end"):
            print(record.offset, record.value)

The methods are derived from the asynchronous client, with its parameters, results and errors. The asynchronous client
runs in a thread of its own, with its own event loop. Calls may come from any thread. Ctrl-C ends the waiting call, not
the client: a publish may be stored, and a reader returns the same records again. Open clients are closed when the program
ends. A client does not work after a fork.

Heartbeats and commits of groups, and prefetching of queues, run in the client's thread. So a member stays in its group
while the application processes a batch for a long time. Callbacks run in the client's thread, too, and must not call
the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from liftpy import renamed
from liftpy.client.admin import Admin
from liftpy.client.arguments import check_wait
from liftpy.client.batch_view import ConsumedRecord
from liftpy.client.client import Client
from liftpy.client.client import connect as _connect
from liftpy.client.consumer import Consumer
from liftpy.client.cursor import Cursor
from liftpy.client.group import Group
from liftpy.client.group_admin import Cursors, Groups, Queues
from liftpy.client.in_flight import PublishAck
from liftpy.client.multi_consumer import ManyConsumer, Place
from liftpy.client.partition_sender import ManyAck, ManyReceipt, Receipt
from liftpy.client.positions import Bounds
from liftpy.client.producer import Producer
from liftpy.client.publisher import Publisher
from liftpy.client.queue import Job, Queue
from liftpy.client.services import Services
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import Record
from liftpy.errors import ClientClosedError, ConfigError, LiftError
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import DEFAULT_URL

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_A = TypeVar("_A")
_P = ParamSpec("_P")
_S = TypeVar("_S")
_T = TypeVar("_T")
_W = TypeVar("_W")
_CLOSE_S = 15.0
Unseen = Callable[[Any], None]
"""Function that takes back the result of a call whose caller was interrupted. It runs in the event loop."""
Remember = Callable[[Any], Unseen]
"""Function of an asynchronous object, called before each call. It returns the function that takes back the result of the call."""


class _Call(Generic[_T]):
    """A call that runs in an event loop, while its caller waits in another thread.

    The caller waits for locks. An interrupt of a wait for a Future or an Event can leave its condition in a wrong state.
    """

    def __init__(self, work: Coroutine[Any, Any, _T], unseen: Unseen | None = None) -> None:
        self.work = work
        self._unseen = unseen
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[_T] | None = None
        self._running = _locked()
        """Lock that is free when the call has ended."""
        self._taking_back = _locked()
        """Lock that is free when an interrupted call has ended, and its result is taken back."""
        self._is_interrupted = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        assert self._loop is not None
        self._task = self._loop.create_task(self.work)
        self._task.add_done_callback(lambda _: self._running.release())

    def result(self, timeout_s: float | None) -> _T:
        """Wait for the result and return it. Raises TimeoutError after ``timeout_s`` seconds, None: no limit."""
        if not self._running.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimeoutError
        assert self._task is not None
        if self._task.cancelled():
            raise ClientClosedError("The client was closed during the call. Open a new client.")
        return self._task.result()

    def interrupt(self, error: BaseException) -> None:
        """Cancel the call after ``error`` has ended the wait for it, and wait until it has ended. A second call does nothing.

        A result that the caller has not seen is taken back.
        """
        task = self._task
        is_own_error = task is not None and task.done() and (task.cancelled() or task.exception() is error)
        if self._is_interrupted or is_own_error:
            return
        self._is_interrupted = True
        if self._loop is None:
            self.work.close()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)
            self._taking_back.acquire(timeout=_CLOSE_S)

    def _cancel(self) -> None:
        if self._task is None:  # the interrupt came before `start` had scheduled `_begin`
            self.work.close()
            self._taking_back.release()
            return
        self._task.cancel()
        self._task.add_done_callback(self._take_back)

    def _take_back(self, task: asyncio.Task[_T]) -> None:
        try:
            if self._unseen is not None and not task.cancelled() and task.exception() is None:
                self._unseen(task.result())
        finally:
            self._taking_back.release()


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Loop:
    """An event loop that runs in its own thread. It stops when the program ends, or with ``end``."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="liftpy-client", daemon=True)
        self._thread.start()
        self._ending = threading.Lock()
        self._lock = threading.RLock()
        """Lock between new calls and the end of the loop. After ``ended`` is set, no call starts."""
        self.ended = False

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None, unseen: Unseen | None = None) -> _T:
        """Run the coroutine ``work`` in the event loop, wait for it, and return its result.

        ``timeout_s``: time limit in seconds, None: no limit. Ctrl-C in the calling thread cancels the coroutine and waits for its end.
        If the coroutine has a result by then, ``unseen`` gets it. Raises ConfigError in a forked child.
        """
        return self.wait_for(_Call(work, unseen), timeout_s)

    def wait_for(self, call: _Call[_T], timeout_s: float | None = None) -> _T:
        """Start ``call``, wait for its result and return it, as ``run`` does."""
        try:
            self._start(call)
            return call.result(timeout_s)
        except BaseException as error:
            call.interrupt(error)
            raise

    def check_process(self) -> None:
        """Raise ConfigError in a forked child. Records that were fetched before the fork belong to the parent process."""
        if os.getpid() != self._process:
            raise ConfigError(
                "This client was opened before a fork, and its thread runs in the parent process. Open a new client "
                "in the child process."
            )

    def _start(self, call: _Call[Any]) -> None:
        self.check_process()  # before the lock: a thread of the parent process may have held it at the fork
        with self._lock:
            if self.ended:
                raise ClientClosedError("The client is closed. Open a new client.")
            if threading.current_thread() is self._thread:
                raise ConfigError(
                    "Do not call the client from one of its own callbacks: the call would wait for itself. Call it from "
                    "another thread."
                )
            call.start(self._loop)

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine that ``last`` returns, then stop the event loop.

        A second call, or a call in a forked child, does nothing.
        """
        if os.getpid() != self._process:
            return
        with self._ending:
            if self.ended:
                return
            if threading.current_thread() is self._thread:  # called by the garbage collector: do not wait
                self.ended = True
                self._loop.create_task(last()).add_done_callback(lambda _: self._loop.stop())
                return
            try:
                with contextlib.suppress(TimeoutError):
                    self.run(last(), _CLOSE_S)
            finally:
                with self._lock:
                    self.ended = True
                    self._loop.call_soon_threadsafe(self._stop)
                self._thread.join(_CLOSE_S)
                if not self._thread.is_alive():
                    self._loop.close()

    def _stop(self) -> None:
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        gathered = asyncio.gather(*left, return_exceptions=True)
        gathered.add_done_callback(lambda _: self._loop.stop())


class _SharedLoop:
    """Reference of a client and its objects to their event loop. When no object is left, the client closes."""

    def __init__(self, loop: _Loop) -> None:
        self.run = loop.run
        self.wait_for = loop.wait_for
        self.check_process = loop.check_process


class _Synchronous(Generic[_W]):
    """Base of synchronous objects. They run the methods of an asynchronous object in the event loop of the client."""

    def __init__(self, loop: _SharedLoop, wrapped: _W) -> None:
        self._loop = loop
        self._wrapped = wrapped


class _SyncContextManager(_Synchronous[_W]):
    """Synchronous object with a ``with`` block. Leaving the block does what leaving the ``async with`` block does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        wrapped: Any = self._wrapped
        self._loop.run(wrapped.__aexit__(kind, error, trace))


# ---- derivation of methods: each function takes a method of an asynchronous class ------------------------------------
def without_await(text: str) -> str:
    """Return the docstring ``text`` of an asynchronous method as one for the synchronous client, without ``await``."""
    for asynchronous, synchronous in _SYNCHRONOUS:
        text = re.sub(asynchronous, synchronous, text)
    return text


_SYNCHRONOUS = (
    (r"\basync (with|for)\b", r"\1"),
    (r"\(await (future|receipt)\)", r"\1.result()"),
    (r"\bawait (future|receipt)\b", r"\1.result()"),
    (r"\bawait ", ""),
    (r"Await it to get", "Call ``result`` to get"),
    (r"Or ``await`` it and call\s+``close``", "Or call ``close``"),
    (r", or ``await`` it and call\s+``close``", ", or call ``close``"),
    (r", or ``await`` it\b", ""),
    (r"An asynchronous iterator", "An iterator"),
)
"""Patterns of asynchronous code and of texts about it, with their replacements."""


def _named(call: Callable[_P, _T], method: Callable[..., Any]) -> Callable[_P, _T]:
    """Give the function ``call`` the name, the signature and the docstring of ``method``, and return ``call``."""
    functools.update_wrapper(call, method)
    call.__doc__ = without_await(method.__doc__ or "")
    return call


def _copy_docstring(method: Callable[..., Any]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a decorator that gives a method the docstring of ``method``, without ``await``."""

    def with_text(call: Callable[_P, _T]) -> Callable[_P, _T]:
        call.__doc__ = without_await(method.__doc__ or "")
        return call

    return with_text


def _sync_method(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]], remember: Remember | None = None
) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method that runs the coroutine method ``method`` of the asynchronous object, waits, and returns its result.

    ``remember``: takes back a result that an interrupted caller has not seen. None: nothing is to be done.
    """
    return _waiting_as(lambda _, result: result, method, remember)


def _waiting_as(
    factory: Callable[[_SharedLoop, _A], _S],
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _A]],
    remember: Remember | None = None,
) -> Callable[Concatenate[Any, _P], _S]:
    """Return a method that runs the coroutine method ``method``, waits, and wraps its result in the synchronous class ``factory``.

    ``remember``: as in ``_sync_method``.
    """
    name = method.__name__

    def call(self: _Synchronous[Any], /, *arguments: _P.args, **named: _P.kwargs) -> _S:
        async def opened() -> _A:
            return await getattr(self._wrapped, name)(*arguments, **named)  # type: ignore[no-any-return]

        unseen = None if remember is None else remember(self._wrapped)
        return factory(self._loop, self._loop.run(opened(), unseen=unseen))

    return _named(call, method)


def _close_unseen(_: object) -> Unseen:
    """Return a function that closes an object that an interrupted caller has opened and not received."""

    def close(opened: Any) -> None:
        closing = asyncio.get_running_loop().create_task(opened.close(), name="closing after an interrupt")
        _closings.add(closing)
        closing.add_done_callback(_closings.discard)

    return close


_closings: set[asyncio.Task[None]] = set()


def _calling(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method that calls ``method`` of the asynchronous object in the event loop. ``method`` is not a coroutine."""
    return _calling_as(lambda _, result: result, method)


def _calling_as(
    factory: Callable[[_SharedLoop, _A], _S], method: Callable[Concatenate[Any, _P], _A]
) -> Callable[Concatenate[Any, _P], _S]:
    """Return a method that calls ``method`` in the event loop, and wraps its result in the synchronous class ``factory``."""
    name = method.__name__

    def call(self: _Synchronous[Any], /, *arguments: _P.args, **named: _P.kwargs) -> _S:
        async def called() -> _A:
            return getattr(self._wrapped, name)(*arguments, **named)  # type: ignore[no-any-return]

        return factory(self._loop, self._loop.run(called()))

    return _named(call, method)


def _iterate(
    loop: _SharedLoop, items: AsyncIterator[_T], remember: Callable[[], Unseen] | None = None
) -> Generator[_T, None, None]:
    """Yield the items of the asynchronous iterator ``items``, which runs in the event loop ``loop``.

    Close the iterator at its end, or when the caller leaves the iteration. ``remember``: takes back an item that an interrupted caller
    has not seen. None: nothing is to be done.
    """

    async def following() -> _T | None:
        return await anext(items, None)

    try:
        while True:
            call = _Call(following(), None if remember is None else remember())
            try:
                item = loop.wait_for(call)
            except BaseException as error:  # also after the call, before the item is stored
                call.interrupt(error)
                raise
            if item is None:
                break
            yield item
    finally:
        if (close := getattr(items, "aclose", None)) is not None:
            with contextlib.suppress(ClientClosedError, ConfigError):
                loop.run(close())


def _iterating(
    method: Callable[Concatenate[Any, _P], AsyncIterator[_T]], remember: Remember | None = None
) -> Callable[Concatenate[Any, _P], Generator[_T, None, None]]:
    """Return a generator method that yields the items of the asynchronous iterator that ``method`` returns.

    ``remember``: as in ``_sync_method``.
    """
    begin = _calling(method)

    def call(self: _Synchronous[Any], /, *arguments: _P.args, **named: _P.kwargs) -> Generator[_T, None, None]:
        items = begin(self, *arguments, **named)
        return _iterate(self._loop, items, None if remember is None else functools.partial(remember, self._wrapped))

    return _named(call, method)


class _Attribute(Generic[_T]):
    """Attribute of a synchronous object that returns the attribute of the asynchronous object with an equal name.

    ``source``: property of the asynchronous class, whose docstring is copied, or the docstring itself.
    """

    def __init__(self, source: Any) -> None:
        self.__doc__ = source if isinstance(source, str) else source.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: _Synchronous[Any], owner: type) -> _T: ...

    def __get__(self, instance: _Synchronous[Any] | None, owner: type) -> Self | _T:
        return self if instance is None else getattr(instance._wrapped, self._name)


# ---- publishing ------------------------------------------------------------------------------------------------------
class SyncReceipt(Generic[_T]):
    """Future ack of records that were sent. ``send`` returns it.

    Example:
        with client.publisher("orders") as publisher:
            receipt = publisher.send(b"one")
            print(receipt.result().offset)
    """

    __slots__ = ("_coming", "_loop")

    def __init__(self, loop: _SharedLoop, coming: Awaitable[_T]) -> None:
        self._loop = loop
        self._coming = coming

    def result(self, timeout_s: float | None = None) -> _T:
        """Wait for the ack and return it.

        Args:
            timeout_s: Time to wait, in seconds. At or below 0: do not wait. Default None: until the record is acked or has
                failed.

        Returns:
            The ack. A list of ManyAck for ``send_many``.

        Raises:
            TimeoutError: No ack came within ``timeout_s``. The record is still in flight.
            LiftError: The error of the record.
        """

        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        if _is_done(self._coming):  # also after the close of the client, which needs no event loop
            return _result_of(self._coming)

        async def acked() -> _T:
            coming = self._coming
            async with asyncio.timeout(timeout_s):  # a canceled wait does not cancel the ack
                return await (asyncio.shield(coming) if isinstance(coming, asyncio.Future) else coming)

        return self._loop.run(acked())


def _is_done(coming: Awaitable[Any]) -> bool:
    if isinstance(coming, asyncio.Future):
        return coming.done()
    return isinstance(coming, Receipt | ManyReceipt) and coming.done


def _result_of(done: Awaitable[_T]) -> _T:
    """Return the result of a future or receipt that is done, or raise its error, in any thread."""
    try:
        next(done.__await__())
    except StopIteration as stop:
        result: _T = stop.value
        return result
    raise AssertionError("Internal error: the receipt is not done. Please report it.")


class SyncPublisher(_SyncContextManager[Publisher]):
    """``Publisher`` without asyncio. Create it with ``client.publisher``."""

    in_flight = _Attribute[int](Publisher.in_flight)
    in_flight_bytes = _Attribute[int](Publisher.in_flight_bytes)
    send = _waiting_as(SyncReceipt[PublishAck], Publisher.send)
    post = _sync_method(Publisher.post)
    publish = _sync_method(Publisher.publish)
    flush = _sync_method(Publisher.flush)
    close = _sync_method(Publisher.close)


class SyncProducer(_SyncContextManager[Producer]):
    """``Producer`` without asyncio. Create it with ``client.producer``.

    Use ``send_many`` for many records: each call switches to another thread.
    """

    name = _Attribute[str]("Id of the producer.")
    failure = _Attribute[LiftError | None](Producer.failure)
    source_uid = _Attribute[str](Producer.source_uid)
    partitions = _Attribute[int](Producer.partitions)
    used_partitions = _Attribute[int](Producer.used_partitions)
    unanswered = _Attribute[tuple[int, int]](Producer.unanswered)
    resends = _Attribute[int](Producer.resends)
    begin_after = _Attribute[int](Producer.begin_after)
    round_partitions = _Attribute[int](Producer.round_partitions)
    left_out = _Attribute[int](Producer.left_out)
    next_sequence = _calling(Producer.next_sequence)
    send = _waiting_as(SyncReceipt[PublishAck], Producer.send)
    send_many = _waiting_as(SyncReceipt[list[ManyAck]], Producer.send_many)
    send_columns = _waiting_as(SyncReceipt[list[ManyAck]], Producer.send_columns)
    end_round = _sync_method(Producer.end_round)
    flush = _sync_method(Producer.flush)
    close = _sync_method(Producer.close)


# ---- reading ---------------------------------------------------------------------------------------------------------
class SyncConsumer(_Synchronous[Consumer]):
    """``Consumer`` without asyncio. Create it with ``client.consume``."""

    backwards = _Attribute[bool]("True if the consumer reads the newest record first.")
    bounds = _Attribute[Bounds | None]("Bounds of the partition when reading began. None before the first answer.")
    passed_offset = _Attribute[int | None](Consumer.passed_offset)
    has_missed_tombstones = _Attribute[bool](Consumer.has_missed_tombstones)
    begin = _sync_method(Consumer.begin)
    getone = _sync_method(Consumer.getone, Consumer._remember)
    getmany = _sync_method(Consumer.getmany, Consumer._remember)
    lag = _sync_method(Consumer.lag)
    position = _sync_method(Consumer.position)
    seek = _sync_method(Consumer.seek)
    batches = _iterating(Consumer.batches, Consumer._remember)

    @_copy_docstring(Consumer.records)
    def records(self) -> Iterator[Record]:
        return iter(self)

    def __iter__(self) -> Iterator[Record]:
        handed_on = self._wrapped._handed_on
        last = handed_on.last
        with contextlib.closing(self.batches()) as batches:
            for batch in batches:
                handed_on.last = last  # the position follows the last record, so that other methods continue there
                for record in reversed(list(batch.records())) if self._wrapped.backwards else batch.records():
                    if handed_on.last is not last:
                        break  # `seek` has ended this iteration
                    handed_on.last = last = record
                    yield record


class SyncManyConsumer(_SyncContextManager[ManyConsumer]):
    """``ManyConsumer`` without asyncio. Create it with ``client.consume_many``.

    Use it with ``with``. Only one thread may read at a time.
    """

    places = _Attribute[list[Place]](ManyConsumer.places)
    pause = _calling(ManyConsumer.pause)
    resume = _calling(ManyConsumer.resume)
    batches = _iterating(ManyConsumer.batches, ManyConsumer._remember)
    next = _sync_method(ManyConsumer.next, ManyConsumer._remember)
    next_record = _sync_method(ManyConsumer.next_record, ManyConsumer._remember)
    positions = _sync_method(ManyConsumer.positions)
    positions_text = _sync_method(ManyConsumer.positions_text)
    lag = _sync_method(ManyConsumer.lag)
    close = _sync_method(ManyConsumer.aclose)

    def __enter__(self) -> Self:
        self._loop.run(self._wrapped.__aenter__())
        return self

    def __iter__(self) -> Iterator[ConsumedRecord]:
        self._loop.check_process()
        wrapped = self._wrapped
        while True:
            try:  # Python handles Ctrl-C at calls, so never between a record and its `yield`
                for record in wrapped._rest:
                    wrapped._last = record
                    yield record
                wrapped._last = wrapped._current = None
            except GeneratorExit:
                raise
            except BaseException:
                wrapped._rewind()
                raise
            call = _Call(wrapped.next(), wrapped._remember())
            try:
                batch = self._loop.wait_for(call)
                if batch is None:
                    return
                wrapped._begin_slice(batch)
            except BaseException as error:
                call.interrupt(error)
                raise


class SyncCursor(_SyncContextManager[Cursor]):
    """``Cursor`` without asyncio. Create it with ``client.cursor``."""

    name = _Attribute[str]("Name of the cursor.")
    stream = _Attribute[str]("Name of the stream.")
    fetch = _sync_method(Cursor.fetch)
    commit = _sync_method(Cursor.commit)
    consume = _waiting_as(SyncConsumer, Cursor.consume)
    close = _sync_method(Cursor.close)


# ---- groups and queues -----------------------------------------------------------------------------------------------
class SyncGroup(_SyncContextManager[Group]):
    """``Group`` without asyncio. Create it with ``client.group``."""

    name = _Attribute[str]("Name of the group.")
    owned = _Attribute[list[PartitionKey]](Group.owned)
    counters = _Attribute[Counter[str]]("Counters of errors that the member retried, by kind.")
    generation_of = _calling(Group.generation_of)
    batches = _iterating(Group.batches, Group._remember)
    take = _sync_method(Group.take, Group._remember)
    finished = _calling(Group.finished)
    into = _sync_method(Group.into)
    commit = _sync_method(Group.commit)
    close = _sync_method(Group.close)

    def __iter__(self) -> Iterator[ConsumedRecord]:
        self._loop.check_process()
        wrapped = self._wrapped

        async def following() -> ConsumedRecord | None:
            return await anext(wrapped, None)

        while True:
            try:  # Python handles Ctrl-C at calls, so never between a record and its `yield`
                while wrapped._may_return_record():
                    for record in wrapped._records or ():
                        wrapped._past, wrapped._record = wrapped._record, record
                        yield record
                        break
                    else:
                        break
            except GeneratorExit:
                raise
            except BaseException:
                wrapped._rewind()
                raise
            call = _Call(following(), wrapped._remember())
            try:
                found = self._loop.wait_for(call)
            except BaseException as error:
                call.interrupt(error)
                raise
            if found is None:
                return
            yield found


class SyncJob(_Synchronous[Job]):
    """``Job`` without asyncio. ``SyncQueue.take`` returns it in a list."""

    __slots__ = ("_loop", "_wrapped")

    record = _Attribute[Record]("The record of the job.")
    key = _Attribute[PartitionKey]("The partition of the record.")
    deliveries = _Attribute[int]("Number of deliveries, this one included.")
    lease = _Attribute[int]("Number of this delivery at the coordinator.")
    until_ns = _Attribute[int]("Monotonic time at which another worker may receive the record, in nanoseconds.")
    ack = _sync_method(Job.ack)
    nack = _sync_method(Job.nack)
    extend = _sync_method(Job.extend)
    reject = _sync_method(Job.reject)


def _settling(
    method: Callable[Concatenate[Any, Iterable[Job], _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, Iterable[SyncJob], _P], _T]:
    """Return a method that waits for ``method``, a coroutine of the queue that takes jobs, such as ``ack``."""
    settle: Callable[..., _T] = _sync_method(method)

    def call(self: SyncQueue, jobs: Iterable[SyncJob], /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        some = [getattr(job, "_wrapped", job) for job in jobs] if isinstance(jobs, Iterable) else jobs
        return settle(self, some, *arguments, **named)

    return _named(call, method)


class SyncQueue(_SyncContextManager[Queue]):
    """``Queue`` without asyncio. Create it with ``client.queue``.

    A LeaseLostError has the jobs of the asynchronous queue.
    """

    stream = _Attribute[str]("Name of the stream.")
    name = _Attribute[str]("Name of the queue.")
    problem = _Attribute[str]("Why a record cannot be stored as a dead letter now. '': no problem.")
    counters = _Attribute[Counter[str]]("Counters of errors that the worker retried, by kind.")
    take = _waiting_as(lambda loop, jobs: [SyncJob(loop, job) for job in jobs], Queue.take, Queue._remember)
    ack = _settling(Queue.ack)
    nack = _settling(Queue.nack)
    extend = _settling(Queue.extend)
    reject = _settling(Queue.reject)
    close = _sync_method(Queue.close)

    def __iter__(self) -> Iterator[SyncJob]:
        for job in _iterate(self._loop, self._wrapped, self._wrapped._remember):
            yield SyncJob(self._loop, job)


# ---- administration --------------------------------------------------------------------------------------------------
class SyncAdmin(_Synchronous[Admin]):
    """``Admin`` without asyncio. ``client.admin`` is one."""

    create_stream = _sync_method(Admin.create_stream)
    until_ready = _sync_method(Admin.until_ready)
    plan_stream = _sync_method(Admin.plan_stream)
    stream = _sync_method(Admin.stream)
    list_streams = _sync_method(Admin.list_streams)
    alter_stream = _sync_method(Admin.alter_stream)
    add_partitions = _sync_method(Admin.add_partitions)
    plan_partitions = _sync_method(Admin.plan_partitions)
    delete_stream = _sync_method(Admin.delete_stream)
    truncate_before = _sync_method(Admin.truncate_before)
    purge = _sync_method(Admin.purge)
    pause = _sync_method(Admin.pause)
    resume = _sync_method(Admin.resume)
    elect_leader = _sync_method(Admin.elect_leader)
    reassign = _sync_method(Admin.reassign)
    reassign_all = _sync_method(Admin.reassign_all)
    set_node = _sync_method(Admin.set_node)
    reset_node = _sync_method(Admin.reset_node)
    remove_node = _sync_method(Admin.remove_node)
    change_controllers = _sync_method(Admin.change_controllers)
    feature_levels = _sync_method(Admin.feature_levels)
    set_feature_level = _sync_method(Admin.set_feature_level)
    default_quota = _sync_method(Admin.default_quota)
    set_default_quota = _sync_method(Admin.set_default_quota)
    session_times = _sync_method(Admin.session_times)
    set_session_times = _sync_method(Admin.set_session_times)
    describe_cluster = _sync_method(Admin.describe_cluster)
    node_status = _sync_method(Admin.node_status)
    node_health = _sync_method(Admin.node_health)
    node_glance = _sync_method(Admin.node_glance)
    ask_node = _sync_method(Admin.ask_node)
    check_node = _sync_method(Admin.check_node)
    is_connected = _Attribute[bool](Admin.is_connected)
    node_ids = _sync_method(Admin.node_ids)
    watch_majority = _sync_method(Admin.watch_majority)
    check_majority = _sync_method(Admin.check_majority)
    node_log_level = _sync_method(Admin.node_log_level)
    node_settings = _sync_method(Admin.node_settings)
    reload_settings = _sync_method(Admin.reload_settings)
    remove_data = _sync_method(Admin.remove_data)
    node_events = _sync_method(Admin.node_events)
    note_records_read = _sync_method(Admin.note_records_read)
    controller_ids = _sync_method(Admin.controller_ids)
    cluster_events = _sync_method(Admin.cluster_events)
    allow_internal = _calling(Admin.allow_internal)


class SyncGroups(_Synchronous[Groups]):
    """``Groups`` without asyncio. ``client.groups`` is one."""

    stream = _sync_method(Groups.stream)
    list = _sync_method(Groups.list)
    describe = _sync_method(Groups.describe)
    reset = _sync_method(Groups.reset)
    delete = _sync_method(Groups.delete)


class SyncQueues(_Synchronous[Queues]):
    """``Queues`` without asyncio. ``client.queues`` is one."""

    list = _sync_method(Queues.list)
    describe = _sync_method(Queues.describe)
    delete = _sync_method(Queues.delete)


class SyncCursors(_Synchronous[Cursors]):
    """``Cursors`` without asyncio. ``client.cursors`` is one."""

    list = _sync_method(Cursors.list)
    describe = _sync_method(Cursors.describe)
    set = _sync_method(Cursors.set)
    delete = _sync_method(Cursors.delete)


class SyncServices(_Synchronous[Services]):
    """``Services`` without asyncio. ``client.services`` is one."""

    query = _sync_method(Services.query)
    call = _sync_method(Services.call)


class SyncClient(_Synchronous[Client]):
    """A connection to one liftpy cluster, without asyncio. Create it with ``connect``.

    Its methods are those of ``liftpy.client.Client``. Each call waits for its result.

    Example:
        with sync.connect("nats://127.0.0.1:4222") as client:
            for record in client.consume("orders", until="end"):
                print(record.offset, record.value)
    """

    def __init__(self, thread: _Loop, wrapped: Client) -> None:
        loop = _SharedLoop(thread)
        super().__init__(loop, wrapped)
        self._closing = weakref.finalize(loop, thread.end, wrapped.close)  # also when the program ends
        self.admin = SyncAdmin(loop, wrapped.admin)
        """Streams, placement, nodes and settings of the cluster."""
        self.services = SyncServices(loop, wrapped.services)
        """Commands and queries to replicated services."""
        self.groups = SyncGroups(loop, wrapped.groups)
        """Administration of consumer groups. ``group`` joins one."""
        self.queues = SyncQueues(loop, wrapped.queues)
        """Administration of work queues. ``queue`` joins one."""
        self.cursors = SyncCursors(loop, wrapped.cursors)
        """Administration of cursors. ``cursor`` opens one."""

    def close(self) -> None:
        """Close all publishers and the connection, and stop the thread.

        Calls that wait in other threads raise ClientClosedError.
        """
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    counters = _Attribute[dict[str, int]](Client.counters)
    create_stream = _sync_method(Client.create_stream)
    stream = _sync_method(Client.stream)
    bounds = _sync_method(Client.bounds)
    offset_at = _sync_method(Client.offset_at)
    consume = _calling_as(SyncConsumer, Client.consume)
    consume_many = _calling_as(SyncManyConsumer, Client.consume_many)
    read_range = _iterating(Client.read_range)
    publish = _sync_method(Client.publish)
    publisher = _waiting_as(SyncPublisher, Client.publisher, _close_unseen)
    producer = _waiting_as(SyncProducer, Client.producer, _close_unseen)
    group = _waiting_as(SyncGroup, Client.group, _close_unseen)
    queue = _waiting_as(SyncQueue, Client.queue, _close_unseen)
    cursor = _waiting_as(SyncCursor, Client.cursor)
    processing = _calling(Client.processing)

    if not TYPE_CHECKING:  # mypy reports the old names

        def __getattr__(self, name: str) -> Any:
            return renamed.client_method(self, name)


def connect(
    nats: str | Sequence[str] = DEFAULT_URL,
    namespace: str = "liftpy",
    *,
    credentials: Credentials | None = None,
    name: str = "liftpy-client",
    timeout_s: float = 5.0,
    trace: bool | TracerProvider = False,
    **nats_options: Any,
) -> SyncClient:
    """Connect to a liftpy cluster through NATS, without asyncio.

    Args:
        nats: URL or URLs of NATS servers. Default: ``nats://127.0.0.1:4222``.
        namespace: Namespace of the cluster. Default ``liftpy``.
        credentials: User, token, keys or TLS files. Default None: no authentication.
        name: Name of this connection on the NATS server. Default ``liftpy-client``.
        timeout_s: Time limit for connecting, in seconds. Default 5.
        trace: True, or an OpenTelemetry TracerProvider, to create spans (needs ``liftpy[trace]``). Default False.
        **nats_options: More arguments for ``nats.connect``.

    Returns:
        A connected client. Use it with ``with``, or call ``close``.

    Raises:
        UnavailableError: No server accepted the connection within ``timeout_s``.
        NotAllowedError: NATS rejected the credentials.
        ConfigError: An argument is not allowed, or a credentials file cannot be used.

    Example:
        from liftpy.client import sync

        with sync.connect("nats://127.0.0.1:4222") as client:
            client.publish("orders", b"one", key=b"k")
    """

    async def opened() -> Client:
        return await _connect(
            nats, namespace, credentials=credentials, name=name, timeout_s=timeout_s, trace=trace, **nats_options
        )

    return sync_client_of(opened)


def sync_client_of(opened: Callable[[], Coroutine[Any, Any, Client]]) -> SyncClient:
    """Return a synchronous client. Its thread runs an event loop with the client that ``opened`` connects.

    Args:
        opened: Connects the asynchronous client.
    """
    loop = _Loop()
    try:
        return SyncClient(loop, loop.run(opened()))
    except BaseException:
        loop.end(_do_nothing)
        raise


async def _do_nothing() -> None:
    pass
