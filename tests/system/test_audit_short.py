"""The short form of ``python -m tests.system.audit``, ``liftpy events`` over the same cluster, and that the judge judges."""

from __future__ import annotations

import asyncio
import json

import pytest

from liftpy.core.observe import node_events
from sidecar.cli.main import main
from sidecar.dev.cluster import DevCluster
from tests.system.audit.__main__ import SETTINGS, Outcome, run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def test_audit_stream_has_each_event_once_although_the_metadata_leader_was_killed(capsys: pytest.CaptureFixture[str]) -> None:
    with DevCluster(3, settings=SETTINGS) as cluster:
        out = asyncio.run(run(cluster, kills=1))
        assert out.wrong() == [], out.text()
        told = _told(capsys, cluster)
    places = [(event["index"], event["number"]) for event in told if event["kind"] not in node_events.KINDS]
    assert places == sorted(set(places))
    assert places[: len(out.events)] == [(event["index"], event["number"]) for event in out.events], "from the stream on"


def _told(capsys: pytest.CaptureFixture[str], cluster: DevCluster) -> list[dict[str, object]]:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["events", "--json", "--nats", cluster.nats_url])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_audit_verdict_finds_missing_duplicate_and_lost_events() -> None:
    def asked(index: int, number: int = 0, **said: str) -> dict[str, object]:
        return {"index": index, "number": number, "kind": "request", "request": "createStream", "outcome": "done", **said}

    right = Outcome(acked=[("createStream", "a")], events=[asked(1, stream="a")])
    assert right.wrong() == []
    assert len(Outcome(acked=[("createStream", "a")], events=[asked(1, stream="b")]).wrong()) == 1
    assert len(Outcome(acked=[("createStream", "a")], events=[asked(1, stream="a"), asked(2, stream="a")]).wrong()) == 1
    assert len(Outcome(acked=[("createStream", "a")], events=[asked(1, 1, stream="a")]).wrong()) == 1
    assert len(Outcome(acked=[("createStream", "a")], events=[asked(1, stream="a"), asked(1, stream="a")]).wrong()) == 3
    assert (
        len(
            Outcome(
                acked=[("createStream", "a")], events=[asked(1, stream="a"), {"index": 2, "number": 0, "kind": "gap"}]
            ).wrong()
        )
        == 1
    )
    assert len(Outcome(kills=1, dropped=1.0).wrong()) == 3
