"""Test what is checked in the class of a service: async callbacks, outputs without a stream, parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.services.rules import check_class, check_outputs, check_parameters, names_emit, parameter_in, parameters_digest
from liftpy.errors import (
    ConfigError,
    CorruptionError,
    DataDirectoryLockedError,
    DataLossError,
    FencedError,
    LiftError,
    NotAllowedError,
    NotFoundError,
    StorageError,
    UnavailableError,
    UnknownFormatError,
)
from liftpy.service import DivergedError, Identity, OutputConflictError, Record, Service, ServiceFailedError, ServiceMachine
from liftpy.testing import ServiceTest
from sidecar.cli.service import DO_NOT_RESTART, TABLE, exit_code, read_parameters, restart_helps
from tests.each import each


class Still(Service):
    """A service without outputs."""

    def __init__(self, limit: int = 5, name: str = "x", *, words: tuple[str, ...] = ()) -> None:
        self.limit, self.name, self.words = limit, name, words

    def on_start(self, snapshot: bytes | None) -> None:
        self.count = int(snapshot or 0)

    def on_record(self, record: Record) -> None:
        self.count += 1

    def take_snapshot(self) -> bytes:
        return b"%d" % self.count


class Loud(Still):
    def on_record(self, record: Record) -> None:
        self.emit(b"x")


class Louder(Loud):
    """A service whose base class emits outputs."""


class Quietened(Loud):
    def on_record(self, record: Record) -> None:
        self.count += 1


class Calling(Loud):
    def on_record(self, record: Record) -> None:
        super().on_record(record)


class Within(Still):
    def on_timer(self, name: str) -> None:
        for word in (lambda: [self.emit(b"x") for _ in range(1)],):
            word()


class OtherObject(Still):
    emits = False

    def on_record(self, record: Record) -> None:
        getattr(self, "handler").emit(b"x")  # noqa: B009


class Said(Still):
    emits = True


def plain(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def wrapper(*given: Any) -> Any:
        return callback(*given)

    return wrapper


class Wrapped(Still):
    @plain
    def on_record(self, record: Record) -> None:
        self.emit(b"x")


class Property(Still):
    @property
    def told(self) -> None:
        self.emit(b"x")


@pytest.mark.parametrize("service", [Loud, Louder, Calling, Within, Wrapped, Property, Said])
def test_service_with_outputs_but_no_output_stream_is_rejected_before_the_start(service: type[Service]) -> None:
    with pytest.raises(ConfigError, match="emits = False"):
        check_outputs(service, "")
    check_outputs(service, "outputs")


@pytest.mark.parametrize("service", [Still, Quietened, OtherObject])
def test_service_without_outputs_starts_without_an_output_stream(service: type[Service]) -> None:
    check_outputs(service, "")


def test_service_class_with_emits_false_that_emits_an_output_fails() -> None:
    class Lying(Loud):
        emits = False

    assert names_emit(Lying)
    check_outputs(Lying, "")
    with pytest.raises(ServiceFailedError, match="emits = False"):
        ServiceTest(Lying).send(b"x")


async def later(*_: object) -> None:
    raise NotImplementedError


def generated(*_: object) -> Any:
    yield


@each("name", ["on_start", "on_record", "on_timer", "on_query", "on_role_change", "take_snapshot", "check_snapshot"])
@each("callback", [later, generated, classmethod(later)])
def test_service_class_with_an_async_callback_raises_with_the_callback_name(name: str, callback: object) -> None:
    wrong = type("Wrong", (Still,), {name: callback})
    with pytest.raises(ConfigError, match="is an async function"):
        check_class(wrong)
    with pytest.raises(ConfigError, match="async function"):
        ServiceTest(wrong)


@pytest.mark.parametrize("wrong", [{"on_error": "go on"}, {"emits": "sometimes"}])
def test_service_class_attributes_with_invalid_values_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        check_class(type("Wrong", (Still,), wrong))


# ---- parameters ----------------------------------------------------------------------------------------------------------
def test_service_parameters_from_file_and_flags_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text('{"limit": 1, "words": ["a"]}')
    assert read_parameters(Still, ["limit=7", "name=7"], file) == {"limit": 7, "name": "7", "words": ["a"]}
    assert read_parameters(Still, [], None) == {}
    assert parameter_in(Still, 'words=["a", "b"]') == ("words", ["a", "b"])
    assert parameter_in(Still, "words=a=b") == ("words", "a=b")


@pytest.mark.parametrize("text", ["limit", "=1", "a b=1"])
def test_service_parameter_without_name_or_value_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        parameter_in(Still, text)


@pytest.mark.parametrize("content", ["[1]", "{", '{"nobody": 1}'])
def test_service_parameters_file_with_invalid_content_is_rejected(tmp_path: Path, content: str) -> None:
    file = tmp_path / "s.json"
    file.write_text(content)
    with pytest.raises(ConfigError):
        read_parameters(Still, [], file)


def test_service_parameters_that_are_unknown_or_missing_are_rejected() -> None:
    class Needs(Still):
        def __init__(self, must: int) -> None:
            super().__init__()

    check_parameters(Still, {"limit": 3})
    with pytest.raises(ConfigError, match=r"limit: 'int' = 5.*nobody"):
        check_parameters(Still, {"nobody": 1})
    with pytest.raises(ConfigError, match="must"):
        check_parameters(Needs, {})


def test_service_parameters_digest_ignores_values_equal_to_the_defaults() -> None:
    assert parameters_digest(Still, {}) == parameters_digest(Still, {"limit": 5}) == b""
    one = parameters_digest(Still, {"limit": 6, "name": "y"})
    assert len(one) == 16
    assert one == parameters_digest(Still, {"name": "y", "limit": 6})
    assert one != parameters_digest(Still, {"limit": 6})
    for wrong in ({"limit": float("nan")}, {"limit": object()}, {"name": "x" * 100_000}):
        with pytest.raises(ConfigError):
            parameters_digest(Still, wrong)


def test_service_machine_rejects_a_snapshot_made_with_other_parameters() -> None:
    who = Identity("s", "in", "u", 0)

    def machine(digest: bytes) -> ServiceMachine:
        return ServiceMachine(Still(), who, snapshot_interval_records=100, parameters_digest=digest)

    made = machine(b"a" * 16)
    made.start(None)
    made.apply([Record(0, 1, None, b"x", (), "", None, 1)])
    machine(b"a" * 16).start(made.snapshot())
    for other in (b"b" * 16, b""):
        with pytest.raises(ConfigError, match="other parameters"):
            machine(other).start(made.snapshot())


# ---- how it ends -----------------------------------------------------------------------------------------------------------
@each(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (ServiceFailedError("x"), 65),
        (OutputConflictError("x"), 65),
        (DataLossError("x"), 65),
        (UnknownFormatError("x"), 65),
        (CorruptionError("x"), 65),
        (FencedError("x"), 69),
        (DataDirectoryLockedError("x"), 69),
        (DivergedError("x"), 70),
        (NotAllowedError("x"), 77),
        (UnavailableError("x"), 3),
        (NotFoundError("x"), 75),
        (StorageError("x"), 75),
        (LiftError("x"), 1),
    ],
)
def test_service_exit_code_differs_for_errors_that_a_restart_can_fix(error: LiftError, code: int) -> None:
    assert exit_code(error) == code
    assert restart_helps(error) == (code not in DO_NOT_RESTART)
    assert {number: can_help for number, _, can_help, _ in TABLE}[code] == (code not in DO_NOT_RESTART)


def test_service_run_help_and_docs_contain_all_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    from sidecar.cli import main

    with pytest.raises(SystemExit):
        main.main(["service", "run", "--help"])
    said = capsys.readouterr().out
    assert "RestartPreventExitStatus=2 65 69 70 77" in said.replace("\n", " ").replace("  ", " ")
    assert all(f"{code}  " in said for code, *_ in TABLE)
    page = (Path(__file__).parents[3] / "docs/replicated-services.md").read_text()
    for code, _, can_help, _ in TABLE:
        assert f"| {code} | {'yes' if can_help else 'no'} |" in page


def test_service_command_with_outputs_but_no_output_stream_exits_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from sidecar.cli import main

    with pytest.raises(SystemExit) as left:
        main.main(["service", f"{__name__}:Loud", "--stream", "in", "--node", "n1", "--data", str(tmp_path)])
    assert left.value.code == 2
    assert "no output stream. Set --output-stream" in capsys.readouterr().err
