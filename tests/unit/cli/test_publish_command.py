"""``liftpy publish`` of long inputs, over the cluster in memory."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_publish_command_of_a_huge_line_reads_it_in_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user publishes a file that is no text file. Each 64 KiB once copied the whole line."""
    (tmp_path / "lines").write_bytes(b"short\n" + bytes(32 << 20))
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        began_s = time.process_time()
        code, said = publish(cluster, tmp_path / "lines", monkeypatch=monkeypatch, capsys=capsys)
        took_s = time.process_time() - began_s
    assert (code, said["published"], said["first_refused_line"]) == (1, 1, 2)
    assert took_s < 3


class _BrokenInput(io.RawIOBase):
    """Has two lines, and then an error of the device."""

    def __init__(self) -> None:
        self._left = b"one\ntwo\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def test_publish_command_with_unreadable_input_reports_the_acknowledged_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=_BrokenInput()))
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        code, said = publish(cluster, Path("-"), monkeypatch=monkeypatch, capsys=capsys)
        assert client.bounds("orders", 0).end_offset == 2
    assert (code, said["published"], said["first_refused_line"], said["last_line"]) == (1, 2, 3, 2)
    assert "Input/output error" in str(said["detail"])


def test_publish_command_of_a_paused_stream_counts_each_line_that_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "lines"
    os.mkfifo(fifo)
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")

        def write() -> None:
            with fifo.open("wb", buffering=0) as lines:
                lines.write(b"order\n" * 5000)
                while client.bounds("orders", 0).end_offset < 5000:
                    pass
                client.admin.pause("orders")
                lines.write(b"order\n" * 10)

        writer = threading.Thread(target=write)
        writer.start()
        code, said = publish(cluster, fifo, monkeypatch=monkeypatch, capsys=capsys)
        writer.join()
    assert code == 1
    assert (said["published"], said["first_refused_line"], said["last_line"]) == (5000, 5001, 5000)
    assert "PAUSED" in str(said["detail"])
    assert 0 < int(str(said["refused"])) <= 10
