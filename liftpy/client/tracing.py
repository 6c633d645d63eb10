"""Implements ``connect(trace=...)``. OpenTelemetry is imported only for a traced client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy.client.factories import ClientFactories
from liftpy.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def making_of(trace: bool | TracerProvider) -> ClientFactories:
    """Return the factories for the argument ``trace``.

    Raises ConfigError if it is not a tracer provider, or if OpenTelemetry is not installed.
    """
    if trace is False:
        return ClientFactories()
    if trace is not True and not callable(getattr(trace, "get_tracer", None)):
        raise ConfigError(
            f"Invalid trace of type {type(trace).__name__}. Use True, False or a TracerProvider of OpenTelemetry."
        )
    try:
        from liftpy.client.traced import TracedFactories
    except ImportError as error:
        raise ConfigError(f"trace=True needs OpenTelemetry. Install it with `pip install 'liftpy[trace]'`. ({error})") from None
    return TracedFactories(None if trace is True else trace)
