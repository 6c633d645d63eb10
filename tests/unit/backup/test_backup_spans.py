"""Test the spans of backups and restores: one per command and step, and none without tracing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from liftpy.errors import CorruptionError
from sidecar.backup.create import BackupResult
from sidecar.cli import backup
from sidecar.cli.backup import span_attributes, trace_steps
from sidecar.runtime.settings import Target
from tests.unit.backup.stored import SECOND, two_backups


class Kept:
    """A span exporter in memory."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.ended = threading.Event()

    def export(self, spans: Any) -> Any:
        self.spans += spans
        return SimpleNamespace(name="SUCCESS")

    def shutdown(self) -> None:
        self.ended.set()


@pytest.mark.parametrize("error", [None, CorruptionError("a file is torn"), KeyboardInterrupt()])
def test_backup_trace_is_exported_when_the_command_ends_or_fails(error: BaseException | None) -> None:
    pytest.importorskip("opentelemetry.sdk")
    kept = Kept()
    with nullcontext() if error is None else pytest.raises(type(error)):  # noqa: SIM117 - what is raised goes through
        with trace_steps("restore", Target(), "otlp", "", lambda: kept) as spans:
            spans.step("look")
            spans.step("stage")
            if error is not None:
                raise error
    assert kept.ended.is_set()
    *steps, root = sorted(kept.spans, key=lambda span: span.parent is None)
    assert (root.name, [step.name for step in steps]) == ("restore", ["look", "stage"])
    assert {step.parent.span_id for step in steps} == {root.context.span_id}
    assert (root.status.description or "") == ("" if error is None else str(error) or "KeyboardInterrupt")
    assert ("liftpy.step" in root.attributes) is (error is not None)


def test_backup_trace_export_that_hangs_does_not_delay_the_command() -> None:
    pytest.importorskip("opentelemetry.sdk")
    may_end = threading.Event()

    class Hangs(Kept):
        def export(self, spans: Any) -> Any:
            may_end.wait(60)
            return super().export(spans)

    with trace_steps("backup", Target(), "otlp", "", Hangs):
        pass
    assert not may_end.is_set(), "it was not waited for"
    may_end.set()


@pytest.mark.parametrize("what", ["create", "restore", "drill"])
def test_backup_commands_have_one_span_per_step(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk")
    _, _, manifest = two_backups(tmp_path)
    kept = Kept()
    monkeypatch.setattr("sidecar.tracing.exporting.otlp_exporter", lambda endpoint: kept if endpoint == "http://c" else None)

    async def take(client: Any, store: Any, options: Any, *, step: Any, **_: Any) -> BackupResult:
        step("pieces")
        return BackupResult(manifest, 12, 0.5)

    async def drill(client: Any, store: Any, manifest: Any, options: Any, step: Any, tell: Any) -> Any:
        step("compare")
        raise CorruptionError("n2 holds something else")

    class Restore:
        def __init__(self, *given: Any) -> None:
            self._step = given[-2]

        async def run(self) -> Any:
            self._step("serve")
            raise CorruptionError("a file is torn")

    def with_client(target: Target, work: Any, **_: Any) -> Any:
        return asyncio.run(work(None))

    monkeypatch.setattr(backup, "take_backup", take)
    monkeypatch.setattr(backup, "Restore", Restore)
    monkeypatch.setattr(backup, "drill", drill)
    monkeypatch.setattr(backup, "with_client", with_client)
    words = [what, str(tmp_path), "--trace", "otlp", "--trace-endpoint", "http://c", *(["--all"] if what == "restore" else [])]
    ended = CliRunner().invoke(backup.backup, words)
    step, root = sorted(kept.spans, key=lambda span: span.parent is None)
    names = {"create": ("backup", "pieces"), "restore": ("restore", "serve"), "drill": ("drill", "compare")}
    assert (root.name, step.name) == names[what], ended.output
    assert root.attributes["liftpy.backup"] == SECOND
    assert root.attributes["liftpy.bytes"] == manifest.size_bytes == span_attributes(manifest)["liftpy.bytes"]
    assert root.attributes.get("liftpy.written_bytes") == (12 if what == "create" else None)


def test_backup_with_tracing_off_loads_no_opentelemetry() -> None:
    code = (
        "import sys; from sidecar.cli.backup import trace_steps; from sidecar.runtime.settings import Target\n"
        "with trace_steps('backup', Target(), 'off', '') as spans: spans.step('begin')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
