"""Test settings: precedence, the whole file, and errors that name the wrong setting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import ConfigError
from liftpy.nats.credentials import Credentials
from sidecar.runtime import settings
from sidecar.runtime.settings import NodeSettings, SettingsLoader, Target, address_of, target_from, unknown_variables

WHOLE = """
node_id = "n1"
data = "/var/lib/liftpy"
nats = ["nats://a:4222", "tls://b:4222"]
namespace = "prod"
controllers = ["n1", "n2", "n3"]
rack = "r1"
weight = 2
status_port = 8080
inbox_prefixes = ["_INBOX.", "_REPLY."]
[credentials]
creds_file = "/etc/node.creds"
[replication]
max_lag_time_s = 7
batch_max_records = 100
"""


def load(
    text: str | None, flags: dict[str, object] | None = None, env: dict[str, str] | None = None, folder: Path | None = None
) -> NodeSettings:
    path = None
    if text is not None:
        assert folder is not None
        path = folder / "node.toml"
        path.write_text(text)
    return SettingsLoader(path, flags or {}, env or {}).load()


def test_settings_file_with_all_settings_is_loaded(tmp_path: Path) -> None:
    settings = load(WHOLE, folder=tmp_path)
    assert (settings.node_id, settings.data, settings.nats) == (
        "n1",
        Path("/var/lib/liftpy"),
        ("nats://a:4222", "tls://b:4222"),
    )
    assert (settings.namespace, settings.controllers, settings.weight, settings.status_port) == (
        "prod",
        ("n1", "n2", "n3"),
        2.0,
        8080,
    )
    assert settings.credentials.creds_file == "/etc/node.creds"
    assert (settings.replication.max_lag_time_s, settings.replication.batch_max_records) == (7.0, 100)
    assert settings.is_controller


def test_settings_flags_override_environment_and_environment_overrides_file(tmp_path: Path) -> None:
    env = {
        "LIFTPY_NODE_ID": "n2",
        "LIFTPY_RACK": "r2",
        "LIFTPY_REPLICATION_MAX_LAG_TIME_S": "8",
        "LIFTPY_NATS": "nats://c:1,nats://d:2",
    }
    settings = load(WHOLE, {"node_id": "n3", "rack": None}, env, tmp_path)
    assert (settings.node_id, settings.rack, settings.replication.max_lag_time_s) == ("n3", "r2", 8.0)
    assert settings.nats == ("nats://c:1", "nats://d:2")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('data = "/x"', "node_id"),
        ('node_id = "n1"', "data"),
        ('node_id = "n 1"\ndata = "/x"', "node_id"),
        ('node_id = "n1"\ndata = "/x"\ncolour = "red"', "colour"),
        ('node_id = "n1"\ndata = "/x"\nweight = "heavy"', "weight"),
        ('node_id = "n1"\ndata = "/x"\nstatus_port = 1.5', "status_port"),
        ('node_id = "n1"\ndata = "/x"\nstatus_port = 99999', "status_port"),
        ('node_id = "n1"\ndata = "/x"\nnats = ["http://a"]', "nats"),
        ('node_id = "n1"\ndata = "/x"\ncontrollers = ["n1", "n1"]', "controllers"),
        ('node_id = "n1"\ndata = "/x"\ninbox_prefixes = [">"]', "inbox_prefixes"),
        ('node_id = "n1"\ndata = "/x"\n[replication]\nlease_s = 3', "replication"),
        ('node_id = "n1"\ndata = "/x"\n[replication]\nnonsense = 3', "nonsense"),
        ('node_id = "n1"\ndata = "/x"\n[credentials]\nuser = "me"', "password"),
        ("node_id = ", "node.toml"),
        ('node_id = "n1"\ndata = "/x"\ncredentials = 3', "credentials"),
        (f'node_id = "n1"\ndata = "/x"\ncontrollers = {list("abcdefgh")}', "controllers has 8 nodes, the maximum is 7"),
    ],
)
def test_settings_error_contains_the_name_of_the_wrong_setting(text: str, names: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=names):
        load(text, folder=tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": "a.*"},
        {"namespace": ""},
        {"controllers": ("n 1",)},
        {"rack": "a b"},
        {"weight": -0.1},
        {"weight": 1000.1},
        {"scrub_bytes_per_s": -1},
        {"scrub_bytes_per_s": (1 << 34) + 1},
        {"status_port": -2},
        {"status_port": 65_536},
        {"log_level": "loud"},
    ],
    ids=str,
)
def test_node_settings_with_invalid_values_are_rejected(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        NodeSettings("n1", tmp_path, **wrong)


def test_node_settings_by_default_open_no_http_port_and_disable_a_bootstrap_by_majority(tmp_path: Path) -> None:
    settings = NodeSettings("n1", tmp_path)
    assert not settings.bootstrap_majority, "a group that can't be reached is not taken for a new one"
    assert settings.elections
    assert settings.status_port < 0, "no port is open that nobody asked for"
    assert not settings.is_controller
    assert NodeSettings("n1", tmp_path, controllers=("n1",)).is_controller


def test_target_of_a_command_is_taken_from_flags_before_environment_variables() -> None:
    assert target_from(None, None, {}, {}) == Target()
    assert target_from(None, None, {}, {"LIFTPY_NATS": "nats://e:1", "LIFTPY_NAMESPACE": "x"}).nats == ("nats://e:1",)
    assert target_from("nats://f:1", "y", {}, {"LIFTPY_NATS": "nats://e:1"}) == Target(("nats://f:1",), "y")
    with pytest.raises(ConfigError):
        target_from("localhost", None, {}, {})


@pytest.mark.parametrize("text", ["perhaps", "2", "yes", ""])
def test_settings_boolean_accepts_only_true_false_1_0(text: str, tmp_path: Path) -> None:
    head = 'node_id = "n1"\ndata = "/x"\n'
    with pytest.raises(ConfigError, match=r"elections = .* is not a boolean: use true or false"):
        load(head + f'elections = "{text}"', folder=tmp_path)
    for word, value in (("true", True), ("TRUE", True), ("1", True), ("false", False), ("False", False), ("0", False)):
        assert load(head, env={"LIFTPY_ELECTIONS": word}, folder=tmp_path).elections is value
    with pytest.raises(ConfigError, match="true and false are not allowed here"):
        load(head + "weight = true", folder=tmp_path)
    with pytest.raises(ConfigError, match=r"status_port = 2\.5 is not a whole number\."):
        load(head + "status_port = 2.5", folder=tmp_path)
    for digits in ("1_000", "\u0663"):
        with pytest.raises(ConfigError, match="use the digits 0 to 9"):
            load(head, env={"LIFTPY_STATUS_PORT": digits}, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("weight = [1]", "weight = [1] is not a number."),
        (
            'nats = "nats://me:secret@h:4222\\u0007"',
            "nats = nats://***@h:*** is not a list of strings: the value has control characters.",
        ),
        (
            'nats = ["nats://me:secret@h:4222\\u0007"]',
            "nats = [...] is not a list of strings: the value has control characters.",
        ),
        ('rack = "' + "r" * 200 + '\\u0007"', "rack = '" + "r" * 79 + "... is not a string: the value has control characters"),
        (
            'rack = "' + "r" * 71 + '\\u0007"',
            "rack = '" + "r" * 71 + "\\x07' is not a string: the value has control characters",
        ),
        ("rack = true", "rack = True is not a string: true and false are not allowed here."),
        ("rack = []", "rack = [] is not a string: use a string in quotes."),
        ("controllers = [true]", "controllers = [True] is not a list of strings: use a string in quotes."),
        (
            '[credentials]\nuser = "me"\npassword = true',
            "Invalid setting in [credentials]: password = *** is not a string: true and false are not allowed here.",
        ),
        (
            "nonsense = 1",
            "Unknown setting 'nonsense'. Known settings: node_id, data, nats, namespace, controllers, rack, weight, status_port, "
            "probe_listen, dashboard_hostnames, elections, bootstrap_majority, log_level, memory_limit_bytes, log_format, "
            "metrics_streams, "
            "trace, trace_endpoint, scrub_bytes_per_s, inbox_prefixes",
        ),
    ],
)
def test_settings_error_shows_the_value_shortened_and_without_secrets(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load('node_id = "n1"\ndata = "/x"\n' + text, folder=tmp_path)
    assert str(raised.value).startswith(says)


def test_settings_empty_environment_variable_is_ignored(tmp_path: Path) -> None:
    head = 'node_id = "n1"\ndata = "/x"\nrack = "r1"\n'
    empty = {"LIFTPY_STATUS_PORT": "", "LIFTPY_RACK": "", "LIFTPY_REPLICATION_SESSION_S": ""}
    settings = load(head, env=empty, folder=tmp_path)
    assert (settings.status_port, settings.rack, settings.replication.session_s) == (-1, "r1", 2.0)
    flags: dict[str, object] = {"rack": "", "weight": None, "status_port": 0}
    settings = load(head, flags, {"LIFTPY_WEIGHT": "3", "LIFTPY_STATUS_PORT": "8080"}, tmp_path)
    assert (settings.rack, settings.weight, settings.status_port) == ("", 3.0, 0), (
        "a flag that was given counts, whatever it says"
    )


def test_settings_environment_variable_with_the_name_of_a_section_is_ignored(tmp_path: Path) -> None:
    head = 'node_id = "n1"\ndata = "/x"\n[replication]\nlease_s = 1.25\n'
    env = {"LIFTPY_CREDENTIALS": "x", "LIFTPY_REPLICATION": "x", "LIFTPY_LEASE_S": "9", "LIFTPY_REPLICATION_SESSION_S": "2.5"}
    settings = load(head, {"session_s": 99.0, "lease_s": 99.0}, env, tmp_path)
    assert (settings.replication.lease_s, settings.replication.session_s) == (1.25, 2.5)
    for name in ("node_id", "data"):
        without = "\n".join(line for line in head.splitlines() if not line.startswith(name))
        flag = name.replace("_", "-")
        with pytest.raises(ConfigError) as raised:
            load(without, folder=tmp_path)
        assert (
            str(raised.value) == f"The setting {name} is missing. Set --{flag} or LIFTPY_{name.upper()}, or set it in the file."
        )


def test_settings_numbers_home_paths_and_comma_lists_are_converted_to_their_types(tmp_path: Path) -> None:
    settings = load('node_id = 7\ndata = "~/x"\nnats = " nats://a:1 ,, nats://b:2,"\nrack = 3\nweight = 2', folder=tmp_path)
    assert (settings.node_id, settings.rack, settings.weight) == ("7", "3", 2.0)
    assert settings.data == Path("~/x").expanduser()
    assert settings.nats == ("nats://a:1", "nats://b:2")


# ---- what one process says to another ------------------------------------------------------------------------------------


def test_child_process_environment_passes_credentials_and_addresses() -> None:
    told = settings.credentials_environment(Credentials(user="u", password="secret"))
    assert told == {"LIFTPY_USER": "u", "LIFTPY_PASSWORD": "secret"}
    told |= settings.settings_environment(nats="nats://u:p@h:1")
    loaded = load(None, {"node_id": "n1", "data": "/x"}, told)
    assert (loaded.credentials, loaded.nats) == (Credentials(user="u", password="secret"), ("nats://u:p@h:1",))


@pytest.mark.parametrize(
    ("told", "count"),
    [("", 0), ("0", 0), ("7", 7), ("1000", 1000), ("1001", 1000), ("-1", 0), ("x", 0), ("\u0663", 0), ("1.5", 0)],
)
def test_consecutive_restart_count_is_read_from_the_environment(told: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.restarts_in_a_row({"LIFTPY_RESTARTS_IN_A_ROW": told}) == count
    monkeypatch.setenv("LIFTPY_RESTARTS_IN_A_ROW", told)
    assert settings.restarts_in_a_row() == count
    assert settings.restarts_in_a_row({}) == 0
    monkeypatch.setenv("LIFTPY_NODE_ID", "n1")
    again = settings.restarted_environment(count + 1)
    assert again == {**os.environ, "LIFTPY_RESTARTS_IN_A_ROW": str(min(count + 1, 1000))}
    assert again["LIFTPY_NODE_ID"] == "n1", "the same node"


@pytest.mark.parametrize(
    ("given", "address"),
    [("10.0.0.7:8224", ("10.0.0.7", 8224)), ("[fd00::7]:1", ("fd00::7", 1)), ("fd00::7:65535", ("fd00::7", 65535))],
)
def test_probe_listen_address_is_parsed(given: str, address: tuple[str, int], tmp_path: Path) -> None:
    settings = load(f'node_id = "n1"\ndata = "/x"\nprobe_listen = "{given}"', folder=tmp_path)
    assert address_of(settings.probe_listen) == address


@pytest.mark.parametrize("given", ["8224", ":8224", "host:", "host:0", "host:65536", "host:8a", "a b:1", "a/b:1", "host:١"])
def test_probe_listen_with_invalid_address_is_rejected(given: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"probe_listen = .*HOST:PORT, such as 10\.0\.0\.7:8224"):
        load(f'node_id = "n1"\ndata = "/x"\nprobe_listen = "{given}"', folder=tmp_path)


def test_unknown_environment_variables_are_reported_with_the_nearest_known_name() -> None:
    given = {
        "LIFTPY_LOG_LEVLE": "debug", "LIFTPY_REPLICATION_LEASE": "2", "LIFTPY_XYZ": "1", "LIFTPY_EMPTY": "", "OTHER_LEVLE": "1",
        "LIFTPY_LOG_LEVEL": "debug", "LIFTPY_PASSWORD": "x", "LIFTPY_CONTEXT": "a", "LIFTPY_REPLICATION_LEASE_S": "2",
        **settings.quiet_environment(),
        "LIFTPY_PORT": "tcp://10.0.0.1:80", "LIFTPY_PAGE_SERVICE_HOST": "10.0.0.1", "LIFTPY_PORT_80_TCP_ADDR": "10.0.0.1",
    }  # fmt: skip
    assert unknown_variables(given) == {
        "LIFTPY_LOG_LEVLE": "LIFTPY_LOG_LEVEL",
        "LIFTPY_REPLICATION_LEASE": "LIFTPY_REPLICATION_LEASE_S",
        "LIFTPY_XYZ": "",
    }
