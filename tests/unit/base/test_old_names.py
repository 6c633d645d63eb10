"""Test old names: methods still work, and settings are rejected with the new name."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from liftpy.client import group_admin
from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.snapshot import Identity
from liftpy.errors import ConfigError
from liftpy.renamed import CLIENT_METHODS, COMMANDS, GROUP_FUNCTIONS, OPTIONS, SETTINGS
from liftpy.service import Record, Service
from liftpy.service.settings import ServiceSettings
from liftpy.testing.memory import memory_cluster
from sidecar.cli.main import liftpy, main
from sidecar.runtime.settings import NodeSettings, SettingsLoader, dev_environment
from tests.each import each


async def test_client_method_with_an_old_name_calls_the_new_method_and_warns() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        for old, new in CLIENT_METHODS.items():
            with pytest.warns(DeprecationWarning, match=rf"client\.{old} was renamed\. Use client\.{new}\."):
                assert getattr(client, old) == attrgetter(new)(client)
        with pytest.warns(DeprecationWarning, match="client.admin.list_streams"):
            assert await client.list_streams() == []  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match="'Client' object has no attribute 'lists_streams'"):
            _ = client.lists_streams  # type: ignore[attr-defined]


def test_sync_client_method_with_an_old_name_calls_the_new_method_and_warns() -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        with pytest.warns(DeprecationWarning, match=r"Use client\.admin\.list_streams\."):
            assert client.list_streams() == []  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match="'SyncClient' object has no attribute 'lists_streams'"):
            _ = client.lists_streams  # type: ignore[attr-defined]


@each("old", GROUP_FUNCTIONS)
def test_group_function_with_an_old_name_calls_the_new_method_and_warns(old: str) -> None:
    client = SimpleNamespace(**{kind: SimpleNamespace() for kind in ("groups", "cursors")})
    kind, name = GROUP_FUNCTIONS[old].split(".")
    setattr(getattr(client, kind), name, lambda *given, **named: (given, named))
    with pytest.warns(DeprecationWarning, match=rf"Use client\.{kind}\.{name}\."):
        function = getattr(group_admin, old)
    assert function(client, "billing", positions={}) == (("billing",), {"positions": {}})
    with pytest.raises(AttributeError, match="no attribute 'describe_groups'"):
        _ = group_admin.describe_groups


def test_renamed_settings_exist_only_with_their_new_names() -> None:
    known = {f.name for one in (NodeSettings, ReplicationConfig, StreamConfig, ServiceSettings) for f in fields(one)}
    assert set(SETTINGS.values()) <= known
    assert not set(SETTINGS) & known


@each("old", SETTINGS)
def test_keyword_argument_with_an_old_name_is_accepted_with_a_warning(old: str) -> None:
    new = SETTINGS[old]
    owner = next(one for one in (StreamConfig, ReplicationConfig, ServiceSettings, NodeSettings) if new in names_of(one))
    needed = {ServiceSettings: {"service": "a", "stream": "s", "node": "n1"}, NodeSettings: {"node_id": "n1"}}.get(owner, {})
    if needed:
        needed["data"] = Path("/data")
    default = next(f.default for f in fields(owner) if f.name == new)
    with pytest.warns(DeprecationWarning, match=f"{owner.__name__}: {old} is now called {new}") as warned:
        made = owner(**needed, **{old: default})
    assert warned[0].filename == __file__
    assert made == owner(**needed, **{new: default})
    with pytest.raises(TypeError, match=f"{old} and {new}"):
        owner(**needed, **{old: default, new: default})


def names_of(owner: type) -> set[str]:
    return {f.name for f in fields(owner)}


class Count(Service):
    emits = False

    def on_start(self, snapshot: bytes | None) -> None:
        self.count = int(snapshot or b"0")

    def on_record(self, record: Record) -> None:
        self.count += 1

    def take_snapshot(self) -> bytes:
        return b"%d" % self.count


def test_service_machine_and_memory_cluster_accept_old_keyword_arguments() -> None:
    with pytest.warns(DeprecationWarning, match="snapshot_every is now called snapshot_interval_records"):
        machine = ServiceMachine(Count(), Identity("count", "s", "u", 0), snapshot_every=1)  # type: ignore[call-arg]
    machine.start(None)
    applied = machine.apply([Record(0, 1, None, b"x", (), "s", None, 1)])
    assert [snapshot.position for snapshot in applied.snapshots] == [1]
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("s", "s")
        with pytest.warns(DeprecationWarning, match="serve: tick_s is now called tick_interval_s"):
            cluster.serve(Count, "count", "s", tick_s=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(("section", "old"), [("", "page_hosts"), ("[replication]", "probe_after")])
def test_settings_file_with_an_old_setting_name_is_rejected_with_the_new_name(tmp_path: Path, section: str, old: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f'node_id = "n1"\ndata = "/tmp"\n{section}\n{old} = 1\n')
    with pytest.raises(ConfigError, match=f"{old} was renamed. Use {SETTINGS[old]}"):
        SettingsLoader(path, {}, {}).load()


@pytest.mark.parametrize("name", ["LIFTPY_HOST_GROUPS", "LIFTPY_REPLICATION_COPY_SHARE"])
def test_environment_variable_with_an_old_name_is_rejected_with_the_new_name(name: str) -> None:
    prefix = "LIFTPY_REPLICATION_" if "REPLICATION" in name else "LIFTPY_"
    new = prefix + SETTINGS[name.removeprefix(prefix).lower()].upper()
    with pytest.raises(ConfigError, match=f"{name} was renamed. Use {new}"):
        SettingsLoader(None, {"node_id": "n1", "data": "/tmp"}, {name: "1"}).load()
    with pytest.raises(ConfigError, match=new):
        dev_environment({name: "1"})


def command_of(words: list[str]) -> click.Command | None:
    """Return the command of these words; None if there is none."""
    command: click.Command | None = liftpy
    for word in words:
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
    return command


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("old", COMMANDS)
def test_cli_command_with_an_old_name_is_rejected_with_the_new_name(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_of(COMMANDS[old].split()) is not None
    assert f"The command liftpy {old} was renamed. Use liftpy {COMMANDS[old]}." in said(old.split(), capsys)


@pytest.mark.parametrize("old", OPTIONS)
def test_cli_option_with_an_old_name_is_rejected_with_the_new_name(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    *words, option = old.split()
    command = command_of(words)
    assert command is not None
    known = {name for param in command.params for name in param.opts}
    assert OPTIONS[old].split()[0] in known
    assert option not in known
    assert f"The option {option} was renamed. Use {OPTIONS[old]}." in said([*words, option], capsys)
