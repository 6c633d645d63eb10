"""The ``nats`` command, as tests/clients/protocol.py says: one process for each message. It shows no ``code`` of a refusal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_OPTIONS = {
    "msg_id": "Nats-Msg-Id",
    "expect_stream": "Nats-Expected-Stream",
    "expect_last": "Nats-Expected-Last-Sequence",
    "expect_last_of_subject": "Nats-Expected-Last-Subject-Sequence",
    "expect_last_msg_id": "Nats-Expected-Last-Msg-Id",
}
_STORED = re.compile(r"Stored in Stream: (\S+) Sequence: (\d+)(?: Duplicate: (true))?")
_REFUSED = re.compile(r"nats: error: (.*) \((\d+)\)")


def publish(asked: dict[str, Any]) -> dict[str, Any]:
    """One message."""
    given = asked.get("headers", {}) | {header: str(asked[name]) for name, header in _OPTIONS.items() if name in asked}
    headers = [word for name, value in given.items() for word in ("-H", f"{name}:{value}")]
    command = [str(Path(__file__).with_name("nats")), "-s", sys.argv[1], "pub", "--jetstream", *headers, "--no-templates"]
    done = subprocess.run([*command, asked["subject"], asked["value"]], capture_output=True, text=True, timeout=60, check=False)
    if stored := _STORED.search(done.stderr + done.stdout):
        return {"stream": stored[1], "seq": int(stored[2]), "duplicate": bool(stored[3])}
    if refused := _REFUSED.search(done.stderr):
        return {"err_code": int(refused[2]), "description": refused[1]}
    return {"failed": done.stderr[-300:]}


for line in sys.stdin:
    print(json.dumps(publish(json.loads(line))), flush=True)
