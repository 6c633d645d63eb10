"""For commands of ``liftpy spark`` that need no Spark: they work in this process, or with ``--master`` in the executors of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftpy.spark.options import Access, access_of
from sidecar.cli.spark_place import SparkPlace, source_options
from sidecar.settings import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])


def optional_spark_options(function: F) -> F:
    """Add --master and --conf; the command gets ``place: SparkPlace | None``."""

    @functools.wraps(function)
    def command(*args: Any, master: str, conf: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(one.partition("=")[::2] for one in conf)
        if lacking := [name for name, value in settings.items() if not name or not value]:
            raise click.UsageError(f"--conf {lacking[0]}: say NAME=VALUE")
        if settings and not master:
            raise click.UsageError("--conf is of Spark: say --master, too")
        return function(*args, place=SparkPlace(master, settings) if master else None, **kwargs)

    command = click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")(command)
    text = "Read in the executors of a Spark, local[N] or spark://host:7077.  [default: read here, without Spark]"
    return click.option("--master", default="", metavar="MASTER", help=text)(command)  # type: ignore[return-value]


@contextmanager
def reached(target: Target, place: SparkPlace | None, name: str) -> Iterator[tuple[Access, SparkSession | None]]:
    """How to reach ``target``, and the session of ``place``, which ends with the block."""
    with source_options(target, place or SparkPlace("local", {})) as options:
        session = None if place is None else place.session(name)
        try:
            yield access_of(options), session
        finally:
            if session is not None:
                session.stop()
