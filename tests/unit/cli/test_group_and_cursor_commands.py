"""``liftpy group`` and ``liftpy cursor`` against a cluster in memory: a change is shown, confirmed, and then made."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.testing.memory import MemoryCluster, memory_cluster
from sidecar.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster() as made:
        with made.sync_client() as client:
            client.create_stream("orders", "shop.orders")
            for number in range(10):
                client.publish("orders", b"%d" % number)
        yield made


@pytest.fixture
def run(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command: its exit code, what it printed, and its errors. ``answer``: to a prompt."""
    monkeypatch.setattr("sidecar.cli.session.connect", lambda *_, **__: cluster.client())

    def command(*words: str, answer: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        with pytest.raises(SystemExit) as left:
            main(list(words))
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return command


@pytest.fixture(params=["cursor", "group"])
def noun(request: pytest.FixtureRequest, cluster: MemoryCluster) -> str:
    """The noun of the command. A cursor or a group ``nightly`` is at offset 4 of ``orders``."""
    with cluster.sync_client() as client:
        uid = client.stream("orders").uid
        at = {PartitionKey("orders", uid, 0): 4}
        (client.cursors.set if request.param == "cursor" else client.groups.reset)("nightly", at)
    return str(request.param)


def change_of(noun: str) -> tuple[str, ...]:
    """Return the words that set the position of ``nightly`` to 7."""
    return (noun, "set" if noun == "cursor" else "reset", "nightly", "--stream", "orders", "--to", "7")


def positions(run: Run, noun: str) -> list[int]:
    """Return the committed positions of ``nightly``."""
    shown = json.loads(run(noun, "show", "nightly", "--json")[1])
    return [at["position"] for at in (shown if noun == "cursor" else shown["positions"])]


def test_group_or_cursor_position_change_with_dry_run_keeps_the_position(run: Run, noun: str) -> None:
    code, out, err = run(*change_of(noun), "--dry-run")
    assert (code, err) == (0, "")
    assert ["orders/0", "4", "7"] in [line.split() for line in out.splitlines()]
    assert "nothing was done" in out
    assert positions(run, noun) == [4]


def test_group_or_cursor_position_change_without_yes_option_requires_a_confirmation(run: Run, noun: str) -> None:
    code, _, err = run(*change_of(noun), answer="n\n")
    assert (code, positions(run, noun)) == (130, [4])
    assert "nightly?" in err
    code, out, _ = run(*change_of(noun), answer="y\n")
    assert (code, positions(run, noun)) == (0, [7])
    assert out.splitlines()[-1] == ("cursor nightly set" if noun == "cursor" else "group nightly reset")


def test_group_or_cursor_position_change_with_yes_option_shows_no_prompt(run: Run, noun: str) -> None:
    code, _, err = run(*change_of(noun), "--yes")
    assert (code, err, positions(run, noun)) == (0, "", [7])


def test_group_or_cursor_delete_with_dry_run_or_without_confirmation_keeps_the_positions(run: Run, noun: str) -> None:
    assert run(noun, "delete", "nightly", "--dry-run")[0] == 0
    assert run(noun, "delete", "nightly", answer="n\n")[0] == 130
    assert positions(run, noun) == [4]


def test_group_or_cursor_delete_with_yes_option_deletes_the_positions(run: Run, noun: str) -> None:
    code, out, err = run(noun, "delete", "nightly", "--yes")
    assert (code, err, out.splitlines()[-1]) == (0, "", f"{noun} nightly deleted")
    code, _, err = run(noun, "show", "nightly", "--json")
    assert code == 1
    assert "NOT_FOUND" in err
