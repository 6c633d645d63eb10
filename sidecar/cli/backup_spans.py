"""Spans of ``liftpy backup create``, ``restore`` and ``drill``: one for each command that is told to, one below it for each step.

They go where a node's go, by the same thread and within the same bounds; at the end they are waited for, for a second at most.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftpy.backup.manifest import Manifest
from liftpy.errors import ConfigError, LiftError
from liftpy.trace.budget import SPANS_PER_S, SpanBudget
from liftpy.trace.spans import Attributes
from liftpy.trace.steps import StepSpans
from sidecar.settings import Target

if TYPE_CHECKING:
    from sidecar.tracing.exporting import Exporter

F = TypeVar("F", bound=Callable[..., Any])


def trace_options(command: F) -> F:
    """--trace and --trace-endpoint, as of a node."""
    command = click.option(
        "--trace-endpoint", default="", envvar="LIFTPY_TRACE_ENDPOINT", metavar="URL",
        help="Of the collector.  [default: as OTEL_EXPORTER_OTLP_ENDPOINT says]",
    )(command)  # fmt: skip
    return click.option(
        "--trace", type=click.Choice(["off", "otlp"]), default="off", show_default=True, envvar="LIFTPY_TRACE",
        help="otlp: a span of it, and one for each step, to an OpenTelemetry collector.",
    )(command)  # fmt: skip


def said_of(manifest: Manifest) -> Attributes:
    """A backup, as attributes."""
    return {
        "liftpy.backup": manifest.backup,
        "liftpy.streams": len(manifest.streams),
        "liftpy.partitions": sum(len(stream.partitions) for stream in manifest.streams),
        "liftpy.bytes": manifest.size_bytes,
    }


@contextmanager
def traced(
    name: str, target: Target, trace: str, endpoint: str, exporter: Callable[[], Exporter] | None = None
) -> Iterator[StepSpans]:
    """Around the work, which is told of each step. What it raises is its error. Raises ConfigError where packages are missing."""
    spans = StepSpans(name, time.time_ns)
    if trace == "off":
        yield spans
        return
    try:
        from sidecar.tracing.exporting import SpanThread, otlp_exporter
    except ImportError as error:
        raise ConfigError(f"trace = {trace!r} needs `pip install liftpy[otlp]`: {error}") from None
    made = exporter() if exporter is not None else otlp_exporter(endpoint)
    thread = SpanThread(made, f"{name}-{os.getpid()}", target.namespace, SpanBudget(SPANS_PER_S))
    said = ""
    try:
        yield spans
    except BaseException as error:
        said = (str(error) if isinstance(error, LiftError) else "") or type(error).__name__
        raise
    finally:
        thread.put(spans.ended(said))
        thread.close()
