"""The command line against a real cluster, as a user types it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli import main
from sidecar.dev.cluster import DevCluster
from tests.conftest import INTERRUPTIBLE_LIFTPY

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3) as cluster:
        yield cluster


@pytest.fixture
def run(cluster: DevCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main.main([*words, "--nats", cluster.nats_url])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return run


def json_of(run: Run, *words: str) -> Any:
    code, out, err = run(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_consume_command_that_follows_a_stream_ends_on_ctrl_c_without_a_traceback(run: Run, cluster: DevCluster) -> None:
    assert run("stream", "create", "followed", "--subject", "followed")[0] == 0
    command = [*INTERRUPTIBLE_LIFTPY, "consume", "followed", "--nats", cluster.nats_url]
    following = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert following.stdout is not None
    publishing = subprocess.run(
        [*INTERRUPTIBLE_LIFTPY, "publish", "followed", "--nats", cluster.nats_url],
        cwd=ROOT, input="seen\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert publishing.returncode == 0, publishing.stderr
    assert following.stdout.readline() == "0\tseen\n"
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=120)
    assert (following.returncode, out, err.strip()) == (130, "", "")


@pytest.mark.parametrize(("signal_name", "code"), [("TERM", 143), ("HUP", 129)])
def test_consume_command_with_an_output_file_ended_by_a_signal_leaves_a_complete_parquet_file(
    run: Run, cluster: DevCluster, tmp_path: Path, signal_name: str, code: int
) -> None:
    """Also where the parent ignores SIGINT, as a shell does for what it starts with ``&``."""
    import pyarrow.parquet as pq

    name, file = f"ended{code}", tmp_path / "x.parquet"
    assert run("stream", "create", name, "--subject", name)[0] == 0
    (tmp_path / "lines").write_text("one\ntwo\n")
    assert run("publish", name, str(tmp_path / "lines"))[0] == 0
    takes_hup = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); from sidecar.cli.main import main; main()"
    command = [
        sys.executable, "-c", takes_hup, "consume", name, "--output", str(file), "--follow", "--nats", cluster.nats_url,
    ]  # fmt: skip
    following = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    while not (part := file.with_name("x.parquet.part")).exists() or part.stat().st_size < 100:  # the header alone has 4 bytes
        assert following.poll() is None
        time.sleep(0.01)
    for _ in range(2):  # a terminal that is closed sends it twice
        following.send_signal(getattr(signal, f"SIG{signal_name}"))
    _, err = following.communicate(timeout=60)
    assert (following.returncode, err.strip()) == (code, f"2 records in {file.name}")
    assert pq.read_table(file)["value"].to_pylist() == [b"one", b"two"]


def test_consume_command_with_a_group_commits_the_printed_records_on_a_signal(
    run: Run, cluster: DevCluster, tmp_path: Path
) -> None:
    """Two share; the first ends by a signal; the other goes on behind what was printed, and a third behind both."""
    file = tmp_path / "lines"
    assert run("stream", "create", "shared", "--subject", "shop.shared", "--partitions", "2")[0] == 0
    command = [*INTERRUPTIBLE_LIFTPY, "consume", "shared", "--group", "crew", "--json", "--nats", cluster.nats_url]

    def member() -> subprocess.Popen[str]:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def publish(text: str) -> None:
        file.write_text(text)
        for partition in ("0", "1"):
            assert run("publish", "shared", str(file), "--partition", partition)[0] == 0

    def lines(process: subprocess.Popen[str], count: int) -> list[tuple[int, int]]:
        assert process.stdout is not None
        found = [json.loads(process.stdout.readline()) for _ in range(count)]
        return [(row["partition"], row["offset"]) for row in found]

    def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
        process.send_signal(number)
        assert (process.communicate(timeout=30)[0], process.returncode) == ("", 128 + number)

    def owners() -> list[int]:
        code, out, _ = run("group", "show", "crew", "--json")
        return sorted(len(one["owned"]) for one in json.loads(out)["members"]) if code == 0 else []

    first = member()
    publish("one\ntwo\n")
    assert sorted(lines(first, 4)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    second = member()
    while owners() != [1, 1]:
        assert first.poll() is second.poll() is None
    publish("three\n")
    assert {*lines(first, 1), *lines(second, 1)} == {(0, 2), (1, 2)}
    end(first, signal.SIGTERM)
    publish("four\n")
    assert sorted(lines(second, 2)) == [(0, 3), (1, 3)]
    end(second, signal.SIGHUP)
    third = member()
    publish("five\n")
    assert sorted(lines(third, 2)) == [(0, 4), (1, 4)]
    end(third, signal.SIGINT)
    assert [at["lag"] for at in json_of(run, "group", "show", "crew")["positions"]] == [0, 0]


def publishing(cluster: DevCluster, *words: str) -> subprocess.Popen[bytes]:
    command = [*INTERRUPTIBLE_LIFTPY, "publish", *words, "--nats", cluster.nats_url]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


def wait_for_records(run: Run, name: str, count: int) -> list[str]:
    while len(lines := run("consume", name, "--until", "end", "--format", "value")[1].splitlines()) < count:
        pass
    return lines


def test_publish_command_stores_each_line_once_when_the_leader_is_killed(run: Run, cluster: DevCluster) -> None:
    assert run("stream", "create", "survives", "--subject", "survives")[0] == 0
    process = publishing(cluster, "survives", "--json")
    assert process.stdin is not None
    process.stdin.write(b"".join(b"%d\n" % number for number in range(50)))
    wait_for_records(run, "survives", 50)
    leader = cluster.nodes[json_of(run, "stream", "show", "survives")["partitions"][0]["leader"]]
    leader.kill()
    try:
        process.stdin.write(b"".join(b"%d\n" % number for number in range(50, 100)))
        out, err = process.communicate(timeout=60)
    finally:
        leader.start()
    assert (process.returncode, err) == (0, b"")
    assert (json.loads(out)["published"], json.loads(out)["last_line"]) == (100, 100)
    assert wait_for_records(run, "survives", 100) == [str(number) for number in range(100)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_publish_command_on_an_open_pipe_reports_the_acknowledged_lines_on_a_signal(
    run: Run, cluster: DevCluster, number: signal.Signals, code: int
) -> None:
    name = f"quiet{code}"
    assert run("stream", "create", name, "--subject", name)[0] == 0
    process = publishing(cluster, name)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\nhalf a")
    wait_for_records(run, name, 2)
    process.send_signal(number)
    process.wait(timeout=30)  # the pipe stays open
    assert process.stderr is not None
    said = process.stderr.read().strip()
    assert (process.returncode, said) == (code, b"Interrupted: 2 of 2 messages are acknowledged, every line up to line 2")
    process.communicate()


def test_publish_command_on_an_open_pipe_ends_at_the_first_rejected_line(run: Run, cluster: DevCluster, tmp_path: Path) -> None:
    assert run("stream", "create", "closing", "--subject", "closing")[0] == 0
    process = publishing(cluster, "closing")
    assert process.stdin is not None
    process.stdin.write(b"one\n")
    wait_for_records(run, "closing", 1)
    assert run("stream", "alter", "closing", "--read-only")[0] == 0
    (tmp_path / "lines").write_text("other\n")
    deadline = time.monotonic() + 30
    while run("publish", "closing", str(tmp_path / "lines"))[0] == 0:
        assert time.monotonic() < deadline, "the leader never learned that the stream is read-only"
    process.stdin.write(b"two\n")
    process.wait(timeout=30)  # the pipe stays open
    assert process.stderr is not None
    said = process.stderr.read().decode()
    assert process.returncode == 1
    found = re.search(r"line (\d+) is not acknowledged", said)
    assert found is not None, said
    first = int(found[1])
    assert first > 1
    assert f"{first - 1} of 2 messages are acknowledged, every line up to line {first - 1}" in said
    process.communicate()


def test_cli_with_a_wrong_subject_or_namespace_fails_within_seconds_with_the_reason(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\n")
    assert run("stream", "create", "target", "--subject", "here.*")[0] == 0
    began = time.monotonic()
    code, _, err = run("publish", "target", str(tmp_path / "lines"), "--subject", "nowhere.x")
    assert (code, "Subject nowhere.x does not belong to target/0, which stores here.*" in err) == (2, True)
    assert run("publish", "target", str(tmp_path / "lines"), "--subject", "here.x")[0] == 0
    for words in (
        ["publish", "target", str(tmp_path / "lines")],
        ["publish", "target", str(tmp_path / "lines"), "--subject", "here.x"],
        ["consume", "target", "--until", "end"],
        ["stream", "list"],
        ["stream", "delete", "target", "--yes"],
        ["status"],
        ["group", "list"],
    ):
        code, _, err = run(*words, "--namespace", "elsewhere")
        assert (code, "No liftpy node of namespace 'elsewhere' answers at nats://127.0.0.1" in err) == (3, True), (words, err)
    assert time.monotonic() - began < 30, "each waits about a second"


def shell(words: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a line with ``liftpy`` in it; the exit code is that of the first command of the pipe."""
    define = f"liftpy() {{ {sys.executable} -c 'from sidecar.cli.main import main; main()' \"$@\"; }}"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {define}; {words}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_cli_whose_output_pipe_is_closed_exits_with_code_zero(run: Run, cluster: DevCluster, tmp_path: Path) -> None:
    assert run("stream", "create", "heads", "--subject", "shop.heads")[0] == 0
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{'x' * 200}{i}\n" for i in range(3000)))
    assert run("publish", "heads", str(lines))[0] == 0
    nats = f"--nats {cluster.nats_url}"
    for words in (
        f"liftpy consume heads {nats} | head -n 2",  # it follows: nothing more would be written that could fail
        f"liftpy consume heads --from 2999 {nats} | head -n 1",
        f"liftpy consume heads --until end --json {nats} | head -n 1",
        f"liftpy stream list {nats} | true",
    ):
        done = shell(words)
        assert (done.returncode, done.stderr) == (0, ""), words


def test_consume_command_until_a_time_ends_at_that_time(run: Run) -> None:
    assert run("stream", "create", "times", "--subject", "shop.times")[0] == 0
    assert run("consume", "times", "--until", "-1s")[:2] == (0, "")
    assert run("consume", "times", "--until", "+300ms")[:2] == (0, "")
    code, _, err = run("consume", "times", "--until", "tomorrow")
    assert (code, "-10m" in err) == (2, True)
