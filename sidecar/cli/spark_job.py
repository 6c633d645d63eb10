"""Shared code of the ``liftpy spark`` commands: where Spark runs, and how its tasks reach the cluster.

For commands of ``liftpy spark`` that need no Spark: they work in this process, or with ``--master`` in the executors of one.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftpy.errors import ConfigError
from liftpy.spark.options import CREDENTIALS, Access, access_of
from liftpy.spark.session import is_local, local_session
from sidecar.cli.main import SIGNALED, stop_signals
from sidecar.runtime.settings import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Spark master and settings of a job."""

    master: str
    settings: dict[str, str]

    def session(self, name: str) -> SparkSession:
        """Return a Spark session. Raise ConfigError that names missing parts."""
        return local_session(name, self.master, fast_start=False, settings=self.settings)

    @contextmanager
    def open_session(self, name: str) -> Iterator[SparkSession]:
        """Return a Spark session for the time of the block."""
        session = self.session(name)
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def ends_by_signal() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this block with an exception, so that queries are stopped, and Spark with them."""
    before = {number: signal.signal(number, lambda which, _: sys.exit(SIGNALED + which)) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def spark_options(function: F) -> F:
    """Add --master and --conf. The command gets ``place: SparkPlace``."""

    @functools.wraps(function)
    def command(*args: Any, master: str, conf: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(one.partition("=")[::2] for one in conf)
        if lacking := [name for name, value in settings.items() if not name or not value]:
            raise click.UsageError(f"Invalid value for --conf: {lacking[0]}. Use NAME=VALUE.")
        return function(*args, place=SparkPlace(master, settings), **kwargs)

    command = click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting. May be repeated.")(command)
    text = "Spark master: local[N] (this machine, N cores) or a cluster such as spark://host:7077."
    return click.option("--master", default="local[*]", show_default=True, help=text)(command)  # type: ignore[return-value]


@contextmanager
def source_options(target: Target, place: SparkPlace) -> Iterator[dict[str, str]]:
    """Yield options of the format ``liftpy`` that reach ``target``.

    A password or token is in a private file of this user during the context, because a Spark plan must contain no secret.
    Raises ConfigError if tasks run on other machines, which do not have that file.
    """
    known = target.credentials
    options = {"nats": ",".join(target.nats), "namespace": target.namespace}
    options |= {option: value for name, option in CREDENTIALS.items() if (value := getattr(known, name, ""))}
    secrets = {"nats.passwordFile": known.password, "nats.tokenFile": known.token}
    secrets = {option: secret for option, secret in secrets.items() if secret}
    if secrets and not is_local(place.master):
        raise ConfigError(
            "A password or token is not available to tasks on other machines. Use --creds or --nkey with a file "
            "that exists there."
        )
    with tempfile.TemporaryDirectory(prefix="liftpy-secret-") as folder:  # readable by this user alone
        for option, secret in secrets.items():
            file = Path(folder) / option
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as writer:
                writer.write(secret)
            options[option] = str(file)
        yield options


def optional_spark_options(function: F) -> F:
    """Add --master and --conf. The command gets ``place: SparkPlace | None``."""

    @functools.wraps(function)
    def command(*args: Any, master: str, conf: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(one.partition("=")[::2] for one in conf)
        if lacking := [name for name, value in settings.items() if not name or not value]:
            raise click.UsageError(f"Invalid value for --conf: {lacking[0]}. Use NAME=VALUE.")
        if settings and not master:
            raise click.UsageError("--conf is a setting of Spark, so it needs --master.")
        return function(*args, place=SparkPlace(master, settings) if master else None, **kwargs)

    command = click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting. May be repeated.")(command)
    text = "Read in the executors of this Spark master, local[N] or spark://host:7077.  [default: read here, without Spark]"
    return click.option("--master", default="", metavar="MASTER", help=text)(command)  # type: ignore[return-value]


@contextmanager
def open_target(target: Target, place: SparkPlace | None, name: str) -> Iterator[tuple[Access, SparkSession | None]]:
    """Return how to reach ``target``, and the session of ``place`` for the time of the block."""
    with source_options(target, place or SparkPlace("local", {})) as options:
        session = None if place is None else place.session(name)
        try:
            yield access_of(options), session
        finally:
            if session is not None:
                session.stop()
