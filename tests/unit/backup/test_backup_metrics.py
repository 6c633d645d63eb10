"""Test the metrics file of `liftpy backup list --metrics-file`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from liftpy.core.backup.manifest import manifest_path
from sidecar.backup.store import shown_store
from sidecar.cli.backup import TABLE
from sidecar.cli.main import liftpy
from tests.unit.backup.stored import FIRST, SECOND, two_backups

Look = Callable[..., tuple[int, dict[str, float]]]


@pytest.fixture
def looked(tmp_path: Path) -> Look:
    """Run the command on a store. Return its exit code and the metrics of the file."""

    def look(store: Path, prom: Path = tmp_path / "liftpy.prom") -> tuple[int, dict[str, float]]:
        done = CliRunner().invoke(liftpy, ["backup", "list", str(store), "--metrics-file", str(prom)], standalone_mode=False)
        if not prom.exists():
            return done.exit_code, {}
        families = list(text_string_to_metric_families(prom.read_text()))
        assert {family.name for family in families} == {f"liftpy_{name}" for name in TABLE}
        samples = [sample for family in families for sample in family.samples]
        assert {sample.labels["store"] for sample in samples} == {str(store)}
        assert list(prom.parent.glob("*.prom*")) == [prom], "nothing is left beside it"
        return done.return_value, {sample.name.removeprefix("liftpy_backup_"): sample.value for sample in samples}

    return look


def test_backup_metrics_contain_the_newest_complete_backup(tmp_path: Path, looked: Look) -> None:
    _, one, two = two_backups(tmp_path / "store")
    code, found = looked(tmp_path / "store")
    assert (code, found["valid"], found["damaged"]) == (0, 2, 0)
    assert found["newest_timestamp_seconds"] == two.created_ns / 10**9
    assert found["newest_size_bytes"] == two.size_bytes
    assert found["checked_timestamp_seconds"] > 1.7e9
    (tmp_path / "store" / manifest_path(SECOND)).write_bytes(b"{}")
    code, found = looked(tmp_path / "store")
    assert (code, found["valid"], found["damaged"]) == (1, 1, 1)
    assert found["newest_timestamp_seconds"] == one.created_ns / 10**9
    for path in (tmp_path / "store" / "pieces").rglob("*"):
        if path.is_file() and FIRST in path.name:
            path.unlink()
    _, found = looked(tmp_path / "store")
    assert (found["valid"], found["damaged"], found["newest_timestamp_seconds"]) == (0, 2, 0)


def test_backup_metrics_of_a_missing_store_contain_no_backup(tmp_path: Path, looked: Look) -> None:
    assert looked(tmp_path / "gone")[1]["newest_timestamp_seconds"] == 0


def test_backup_metrics_file_is_unchanged_if_the_store_cannot_be_read(tmp_path: Path, looked: Look) -> None:
    prom = tmp_path / "liftpy.prom"
    prom.write_text("what was")
    done = CliRunner().invoke(liftpy, ["backup", "list", "nonsense://x", "--metrics-file", str(prom)])
    assert done.exit_code
    assert prom.read_text() == "what was"


def test_backup_metrics_file_without_the_suffix_prom_is_rejected_and_not_replaced(tmp_path: Path) -> None:
    two_backups(tmp_path / "store")
    output = tmp_path / "stdout"
    output.symlink_to(tmp_path / "device")
    done = CliRunner().invoke(liftpy, ["backup", "list", str(tmp_path / "store"), "--metrics-file", str(output)])
    assert done.exit_code
    assert output.is_symlink(), "a link or a device such as /dev/stdout stays"


def test_backup_metrics_file_that_cannot_be_written_exits_with_an_error(tmp_path: Path, looked: Look) -> None:
    two_backups(tmp_path / "store")
    assert looked(tmp_path / "store", tmp_path / "gone" / "x.prom")[0]


def test_backup_metrics_contain_no_secret_of_the_url() -> None:
    assert shown_store("s3://key:secret@bucket/liftpy?endpoint=x&secret=y") == "s3://bucket/liftpy"
    assert shown_store("file:///mnt/b") == "file:///mnt/b"
    assert shown_store("/mnt/a@b?c") == "/mnt/a@b?c"
