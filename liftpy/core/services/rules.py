"""Checks the class of a service before its first record: async callbacks, outputs without a stream, wrong parameters. Pure.

Without this check, a broken rule would show only at some record, perhaps months after the start. So everything that the
class itself shows is rejected when it is loaded, with an instruction.

Outputs: ``emits`` of the class says whether it emits. If it is None, a class emits if its own code contains the name
``emit``. This guess may be wrong: a class that calls another object's ``emit`` must set ``emits = False``. The guess misses
a call by ``getattr``, or in a function outside the class. Such a call fails at the first output.

Parameters: the arguments of ``__init__``. They must be equal on all nodes and never change, because the state depends on
them. So their digest is in every snapshot (``Section.PARAMETERS``), and nodes compare it as the digest of a snapshot at
position 0.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

from liftpy.core.services.bad_records import OnError
from liftpy.core.services.service import Service
from liftpy.core.services.versions import MAX_VERSION
from liftpy.errors import ConfigError

CALLBACKS = (
    "on_start",
    "on_record",
    "on_timer",
    "on_role_change",
    "on_query",
    "on_effect_result",
    "on_version",
    "take_snapshot",
    "check_snapshot",
)
"""Names of the callbacks of a service. Only ``on_effect`` may be a coroutine."""
DIGEST_SIZE_BYTES = 16
NO_PARAMETERS = bytes(DIGEST_SIZE_BYTES)
"""Parameter digest of services without parameters."""
MAX_PARAMETERS_BYTES = 64 * 1024


def check_class(service: type[Service]) -> None:
    """Check the class of a service before it starts. Raises ConfigError if it breaks a rule, such as an ``async`` callback."""
    for name in CALLBACKS:
        if is_asynchronous(getattr(service, name)):
            raise ConfigError(
                f"{service.__name__}.{name} is an async function. Callbacks of a service must be plain functions: "
                "remove `async`."
            )
    if service.on_error not in [policy.value for policy in OnError]:
        raise ConfigError(f"Invalid {service.__name__}.on_error = {service.on_error!r}. Use 'stop' or 'skip'.")
    if type(service.version) is not int or not 1 <= service.version < MAX_VERSION:
        raise ConfigError(f"Invalid {service.__name__}.version = {service.version!r}. Use a whole number of 1 or more.")
    if service.emits not in (None, True, False):
        raise ConfigError(f"Invalid {service.__name__}.emits = {service.emits!r}. Use True, False or None.")


def is_asynchronous(callback: object) -> bool:
    """Return whether the callback is a coroutine function or a generator."""
    return any(
        is_kind(callback) for is_kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    )


def check_outputs(service: type[Service], output_stream: str) -> None:
    """Check that a service with outputs has an output stream. Raises ConfigError if not."""
    if output_stream or service.emits is False:
        return
    if service.emits or names_emit(service):
        why = "says emits = True" if service.emits else "calls emit"
        raise ConfigError(
            f"{service.__name__} {why}, but the service has no output stream. Set --output-stream to a new stream with "
            "as many partitions as the input. If the service emits nothing, set emits = False in the class."
        )


def names_emit(service: type[Service]) -> bool:
    """Return whether the code of the class contains the name ``emit``, including inherited code."""
    own = [base for base in service.__mro__ if base not in Service.__mro__]
    names = {name for base in own for name in vars(base)}
    return any("emit" in code.co_names for name in names for code in _codes(own, name))


def _codes(bases: list[type], name: str) -> Iterator[CodeType]:
    for base in bases:
        if name not in vars(base):
            continue
        value = vars(base)[name]
        code_object = inspect.unwrap(value) if callable(value) else value
        code_object = code_object.fget if isinstance(code_object, property) else getattr(code_object, "__func__", code_object)
        code = getattr(code_object, "__code__", None)
        if not isinstance(code, CodeType):
            return
        yield from _with_nested(code)
        if "__class__" not in code.co_freevars:  # the method does not call super()
            return


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)


# ---- parameters ----------------------------------------------------------------------------------------------------------
def check_parameters(service: type[Service], parameters: Mapping[str, Any]) -> None:
    """Check that ``__init__`` accepts the keywords ``parameters`` and needs no others. Raises ConfigError if not."""
    signature = inspect.signature(service)
    try:
        signature.bind(**parameters)
    except TypeError as error:
        takes = ", ".join(map(str, signature.parameters.values())) or "nothing"
        raise ConfigError(
            f"Cannot create {service.__name__}({takes}): {error}. Check --set NAME=VALUE and --settings FILE.json."
        ) from None


def parameters_digest(service: type[Service], parameters: Mapping[str, Any]) -> bytes:
    """Return the digest of the parameters in ``parameters`` whose values differ from the defaults of ``__init__``. b"": none differs.

    Raises ConfigError if they are not JSON or too large.
    """
    known = inspect.signature(service).parameters
    set_parameters = {name: value for name, value in parameters.items() if name not in known or known[name].default != value}
    if not set_parameters:
        return b""
    try:
        text = json.dumps(set_parameters, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The parameters of {service.__name__} are not JSON: {error}. Use values that JSON supports."
        ) from None
    if len(text) > MAX_PARAMETERS_BYTES:
        raise ConfigError(
            f"The parameters of {service.__name__} have {len(text)} bytes, at most {MAX_PARAMETERS_BYTES} are "
            "allowed. Pass the name of a file instead."
        )
    return hashlib.blake2b(text, digest_size=DIGEST_SIZE_BYTES).digest()


def parameter_in(service: type[Service], text: str) -> tuple[str, Any]:
    """Return (name, value) of the command-line text ``NAME=VALUE``. Raises ConfigError if the text has another form.

    The value is decoded as JSON if it is valid JSON and ``__init__`` does not declare a str.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"Invalid --set {text[:80]!r}. Use NAME=VALUE.")
    parameter = inspect.signature(service).parameters.get(name)
    if parameter is not None and parameter.annotation in (str, "str"):
        return name, value
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
