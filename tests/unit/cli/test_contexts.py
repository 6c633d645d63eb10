"""``liftpy context``, connection options before the command, and completion in a shell."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from liftpy.core.base.ids import PartitionKey
from liftpy.errors import ConfigError, NotFoundError
from liftpy.nats.credentials import Credentials
from liftpy.testing.memory import MemoryCluster, memory_cluster
from sidecar.cli.main import liftpy
from sidecar.runtime.contexts import Contexts, lock_contexts
from sidecar.runtime.settings import Target, target_from
from tests.unit.cli.conftest import Run

NOWHERE = "nats://127.0.0.1:1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("LIFTPY_NATS", "LIFTPY_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def run(home: Path, run: Run) -> Run:
    return run


def target(home: Path, nats: str | None = None, context: str | None = None, **environment: str) -> Target:
    return target_from(nats, None, {}, {"XDG_CONFIG_HOME": str(home), **environment}, context=context)


def test_selected_context_sets_the_servers_and_credentials_of_commands(run: Run, home: Path) -> None:
    assert run("context", "add", "prod", "--nats", NOWHERE, "--namespace", "shop", "--creds", "prod.creds", "--select")[0] == 0
    assert target(home) == Target((NOWHERE,), "shop", Credentials(creds_file=str(Path("prod.creds").absolute())))
    assert run("context", "select", "--none")[0] == 0
    assert target(home) == Target()


def test_context_commands_at_the_same_time_lose_no_change(run: Run, home: Path) -> None:
    path, is_locked = home / "liftpy" / "contexts.json", threading.Event()

    def change() -> None:
        """Change the file as a command does that reads it before the other command begins, and writes it afterwards."""
        with lock_contexts(path) as contexts:
            is_locked.set()
            time.sleep(0.3)
            replace(contexts, values={**contexts.values, "first": {"nats": NOWHERE}}).save()

    other = threading.Thread(target=change)
    other.start()
    assert is_locked.wait(5)
    assert run("context", "add", "second", "--nats", NOWHERE)[0] == 0
    other.join()
    assert sorted(Contexts.load(path).values) == ["first", "second"]


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_selected_context_credentials_are_not_sent_to_servers_of_the_nats_option(run: Run, home: Path, way: str) -> None:
    run("context", "add", "prod", "--nats", NOWHERE, "--creds", "prod.creds", "--select")
    other = "nats://other:4222"
    found = target(home, nats=other) if way == "flag" else target(home, LIFTPY_NATS=other)
    assert found == Target((other,))


def test_context_option_overrides_liftpy_nats_and_the_selected_context(run: Run, home: Path) -> None:
    run("context", "add", "prod", "--nats", "nats://prod:4222", "--select")
    run("context", "add", "test", "--nats", "nats://test:4222")
    assert target(home, context="test", LIFTPY_NATS="nats://other:4222").nats == ("nats://test:4222",)
    assert target(home, LIFTPY_CONTEXT="test").nats == ("nats://test:4222",)
    with pytest.raises(NotFoundError, match=r"There is no context 'tset'. Contexts: prod, test\."):
        target(home, context="tset")


def test_context_file_with_a_password_is_readable_only_by_its_owner(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    (home / "nats" / "context").mkdir(parents=True)
    theirs = {"url": "nats://a:4222", "user": "ann", "password": "pass-1", "token": "", "nsc": "nsc://x", "description": "old"}
    (home / "nats" / "context" / "old.one.json").write_text(json.dumps(theirs))
    code, _, error = run("context", "add", "mine", "--from-nats", "old.one", "--select")
    assert (code, error) == (0, "liftpy does not support these settings of the NATS context and ignores them: nsc.\n")
    path = home / "liftpy" / "contexts.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert target(home).credentials == Credentials(user="ann", password="pass-1")
    for words in (["context", "list"], ["context", "list", "--json"]):
        code, out, _ = run(*words)
        assert code == 0
        assert "nats://a:4222" in out
        assert "pass-1" not in out
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        target(home)


def test_context_file_with_a_password_in_a_url_is_rejected_if_other_users_can_read_it(run: Run, home: Path) -> None:
    assert run("context", "add", "prod", "--nats", "nats://ann:pass-1@a:4222", "--select")[0] == 0
    (home / "liftpy" / "contexts.json").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        target(home)


def test_context_file_that_is_a_link_stays_one(run: Run, home: Path) -> None:
    path, kept = home / "liftpy" / "contexts.json", home / "dotfiles" / "contexts.json"
    path.parent.mkdir()
    kept.parent.mkdir()
    path.symlink_to(kept)
    assert run("context", "add", "prod", "--nats", NOWHERE)[0] == 0
    assert (path.readlink(), list(Contexts.load(kept).values)) == (kept, ["prod"])


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"contexts": 3}', b'{"contexts": {"a": {"nast": "x"}}}', b"\xff", b"[" * 100_000]
)
def test_context_file_that_is_damaged_exits_with_2_and_is_not_changed(run: Run, home: Path, content: bytes) -> None:
    (home / "liftpy").mkdir()
    path = home / "liftpy" / "contexts.json"
    path.write_bytes(content)
    for words in (["stream", "list"], ["context", "add", "x", "--nats", NOWHERE]):
        code, _, error = run(*words)
        assert code == 2
        assert f"{path} is damaged" in error
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "a b", "--nats", NOWHERE], "context 'a b' is not allowed"),
        (["add", "a"], "A context needs at least one value"),
        (["add", "a", "--nats", "localhost"], "Invalid NATS URL"),
        (["add", "a", "--creds", "\udce9"], "is not UTF-8 text"),
        (["--namespace", "\udce9", "list"], "is not UTF-8 text"),
        (["add", "a", "--user", "ann"], "user and password belong together"),
        (["add", "a", "--from-nats", "../x"], "is not a valid name of a NATS context"),
        (["add", "a", "--from-nats", "none"], "Cannot read the NATS context"),
        (["add", "kept", "--nats", "nats://b:1"], "Context 'kept' exists already"),
        (["select", "none"], "There is no context 'none'"),
        (["remove", "none"], "There is no context 'none'"),
        (["select"], "Give the name of a context"),
    ],
)  # fmt: skip
def test_context_command_with_an_invalid_value_changes_nothing(run: Run, home: Path, words: list[str], said: str) -> None:
    assert run("context", "add", "kept", "--nats", NOWHERE)[0] == 0
    before = (home / "liftpy" / "contexts.json").read_bytes()
    code, _, error = run(
        *(words[:2] if words[0].startswith("-") else ()), "context", *words[2 if words[0].startswith("-") else 0 :]
    )
    assert code in (1, 2)
    assert said in error
    assert (home / "liftpy" / "contexts.json").read_bytes() == before


def test_connection_option_after_the_command_overrides_the_option_before_the_command(run: Run) -> None:
    assert NOWHERE in run("--nats", NOWHERE, "stream", "list")[2]
    assert "127.0.0.1:2" in run("--nats", NOWHERE, "stream", "list", "--nats", "nats://127.0.0.1:2")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["log", "verify", "x"], "'liftpy log verify' has no option --nats."),
        (["sidecar"], "Put --nats after 'liftpy sidecar'."),
    ],
)
def test_command_with_an_unknown_option_exits_with_2_and_prints_the_reason(run: Run, words: list[str], said: str) -> None:
    code, _, error = run("--nats", NOWHERE, *words)
    assert code == 2
    assert said in error


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster() as made:
        with made.sync_client() as client:
            uid = client.create_stream("orders", "shop.orders").uid
            client.create_stream("owners", "shop.owners")
            client.cursors.set("batch", {PartitionKey("orders", uid, 0): 0})
        yield made


@pytest.mark.parametrize(
    ("words", "begun", "found"),
    [
        (["stream", "delete"], "or", {"orders"}),
        (["--namespace", "liftpy", "consume"], "o", {"orders", "owners"}),
        (["stream"], "del", {"delete", "delete-records"}),
        (["node", "drain"], "", {"n1", "n2", "n3"}),
        (["consume", "orders"], "--part", {"--partition"}),
        (["partition", "transfer", "orders", "--node"], "n", {"n1", "n2", "n3"}),
        (["status", "--stream"], "ord", {"orders"}),
        (["cursor", "show"], "", {"batch"}),
    ],
)
def test_shell_completion_suggests_names_from_the_cluster(
    cluster: MemoryCluster, home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], begun: str, found: set[str]
) -> None:
    monkeypatch.setattr("sidecar.cli.completion.connect", lambda *_, **__: cluster.client())
    items = ShellComplete(liftpy, {}, "liftpy", "_LIFTPY_COMPLETE").get_completions(words, begun)
    names = {item.value for item in items}
    assert names
    assert names <= found


@pytest.mark.parametrize(
    "words", [["--context"], ["stream", "list", "--context"], ["context", "select"], ["context", "remove"]]
)
def test_shell_completion_suggests_contexts(run: Run, words: list[str]) -> None:
    run("context", "add", "prod", "--nats", NOWHERE)
    run("context", "add", "test", "--nats", NOWHERE)
    items = ShellComplete(liftpy, {}, "liftpy", "_LIFTPY_COMPLETE").get_completions(words, "pr")
    assert [item.value for item in items] == ["prod"]


def test_shell_completion_without_a_cluster_suggests_no_names(home: Path) -> None:
    complete = ShellComplete(liftpy, {}, "liftpy", "_LIFTPY_COMPLETE")
    assert complete.get_completions(["--nats", NOWHERE, "stream", "delete"], "o") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_command_prints_the_script_of_the_shell(run: Run, shell: str) -> None:
    code, out, _ = run("completion", shell)
    assert code == 0
    assert f"_LIFTPY_COMPLETE={shell}_complete" in out


def test_man_page_describes_each_command(run: Run) -> None:
    code, out, _ = run("completion", "man")
    assert code == 0
    assert ".SS liftpy stream delete\\-records\n" in out
    assert not [line for line in out.splitlines() if line.startswith(("'", "..."))]


def test_context_list_as_json_is_json_in_a_locale_without_utf_8(run: Run, home: Path) -> None:
    """The path of a file had characters that another encoding lacks, or encodes as other bytes."""
    creds = "/home/jürgen/🔑.creds"
    assert run("context", "add", "prod", "--creds", creds)[0] == 0
    code, out, _ = run("context", "list", "--json")
    assert code == 0
    assert out.isascii()
    assert json.loads(out)[0]["creds_file"] == creds
