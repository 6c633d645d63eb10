"""Test that a hundred unusual header values get the same answers as from a nats-server with JetStream."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.dev.nats_server import find_nats_server, free_ports
from tests.unit.publish.ingest_bench import Bench
from tests.unit.publish.test_message_columns import answered

pytestmark = pytest.mark.timeout(60)

NAMES = (
    "Nats-Expected-Last-Sequence", "Nats-Expected-Stream", "Nats-Rollup", "Nats-TTL", "Nats-Batch-Id", "Nats-Expected-Last-Msg-Id",
    "Nats-Expected-Last-Subject-Sequence", "Nats-Schedule", "Nats-Incr", "Nats-Msg-Id", "nats-ttl", "X", "Nats-Batch-Sequence",
    "Nats-Batch-Commit", "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Schedule-Target", "Nats-Stream-Source",
)  # fmt: skip
VALUES = (
    "",
    " ",
    "0",
    "1",
    "-1",
    "00",
    "x",
    "99999999999999999999",
    "sub",
    "all",
    "1s",
    "1h30m",
    "0s",
    "999ms",
    "never",
    "+1",
    "-1s",
    "1.5s",
)
STRICTER = {
    "Nats-Batch-Sequence": "half of a promise that is not kept here: rejected, where JetStream stores it",
    "Nats-Batch-Commit": "the same",
    "Nats-Schedule-Target": "the same",
}
"""Headers that only we reject, and why."""


class Server:
    """A nats-server with JetStream, spoken to over a socket."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        command = [str(find_nats_server()), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(1000):
            try:
                self._socket = socket.create_connection(("127.0.0.1", port), 10)
                break
            except OSError:
                if self._process.poll() is not None:
                    raise
                time.sleep(0.01)
        self._file = self._socket.makefile("rb")
        self._file.readline()
        hello = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.p 1\r\n'
        self._socket.sendall(hello)

    def request(self, subject: str, headers: bytes, payload: bytes) -> dict[str, Any]:
        """The answer's JSON."""
        if headers:
            line = b"HPUB %b _INBOX.p %d %d\r\n" % (subject.encode(), len(headers), len(headers) + len(payload))
        else:
            line = b"PUB %b _INBOX.p %d\r\n" % (subject.encode(), len(payload))
        self._socket.sendall(line + headers + payload + b"\r\n")
        while not (line := self._file.readline()).startswith((b"MSG", b"HMSG")):
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
        words = line.split()
        body = self._file.read(int(words[-1]) + 2)[:-2]
        found: dict[str, Any] = json.loads(body[int(words[-2]) if words[0] == b"HMSG" else 0 :] or b"{}")
        return found

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("jetstream"))
    yield made
    made.close()


def outcome(answer: dict[str, Any]) -> tuple[int, int] | str:
    """(code, err_code), or that it was stored."""
    error = answer.get("error")
    return "stored" if error is None else (error["code"], error["err_code"])


@pytest.mark.parametrize("name", NAMES)
async def test_unusual_jetstream_header_values_get_the_same_answers_as_from_nats_server(name: str, server: Server) -> None:
    different = []
    for number, value in enumerate(VALUES):
        stream = f"s{NAMES.index(name)}x{number}"
        made = server.request(
            f"$JS.API.STREAM.CREATE.{stream}", b"", json.dumps({"name": stream, "subjects": [f"data.{stream}"]}).encode()
        )
        assert "error" not in made, made
        headers = f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode()
        theirs = outcome(server.request(f"data.{stream}", headers, b"v"))
        ours = outcome(await answered(Bench(), headers))
        if ours != theirs and not (name in STRICTER and theirs == "stored"):
            different.append((value, ours, theirs))
    assert not different, f"(value, ours, theirs): {different}"


async def test_message_id_with_blanks_around_is_deduplicated_as_by_nats_server(server: Server) -> None:
    made = json.dumps({"name": "blanks", "subjects": ["data.blanks"]}).encode()
    assert "error" not in server.request("$JS.API.STREAM.CREATE.blanks", b"", made)
    bench = Bench()
    for line in ("a", " a", "a ", "a  ", "a "):
        headers = f"NATS/1.0\r\nNats-Msg-Id:{line}\r\n\r\n".encode()
        theirs = server.request("data.blanks", headers, b"v")
        ours = await answered(bench, headers)
        assert (ours["seq"], ours.get("duplicate", False)) == (theirs["seq"], theirs.get("duplicate", False)), line
