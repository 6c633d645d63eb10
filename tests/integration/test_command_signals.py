"""A user or a supervisor sends a signal to a command while it starts. The command ends, and its exit code names the signal."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.dev.nats_server import NatsServer
from tests.conftest import INTERRUPTIBLE_LIFTPY
from tests.until import block_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
_ROUNDS = 60

_SIGNAL_DURING_IMPORTS = """
import os, signal, sys, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from sidecar.cli.main import main

moment, number = sys.argv[1], int(sys.argv[2])

class Attribute:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), number)

class Finder:
    is_sent = False

    def find_spec(self, name, path=None, target=None):
        session = sys.modules.get("sidecar.cli.session")
        if self.is_sent:
            pass
        elif moment == "attribute" and name == "liftpy.client":
            self.is_sent = True
            type("Owner", (), {"attribute": Attribute()})  # Python 3.11 turns what a handler raises into a RuntimeError
        elif (moment, name) in (("callback", "liftpy.client"), ("callback of a late import", "liftpy.core.observe.cluster_health")):
            self.is_sent, held = True, Finder()
            reference = weakref.ref(held, lambda _: os.kill(os.getpid(), number))
            del held  # Python ignores what a handler raises in the callback
        elif moment == "session" and session is not None and not hasattr(session, "cancel_running"):
            self.is_sent = True
            os.kill(os.getpid(), number)
        return None

sys.meta_path.insert(0, Finder())
main(["stream", "list", "--nats", "nats://127.0.0.1:1"])
"""


def signaled(moment: str, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _SIGNAL_DURING_IMPORTS, moment, str(int(number))]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
@pytest.mark.parametrize("moment", ["callback", "callback of a late import"])
def test_command_with_a_signal_in_a_callback_of_an_import_ends_by_the_signal(
    moment: str, number: signal.Signals, code: int
) -> None:
    ended = signaled(moment, number)
    assert (ended.returncode, ended.stderr.strip()) == (code, "")


@pytest.mark.parametrize("moment", ["session", "attribute"])
def test_command_with_a_signal_in_an_import_ends_by_the_signal(moment: str) -> None:
    ended = signaled(moment, signal.SIGTERM)
    assert (ended.returncode, ended.stderr.strip()) == (143, "")


_STORE_WITHOUT_ANSWER = """
import ctypes, sys
from sidecar.backup.store import Store
from sidecar.cli import session
from sidecar.cli.main import main

session.THREADS_S = 0.2

def wait(store, *_):
    ctypes.CDLL(None).system(f"touch {sys.argv[1]}; sleep 20".encode())  # a call of C that no signal ends

Store.sizes = wait
main(["backup", *sys.argv[2:]])
"""


@pytest.mark.parametrize(
    "words", [("list",), ("verify",), ("prune", "--keep", "1"), ("restore", "--all")], ids=lambda words: words[0]
)
def test_backup_command_for_a_store_without_answers_ends_by_the_signal(words: tuple[str, ...], tmp_path: Path) -> None:
    """The main thread waited for the store and could not handle the signal."""
    begun = tmp_path / "begun"
    command = [sys.executable, "-c", _STORE_WITHOUT_ANSWER, str(begun), words[0], str(tmp_path), *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            block_until(begun.exists, "the command asks the store")
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 143
        finally:
            process.kill()


@pytest.mark.long
def test_command_with_a_signal_at_any_moment_of_its_start_ends_by_the_signal() -> None:
    """SIGTERM before the command has its handlers ends the process at once."""
    with NatsServer() as server:
        for seed in range(_ROUNDS):
            drawn = random.Random(seed)
            words = drawn.choice([("stream", "list"), ("consume", "orders"), ("publish", "orders"), ("status",), ("top",)])
            process = subprocess.Popen(
                [*INTERRUPTIBLE_LIFTPY, *words, "--nats", server.url],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            time.sleep(drawn.uniform(0.0, 2.0))
            process.terminate()
            _, err = process.communicate(timeout=20)
            assert process.returncode in (143, -signal.SIGTERM), (seed, words, err)
            assert "Traceback" not in err, (seed, words, err)
