"""Livez, readyz and synced of real processes: one that stands still, NATS away, no quorum. Nobody is restarted for others' state."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest

from liftpy.client import sync
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from sidecar.cli.main import main
from sidecar.dev.cluster import DevCluster
from tests.until import block_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
SETTINGS = {"LIFTPY_REPLICATION_SESSION_S": "3", "LIFTPY_LOG_LEVEL": "warning"}


def asked(cluster: DevCluster, node: str, path: str) -> tuple[int, str]:
    """(status, body); 0: nobody answered."""
    try:
        with urllib.request.urlopen(cluster.nodes[node].status_url + path, timeout=0.5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def row(cluster: DevCluster, node: str) -> tuple[int, int, int]:
    """(livez, readyz, synced)"""
    return tuple(asked(cluster, node, path)[0] for path in ("/livez", "/readyz", "/readyz?synced"))  # type: ignore[return-value]


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0), capsys.readouterr().out


def check_upgrade(capsys: pytest.CaptureFixture[str], *url: str) -> None:
    """A new cluster is at the newest level: there is nothing to finalize, and nothing blocks a return to the level before."""
    level = SUPPORTED_LEVELS.most
    code, said = command(capsys, "upgrade", "check", *url)
    assert (code, said.count("[+]"), f"level {level} is active, nothing to finalize" in said) == (0, 5, True), said
    assert command(capsys, "upgrade", "finalize", *url) == (0, f"The current level is already {level}.\n")
    code, said = command(capsys, "upgrade", "finalize", "--level", str(level + 1), "--json", *url)
    assert (code, json.loads(said)["done"], json.loads(said)["level"]) == (1, False, level)
    code, said = command(capsys, "upgrade", "report", "--json", *url)
    report = json.loads(said)
    assert (code, report["level"], {n: shown["speaks"] for n, shown in report["nodes"].items()}) == (
        0, level, {f"n{number}": [SUPPORTED_LEVELS.least, level] for number in (1, 2, 3)},
    )  # fmt: skip
    assert report["in_the_way_back"] == []
    restored = f"Level {level - 1} can be restored. The current level is {level}.\n"
    assert command(capsys, "upgrade", "revert", "--dry-run", *url) == (0, restored)


def test_health_endpoints_report_a_node_without_quorum_as_live_but_not_ready(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with DevCluster(3, settings=SETTINGS) as cluster:
        url = ("--nats", cluster.nats_url)
        with sync.connect(cluster.nats_url) as client:
            client.create_stream("s", "ev", replicas=3)
        for node in cluster.nodes:
            block_until(lambda node=node: row(cluster, node) == (200, 200, 200), "all is well")
        code, said = command(capsys, "health", "--synced", "--cluster", "--probe", *url)
        assert (code, said.count("[+]")) == (0, 7), said
        assert command(capsys, "node", "can-stop", "n1", *url) == (0, "n1 can stop\n")
        port = cluster.nodes["n2"].status_url.rpartition(":")[2]
        assert command(capsys, "health", "--live", "--status-port", port)[0] == 0

        monkeypatch.setattr("sidecar.cli.top.EVERY_S", 0.1)
        seen = json.loads(command(capsys, "top", "--once", "--json", *url)[1])
        assert (seen["verdict"], [shown["state"] for shown in seen["rows"]]) == ({"word": "OK", "reasons": []}, ["live"] * 3)

        check_upgrade(capsys, *url)

        cluster.nodes["n2"].send(signal.SIGSTOP)
        block_until(lambda: "DEGRADED" in command(capsys, "top", "--once", *url)[1], "top says that n2 is silent, then fenced")
        assert (row(cluster, "n1"), row(cluster, "n2"), row(cluster, "n3")) == ((200, 200, 200), (0, 0, 0), (200, 200, 200))
        assert command(capsys, "health", "--node", "n2", *url)[0] == 3
        block_until(lambda: command(capsys, "node", "can-stop", "n1", *url)[0] == 1, "the group would lose its majority")
        code, said = command(capsys, "upgrade", "check", *url)
        assert (code, "[-] n2: does not answer" in said) == (1, True), said
        reasons = json.loads(command(capsys, "node", "can-stop", "n1", "--json", *url)[1])["reasons"]
        assert any("metadata group" in reason for reason in reasons)
        cluster.nodes["n2"].send(signal.SIGCONT)
        block_until(lambda: row(cluster, "n2") == (200, 200, 200), "it goes on")

        assert cluster.nats is not None
        cluster.nats.kill()
        for node in cluster.nodes:
            block_until(lambda node=node: row(cluster, node)[1] == 503, "not ready without NATS")
            assert asked(cluster, node, "/livez") == (200, "ok\n")
            assert "[-] nats: not connected" in asked(cluster, node, "/readyz?verbose")[1]
        cluster.nats.restart()
        for node in cluster.nodes:
            block_until(lambda node=node: row(cluster, node) == (200, 200, 200), "all is well again")
        assert not cluster.ended_nodes(), "and nobody was restarted"
        expected = {("node_registered", f"n{n}") for n in (1, 2, 3)} | {("node_fenced", "n2"), ("node_unfenced", "n2")}

        def events() -> list[dict[str, Any]]:
            return [json.loads(line) for line in command(capsys, "events", "--json", *url)[1].splitlines()]

        block_until(
            lambda: expected <= {(event["kind"], event.get("node", "")) for event in events()}, "the events are written"
        )
        told = events()
        assert {event["request"] for event in told if event["kind"] == "request"} == {"setFeatureLevel", "createStream"}
        places = [(event["index"], event["number"]) for event in told]
        assert places == sorted(set(places))

        for node in ("n2", "n3"):
            cluster.nodes[node].kill()
        block_until(lambda: row(cluster, "n1") == (200, 503, 503), "no quorum")
        assert "[-] metadata: nothing heard" in asked(cluster, "n1", "/readyz")[1]
        assert command(capsys, "health", "--node", "n1", *url)[0] == 1
        assert command(capsys, "health", "--cluster", *url)[0] == 3
