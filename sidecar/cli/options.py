"""Options that several commands share: connection options, ``--json``, ``--yes``, ``--dry-run``, and values with units.

``@connection_options`` gives a command the keyword argument ``target``, ``@json_option`` gives ``as_json``. A flag wins over
the environment (LIFTPY_NATS, LIFTPY_NAMESPACE, LIFTPY_CREDS_FILE...), which wins over the selected context and the default.

A supervisor may start ``liftpy health --status-port`` every few seconds. So this module imports the settings late.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click
from click.shell_completion import CompletionItem

from liftpy.errors import ConfigError
from sidecar.cli.help import SHARED_OPTIONS, ConnectionOption, options_before, shared_option

if TYPE_CHECKING:
    from sidecar.runtime.settings import Target

F = TypeVar("F", bound=Callable[..., Any])

_CREDENTIALS = [name for name in SHARED_OPTIONS if name not in ("nats", "context", "namespace")]
_NODE_CREDENTIALS = [name for name in _CREDENTIALS if name not in ("inbox_prefix", "principal")]

_FIELDS = re.compile(r"(?<![\w/.-])(" + "|".join(name for name in _CREDENTIALS if "_" in name) + r")(?=[ ,.:;]|$)")


@contextlib.contextmanager
def _name_credential_sources(options: Mapping[str, str | None], *, has_file: bool = False) -> Iterator[None]:
    """In ConfigErrors of this block, name each credential as the user gave it: option, variable, setting in a file, or context."""

    def source(match: re.Match[str]) -> str:
        name, variable = match[1], f"LIFTPY_{match[1].upper()}"
        if options.get(name) is None and (has_file or os.environ.get(variable)):
            return variable if os.environ.get(variable) else name
        if options.get(name) is None:
            from sidecar.runtime.settings import context_values

            used, values = context_values(options.get("nats"), context=options.get("context"))
            if name in values:
                return f"{name} of context {used}"
        return SHARED_OPTIONS[name][0]

    try:
        yield
    except ConfigError as error:
        error.args = (_FIELDS.sub(source, str(error)), *error.args[1:])
        raise


class BytesType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """The bytes of an argument as they were typed: keys are bytes, and need not be UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        return value if isinstance(value, bytes) else os.fsencode(value)


BYTES = BytesType()


class _UnitType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Type of an option that is a number with a unit, from ``low`` to ``high``.

    ``units``: factor of each unit, by its suffix. The suffix '' is the unit of a number without suffix.
    """

    units: ClassVar[Mapping[str, float]]
    example: str
    units_text: ClassVar[str]
    """Sentence about the units for the help of a command."""

    def __init__(self, low: float = 0, high: float = math.inf) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([A-Za-z]*)", str(value), re.ASCII)
        if match is None or match[2] not in self.units:
            self.fail(f"{value!r}: use a number with a unit, such as {self.example}", param, ctx)
        number = float(match[1]) * self.units[match[2]]
        if not self._low <= number <= self._high:
            self.fail(f"{value} is outside {self.text(self._low)} to {self.text(self._high)}", param, ctx)
        result = self.result(number)
        if number and not result:  # 0 often means that there is no limit
            self.fail(f"{value} is less than 1 byte. Use a number of whole bytes, such as {self.example}", param, ctx)
        return result

    @staticmethod
    def result(number: float) -> Any:
        """Return ``number``, which is in the base unit, as the type that the command gets."""
        return number

    @classmethod
    def text(cls, number: float) -> str:
        """Return ``number``, which is in the base unit, as text with the largest unit that gives a whole number."""
        best = max(
            (unit for unit in cls.units if unit and number % cls.units[unit] == 0), key=cls.units.__getitem__, default=""
        )
        return f"{number / cls.units.get(best, 1):g}{best}" if number else "0"


class Duration(_UnitType):
    """A duration on the command line: ``250ms``, ``90s``, ``5m``, ``1.5h``, ``7d``. A bare number is seconds."""

    name = "duration"
    units: ClassVar[Mapping[str, float]] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    example = "90s, 5m, 1.5h or 7d"
    units_text = "DURATION: a number with ms, s, m, h or d, such as 1.5s or 30d. A number without a unit is in seconds."


class Size(_UnitType):
    """A number of bytes on the command line: ``4096``, ``64KiB``, ``256MiB``, ``1GB``."""

    name = "size"
    units: ClassVar[Mapping[str, float]] = {
        "": 1, "B": 1, "kB": 1000, "KB": 1000, "MB": 10**6, "GB": 10**9, "TB": 10**12,
        "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
    }  # fmt: skip
    example = "4096, 64KiB, 256MiB or 1GB"
    units_text = (
        "SIZE: a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 64MiB. A number without a unit is in bytes."
    )

    @staticmethod
    def result(number: float) -> int:
        return round(number)


class Bandwidth(_UnitType):
    """A number of bits per second on the command line: ``100Mbit``, ``1Gbit``."""

    name = "bandwidth"
    units: ClassVar[Mapping[str, float]] = {"kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
    example = "100Mbit, 1Gbit or 2.5Gbit"
    units_text = "BANDWIDTH: a number with kbit, Mbit or Gbit (per second), such as 1Gbit."


class OutputFile(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Type of an option that names a file for output.

    The file is written at the end of the command. A path that cannot be written is rejected before the command begins.
    """

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or report a usage error if the file cannot be written. The check leaves no file behind."""
        path = Path(value)
        try:
            is_new = not path.exists()
            with path.open("ab"):
                pass
            if is_new:
                os.unlink(os.path.realpath(path))  # a link to a file that does not exist stays
        except (OSError, ValueError) as error:
            self.fail(f"Cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}. Use another path.", param, ctx)
        return path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
jetstream_option = click.option(
    "--jetstream-api",
    is_flag=False,
    flag_value="liftpy",
    default=None,
    metavar="[DOMAIN]",
    help="Answer the JetStream read API in this domain. Without a value, the domain is liftpy.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
NOTHING_DONE = "nothing was done: this is a dry run"
"""Last line of a dry run."""


def timeout_option(default: str, text: str = "Maximum time to wait.", low: float = 0.1, high: float = 3600) -> Callable[[F], F]:
    """Return the option --timeout, whose value is ``timeout_s``. ``low``, ``high``: allowed values, in seconds."""
    return click.option("--timeout", "timeout_s", type=Duration(low, high), default=default, show_default=True, help=text)


def may_act(dry_run: bool, yes: bool, question: str) -> bool:
    """Return False in a dry run. Otherwise ask for a confirmation, unless ``yes`` is set, and return True."""
    if dry_run:
        click.echo(NOTHING_DONE)
        return False
    ask_consent(yes, question)
    return True


def ask_consent(yes: bool, question: str, lines: Iterable[str] = ()) -> None:
    """Print ``lines`` and ask ``question`` on standard error, unless ``yes`` is set. Abort the command if the user disagrees."""
    if not yes:
        for line in lines:
            click.echo(line, err=True)
        click.confirm(question, abort=True, err=True)


def warn_of_unmatched(stream: str, own: Sequence[str], subjects: Iterable[str], *, which: str) -> None:
    """Print a warning for each filter in ``subjects`` that matches none of the subjects ``own`` of the partitions.

    It is no error, because restored records may have other subjects. ``which``: clause about the partitions, such as "that are read".
    """
    from liftpy.core.wire.subjects import overlaps

    for subject in subjects:
        if not any(overlaps(subject, listened) for listened in own):
            listens = own[0] if len(own) == 1 else f"{own[0]} to {own[-1]}"
            click.echo(
                f"Warning: --subject {subject} matches no subject of the partitions {which}: {stream} stores {listens}.",
                err=True,
            )


def credential_options(function: F) -> F:
    """Add only the options for credentials to a command that runs nodes. The command gets ``credentials: Credentials``."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        from sidecar.runtime.settings import credentials_from

        credential_values = {name: kwargs.pop(name) for name in _NODE_CREDENTIALS}
        with _name_credential_sources(credential_values, has_file=True):
            return function(*args, credentials=credentials_from(credential_values), **kwargs)

    return add_credential_options(command)  # type: ignore[return-value]


