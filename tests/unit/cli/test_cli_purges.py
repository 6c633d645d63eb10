"""``liftpy stream purge``: what is asked for, waited for and shown."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import pytest

from liftpy.partition import Purge
from tests.unit.cli.test_cli_with_a_cluster import Cluster, cluster, run

__all__ = ["cluster"]


def test_every_partition_is_purged_once_that_is_confirmed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, out, err = run(
        capsys, "stream", "purge", "orders", "--subject", "a.>", "--key", "k\u00e9", "--before", "2026-01-31T12:00:00"
    )
    what = {"subjects": ("a.>",), "keys": ["k\u00e9".encode()], "before": datetime(2026, 1, 31, 12, tzinfo=UTC)}
    assert (code, cluster.asked) == (0, [("orders", number, dry, what) for dry in (True, False) for number in (0, 1)])
    assert "orders/0: what fits would go below 90\norders/1: what fits would go below 91\n" in err
    assert out == "orders/0: what fits goes below 90\norders/1: what fits goes below 91\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    cluster.asked.clear()
    assert run(capsys, "stream", "purge", "orders", "--key", "k")[0] == 130
    assert [dry for _, _, dry, _ in cluster.asked] == [True, True]


def test_a_purge_is_waited_for(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "stream", "purge", "orders", "--key", "k", "--partition", "1", "--yes", "--wait", "--json")
    assert (code, json.loads(out)) == (
        0, {"stream": "orders", "dry_run": False, "waited": True, "purged": [{"partition": 1, "end_offset": 91}]}
    )  # fmt: skip
    cluster.purges = (Purge(number=1, subjects=("a",), keys=(b"k",), end_offset=5),)
    code, _, err = run(capsys, "stream", "purge", "orders", "--key", "k", "--yes", "--wait", "--timeout", "0")
    assert (code, "waits for n1, n2, n3" in err) == (3, True)
    code, out, _ = run(capsys, "stream", "show", "orders")
    assert (code, "orders/1: purge of subject a, key k below 5 waits for" in out) == (0, True)
    shown = json.loads(run(capsys, "stream", "show", "orders", "--json")[1])["partitions"][0]["purges"]
    assert shown == [
        {
            "subjects": ["a"],
            "keys": ["k"],
            "end_offset": 5,
            "waits_for": list(cluster.image.streams["orders"].partitions[0].replicas),
        }
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--subject or --key"),
        (("--key", "k", "--before", "new"), "an offset or a time"),
        (("--key", "k", "--before", "7"), "--partition"),
    ],
)
def test_what_is_no_purge_is_said(
    words: tuple[str, ...], said: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "stream", "purge", "orders", "--yes", *words)
    assert (code, said in err, cluster.asked) == (2, True, [])
