"""Test that the site builds without a warning, describes every public name, and names nothing that was removed."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from liftpy.testing import plugin
from sidecar.cli.backup import TABLE as BACKUP_TABLE
from sidecar.status.metric_names import INCIDENTS, TABLE
from tests.docs import pages as pages_module
from tests.docs.__main__ import foreign
from tests.docs.pages import DOCS, ROOT, blocks, dead_links, pages, prose, spans

sys.path.insert(0, str(DOCS))
import folders
import from_code


@pytest.mark.long
def test_docs_site_builds_without_a_warning(tmp_path: Path) -> None:
    """All that a page can get wrong; ``python -m tests.docs`` writes the HTML too, which takes as long again."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy", "-d", str(tmp_path / "trees"), "docs"]
    done = subprocess.run([*command, str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_docs_reference_describes_each_public_name() -> None:
    assert not from_code.missing(), "say in the code what they are"


def test_docs_reference_lists_each_setting_error_event_command_and_format() -> None:
    tables = {name: made() for name, made in from_code.TABLES.items()}
    settings = {name: row for row in tables["settings"].splitlines() for name in re.findall(r"^\| `([\w.]+)` `LIFTPY_", row)}
    assert set(settings) == set(from_code.defaults())
    assert all(len(row.split(" | ")[-1]) > 4 for row in settings.values())
    assert "`log_level`" in settings["log_level"]
    assert "| live |" in settings["log_level"]
    assert "| live |" not in settings["node_id"]
    assert "0.001 to 3,600" in settings["replication.session_s"]
    used = set(re.findall(r"^```\{from-code\} ([\w-]+)$", "\n".join(pages().values()), re.MULTILINE))
    assert used == set(tables), "made and shown nowhere, or the other way round"
    assert "`STALE`" in tables["errors"]
    assert {f"`{event}`" for event in from_code.EVENTS.values()} <= set(re.findall(r"`[a-z_]+\.[a-z_]+`", tables["log-events"]))
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", tables["exit-codes"], re.MULTILINE)} >= {1, 2, 3, 65, 75, 78, 130}
    assert len(from_code.command_pages()) == len(from_code.COMMANDS)


def test_docs_spark_page_option_tables_equal_the_options_in_the_code() -> None:
    page = from_code.SPARK_PAGE.read_text(encoding="utf-8")
    assert from_code.with_option_tables(page) == page, "run `python docs/from_code.py`"
    named = set(re.findall(r"<!-- options: (\w+) -->", page))
    assert named == {option.table for option in from_code.TABLE}


def test_docs_reference_check_reports_entries_without_text(monkeypatch: pytest.MonkeyPatch) -> None:
    unsaid = type("UnsaidError", (), {"__doc__": None})
    monkeypatch.setattr(from_code, "errors_of_the_code", lambda: [unsaid])
    monkeypatch.setattr(
        from_code, "_behind", lambda module, name: {"session_s": "Time."} if name == "ReplicationConfig" else {}
    )
    missing = from_code.missing()
    assert "setting rack" in missing
    assert "error UnsaidError" in missing
    assert "setting replication.session_s" not in missing


def test_docs_links_lead_to_existing_targets() -> None:
    assert len(pages()) > 60
    wrong = [line for page in pages() for line in dead_links(page)]
    assert not wrong, "\n".join(wrong)


def test_docs_link_check_reports_a_dead_link(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# A\n\n[x](README.md#nothing-like-it) [y](docs/gone.md) [z](#b-c) [w](README.md#quickstart)\n\n## B `c`!\n"
    monkeypatch.setattr(pages_module, "pages", lambda: {**pages(), "NEW.md": text})
    (heading, gone) = dead_links("NEW.md")
    assert "#nothing-like-it" in heading
    assert "docs/gone.md" in gone


def test_docs_site_check_reports_resources_from_other_hosts(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://x.org">x</a> <script src="https://x.org/a.js"></script><img alt="" src="b.png">'
    )
    (tmp_path / "a.css").write_text("a { background: url(b.png) } @font-face { src: url('https://x.org/f.woff2') }")
    assert [line.partition(":")[0] for line in foreign(tmp_path)] == ["a.css", "a.html"]


# ---- names of what is gone ------------------------------------------------------------------------------------------------
@cache
def _words_of_the_code() -> frozenset[str]:
    """Every word of what ships, is deployed, and is tested."""
    found: set[str] = set()
    folders = [ROOT / name for name in ("liftpy", "sidecar", "protos", "deploy", "tests")]
    paths = [path for folder in folders for path in folder.rglob("*")] + [ROOT / "pyproject.toml", ROOT / "compose.yaml"]
    for path in paths:
        if path.suffix in {".py", ".proto", ".toml", ".yml", ".yaml", ".json", ".conf", ".service", ".js"} and path.is_file():
            found.update((path.stem, *re.findall(r"\w+", path.read_text(encoding="utf-8"))))
    return frozenset(found)


def _gone(page: str) -> list[str]:
    words, wrong = _words_of_the_code(), []
    variables = {from_code.environment_name(name) for name in from_code.defaults()}
    metrics = {f"liftpy_{name}" for name in (*TABLE, *BACKUP_TABLE)} | {
        name for name in dir(plugin) if name.startswith("liftpy_")
    }
    errors = {word for word in words if word.endswith("Error")} | set(dir(builtins))
    for number, line in enumerate(pages()[page].splitlines(), 1):
        at = f"{page}:{number}"
        for name in re.findall(r"\bLIFTPY_[A-Z0-9_]+", line):
            if name not in variables and name not in words and not any(known.startswith(name) for known in variables):
                wrong.append(f"{at}: no setting {name}")
        for name in re.findall(r"\bliftpy_[a-z0-9_]+\b", line):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            if not {name, base} & metrics and name not in words and not name.endswith("_"):
                wrong.append(f"{at}: no metric {name}")
        for name in re.findall(r"\b(?:[A-Z][a-z]+)+Error\b", line):
            if name not in errors:
                wrong.append(f"{at}: no error {name}")
        for kind in re.findall(r'incidents_total\{kind="(\w+)"', line):
            if kind not in INCIDENTS:
                wrong.append(f"{at}: no incident {kind}")
    for number, text in spans(page):
        for name in re.findall(r"(?<![\w./-])(?!liftpy_)[a-z]+(?:_[a-z0-9]+)+(?![\w/-])", text):
            if name not in words:
                wrong.append(f"{page}:{number}: `{name}` is nowhere in the code")
    return wrong


def test_docs_pages_name_only_existing_settings_metrics_and_errors() -> None:
    wrong = [line for page in pages() if page not in ("CHANGELOG.md", "docs/renamed.md") for line in _gone(page)]
    assert not wrong, "\n".join(wrong)


def test_docs_name_check_reports_removed_settings_metrics_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ("LIFTPY_" + "GONE_S", "liftpy_" + "gone_total", "Gone" + "Error", "session_" + "gone_s")
    text = "set {} and see `{}`, or catch `{}` with `{} = 5`; LIFTPY_RACK, LIFTPY_REPLICATION_..., `session_s`".format(*gone)
    monkeypatch.setattr(sys.modules[__name__], "pages", lambda: {"NEW.md": text})
    monkeypatch.setattr(pages_module, "pages", lambda: {"NEW.md": text})
    found = _gone("NEW.md")
    assert [name for name in gone for line in found if name in line] == list(gone)
    assert len(found) == len(gone)


def test_docs_block_reader_returns_code_blocks_without_fences_and_prose_without_code() -> None:
    found = blocks("README.md")
    assert [b.language for b in found].count("python") >= 3
    assert all("```" not in b.text for b in found)
    assert "async with liftpy.connect" not in prose("README.md")


def test_docs_picture_of_the_source_folders_matches_the_source_code() -> None:
    """Sizes may be older."""

    def without_sizes(text: str) -> str:
        return re.sub(r'class="size">[^<]*<', "", text)

    assert without_sizes(folders.PICTURE.read_text(encoding="utf-8")) == without_sizes(folders.picture()), (
        "python docs/folders.py"
    )