def add_credential_options(function: F) -> F:
    """Add the options for credentials of a node to a command. The command gets each value by name."""
    for name in reversed(_NODE_CREDENTIALS):
        flag, metavar, text = SHARED_OPTIONS[name]
        function = click.option(flag, name, cls=ConnectionOption, metavar=metavar, help=text)(function)
    return function


def connection_options(function: F) -> F:
    """Add the connection options to a command. The command gets ``target: sidecar.runtime.settings.Target``."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        with selected_target({name: kwargs.pop(name) for name in SHARED_OPTIONS}) as target:
            return function(*args, target=target, **kwargs)

    return add_shared_options(command)  # type: ignore[return-value]


def connection_and_internal_options(function: F) -> F:
    """Add the connection options and --internal to a command. ``target`` has the value of --internal, too."""

    @functools.wraps(function)
    def command(*args: Any, target: Target, internal: bool, **kwargs: Any) -> Any:
        return function(*args, target=replace(target, internal=internal), **kwargs)

    text = "Include internal streams (names that start with _)."
    return connection_options(click.option("--internal", is_flag=True, help=text)(command))  # type: ignore[return-value]


def add_shared_options(function: F) -> F:
    """Add the connection options to a command. The command gets each value by name, None if the user did not give it."""
    for name in reversed(SHARED_OPTIONS):
        function = shared_option(name)(function)
    return function


@contextlib.contextmanager
def selected_target(given: Mapping[str, str | None]) -> Iterator[Target]:
    """Yield the cluster that the connection options of the command select. An option before the command counts if it is not ``given``.

    ``given``: values of the options after the command, by the names in SHARED_OPTIONS. None: not given.

    Raises:
        ConfigError: A value is not valid.
        NotFoundError: There is no such context.
    """
    before = options_before(click.get_current_context(silent=True))
    values = {name: value if value is not None else before.get(name) for name, value in given.items()}
    with _name_credential_sources(values):
        yield target_of(values)


def target_of(options: Mapping[str, str | None]) -> Target:
    """Return the cluster that ``options`` select: values of the connection options, by the names in SHARED_OPTIONS."""
    from sidecar.runtime.settings import target_from

    flags = {name: options.get(name) for name in _CREDENTIALS}
    return target_from(options.get("nats"), options.get("namespace"), flags, context=options.get("context"))
