"""Runs the effects of a LEADER and appends their results. Also appends offers and empty records (ticks).

``liftpy.core.services.effects`` has the rules. Handlers run in their own threads, an ``async`` one in its own event loop,
so that they delay no heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.base.rate_limits import doubled_wait_s
from liftpy.core.services.effects import Effect, result_headers, tick_headers
from liftpy.core.services.machine import ServiceMachine, effect_result
from liftpy.core.services.service import ServiceFailedError
from liftpy.errors import LiftError, PublishRejectedError
from liftpy.service.bad_record_writer import RecordWriter
from liftpy.service.instance import ServiceInstance
from liftpy.service.settings import ServiceSettings

logger = logging.getLogger("liftpy.service")

_CHECK_INTERVAL_S = 0.01
_SOON_S = 0.05
"""Precision of timers in seconds. It is also the interval at which an effect checks the outputs that it waits for."""
_IDLE_CHECK_S = 30.0
"""Interval of checks in seconds when no event wakes the runner."""
_APPLIED_WITHIN_S = 10.0
"""Time in seconds after which an effect runs again if the state has passed its result, but does not have it."""
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0


@dataclass(slots=True)
class _EffectAttempts:
    """The attempts of ``effect``.

    ``task``: running attempt. ``again_s``: monotonic time of the next one, in seconds. ``value``: result that is not appended
    yet, None: there is none. ``offset``: offset of the appended result, -1: there is none.
    """

    effect: Effect
    task: asyncio.Task[None] | None = None
    again_s: float = 0.0
    value: bytes | None = None
    offset: int = -1
    failures: int = 0


class EffectRunner:
    """Runs the effects of a LEADER, and appends their results to the input of the service."""

    def __init__(self, writer: RecordWriter, settings: ServiceSettings, instance: ServiceInstance) -> None:
        self._writer = writer
        self._settings = settings
        self._instance = instance
        self._tries: dict[int, _EffectAttempts] = {}
        self._threads = 0
        self._ticked_s = 0.0
        self._wake_event = asyncio.Event()
        self._rests_until_s = math.inf
        self.problem = ""
        """Reason why an effect has no result, for the status. '': none."""

    def wake(self) -> None:
        """Let ``run`` check for effects and due timers soon, because records were applied or the role has changed."""
        machine = self._instance.machine
        if machine is not None and self._instance.leads:
            rests_until_s = time.monotonic() + self._rest_s(machine)
            if len(machine.effects) or rests_until_s < self._rests_until_s:
                self._wake_event.set()

    async def run(self) -> None:
        """Run the effects and append ticks while this service is LEADER. This never ends."""
        try:
            while True:
                self._wake_event.clear()
                machine = self._instance.machine
                if machine is not None and self._instance.leads and not machine.failed:
                    if not machine.is_replaying:
                        self._begin(machine)
                        await self._tick(machine)
                    await asyncio.sleep(_CHECK_INTERVAL_S)  # the limit for the number of checks, however often it is woken
                    if self._tries:
                        continue
                else:
                    self._cancel_all()
                rest_s = self._rest_s(machine)
                self._rests_until_s = time.monotonic() + rest_s
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake_event.wait(), rest_s)
        finally:
            self._cancel_all()

    def _rest_s(self, machine: ServiceMachine | None) -> float:
        """Return how long ``run`` waits before it checks for new effects and due timers, in seconds."""
        if machine is None or not self._instance.leads:
            return _IDLE_CHECK_S
        if len(machine.effects):
            return _SOON_S
        if not self._settings.tick_interval_s or machine.next_timer_ns is None:
            return _IDLE_CHECK_S
        due_s = (machine.next_timer_ns - time.time_ns()) / NS_PER_S
        allowed_s = self._ticked_s + self._settings.tick_interval_s - time.monotonic()
        return min(max(due_s, allowed_s, _SOON_S), _IDLE_CHECK_S)

    def _cancel_all(self) -> None:
        for one in self._tries.values():
            if one.task is not None:
                one.task.cancel()
        self._tries.clear()
        self.problem = ""

    def _begin(self, machine: ServiceMachine) -> None:
        now_s, emitted_end = time.monotonic(), self._instance.emitted_end
        for number in [n for n, one in self._tries.items() if machine.effects.get(n) != one.effect]:
            one = self._tries.pop(number)
            if one.task is not None:
                one.task.cancel()  # it has a result, or the log has lost it and its number belongs to another effect
        if not self._tries:
            self.problem = ""
        for one in self._tries.values():
            if one.value is not None:
                self._attempt(machine, one, now_s)
        for effect in machine.effects:
            busy = sum(one.task is not None or one.value is not None for one in self._tries.values())
            if max(busy, self._threads) >= self._settings.max_concurrent_effects:
                return
            if emitted_end is not None and effect.output_count > emitted_end:
                return
            self._attempt(machine, self._tries.setdefault(effect.number, _EffectAttempts(effect)), now_s)

    def _attempt(self, machine: ServiceMachine, one: _EffectAttempts, now_s: float) -> None:
        if one.task is None and now_s >= one.again_s and machine.position > one.offset:
            one.task = asyncio.create_task(self._act(machine, one))

    async def _act(self, machine: ServiceMachine, one: _EffectAttempts) -> None:
        effect = one.effect
        try:
            if one.value is None:
                one.value = effect.payload if effect.is_offer else await self._run_handler(machine, effect)
            current = self._instance.machine
            if current is None or current.effects.get(effect.number) != effect:
                return  # the state is restored, and has not scheduled this effect again yet
            headers = result_headers(machine.identity.service, effect.number)
            one.offset = await self._writer.append(
                machine.identity.stream, machine.identity.partition, one.value, effect.key, headers, machine.identity.uid
            )
            one.value = None
            one.again_s = time.monotonic() + _APPLIED_WITHIN_S
        except Exception as error:  # the handler may raise any error
            if isinstance(error, PublishRejectedError):
                one.value = None  # no retry would store this result, so it must not keep other effects waiting
            one.failures += 1
            one.again_s = time.monotonic() + doubled_wait_s(one.failures, _FIRST_WAIT_S, _LONGEST_WAIT_S)
            what = "offer" if effect.is_offer else f"effect {effect.name!r}"
            blame = error.code if isinstance(error, LiftError) else type(error).__name__
            self.problem = f"{what} {effect.id}, try {one.failures}: {blame}: {error}"[:500]
            if one.failures in (1, 10, 100, 1000):
                logger.warning("effect failed service=%s problem=%s: retrying", machine.identity, self.problem)
        finally:
            one.task = None

    async def _run_handler(self, machine: ServiceMachine, effect: Effect) -> bytes:
        """Run ``on_effect`` of the service for ``effect`` and return its result.

        Raises the errors of the handler, and TimeoutError after ``effect_timeout_s``.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        self._threads += 1

        def tell(result: Any, error: BaseException | None) -> None:
            self._threads -= 1
            if not done.done():
                done.set_result((result, error))

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = machine.run_effect(effect)
                if inspect.iscoroutine(result):
                    result = asyncio.run(result)
            except BaseException as raised:  # such as SystemExit: it must not end the thread without an answer
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no code waits for the result
                loop.call_soon_threadsafe(tell, result, error)

        threading.Thread(target=work, daemon=True, name=f"effect {effect.number}").start()
        async with asyncio.timeout(self._settings.effect_timeout_s):
            result, error = await done
        if error is not None:
            is_ordinary = isinstance(error, Exception)
            raise error if is_ordinary else ServiceFailedError(f"on_effect raised {error!r}. Raise an Exception instead.")
        return effect_result(result)

    async def _tick(self, machine: ServiceMachine) -> None:
        """Append an empty record to the input if a timer is due and no record arrives, so that the log time advances.

        At most one record is appended per ``tick_interval_s``.
        """
        tick_interval_s, now_s = self._settings.tick_interval_s, time.monotonic()
        if not tick_interval_s or now_s - self._ticked_s < tick_interval_s or machine.next_timer_ns is None:
            return
        if machine.next_timer_ns > time.time_ns():
            return
        self._ticked_s = now_s
        identity = machine.identity
        try:
            await self._writer.append(
                identity.stream, identity.partition, b"", None, tick_headers(identity.service), identity.uid
            )
        except LiftError as error:
            self.problem = f"tick: {error.code}: {error}"
