"""``liftpy publish`` of long inputs, over the cluster in memory."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from liftpy.config import ReplicationConfig
from liftpy.testing.memory import MemoryCluster, memory_cluster
from sidecar.cli.main import main

MESSAGE_ID_BYTES = 1 << 20
"""Memory for message ids of the partition: about 5800 ids."""
LINES = 15_000


def publish(
    cluster: MemoryCluster, lines: Path, *options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, object]]:
    monkeypatch.setattr("sidecar.cli.session.connect", lambda *_, **__: cluster.client())
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["publish", "orders", str(lines), "--json", *options])
    return int(left.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("options", [[], ["--key", "k", "--header", "source=import"], ["--window", "1000"]], ids=str)
def test_publish_command_with_more_lines_than_message_ids_fit_publishes_each_line_once(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"order {number}" for number in range(LINES)]
    (tmp_path / "lines").write_text("\n".join(lines))
    with (
        memory_cluster(config=ReplicationConfig(partition_message_id_bytes=MESSAGE_ID_BYTES)) as cluster,
        cluster.sync_client() as client,
    ):
        client.create_stream("orders", "shop.orders", partitions=2)
        code, said = publish(cluster, tmp_path / "lines", "--partition", "1", *options, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 0, said
        assert (said["published"], said["refused"], said["last_line"], said["last_offset"]) == (LINES, 0, LINES, LINES - 1)
        records = islice(client.consume("orders", 1), LINES)
        assert [(record.value or b"").decode() for record in records] == lines


def test_publish_command_stops_at_a_line_that_is_too_large_after_the_first_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_text("\n".join(["short"] * 6000 + ["x" * 20_000] + ["short"] * 6000))
    with memory_cluster(max_payload=16_384) as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        code, said = publish(cluster, tmp_path / "lines", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 1
    assert (said["published"], said["refused"], said["first_refused_line"], said["last_line"]) == (6000, 1, 6001, 6000)
    assert said["error"] == "PUBLISH_REJECTED"
