"""Commands find the store of the script or the settings beside which they are typed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ergon_framework import App
from ergon_framework.cli import invoke
from tests.app.workplace import Workplace

SCRIPT = """
from ergon_framework import App

app = App()

@app.job
def shrink(path: str) -> str:
    return path
"""

ORDERS = """
class Orders(ConsumerTask):
    @staticmethod
    def build_connectors():
        return {"source": MemoryConnector()}

    def process_transaction(self, transaction):
        return None
"""


@pytest.fixture
def below(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below that of a script which has two jobs, one of them cancelled."""
    script = workplace.directory / "thumbs.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("HOME", str(workplace.directory))
    with App(f"sqlite:///{workplace.directory / 'ergon.db'}", name="thumbs") as app:
        for name in ("first", "second"):
            app.client.enqueue("thumbs#shrink", ["a.png"], id=name)
        app.client.cancel("second")
    folder = workplace.directory / "pictures" / "2026"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints."""
    capsys.readouterr()
    assert invoke(words) == code
    return capsys.readouterr().out


def test_jobs_of_a_script_are_found_from_below(
    below: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listing them, explaining one, and changing one need no option."""
    rows = json.loads(said(capsys, "jobs", "list", "--json"))
    assert {row["id"] for row in rows} == {"first", "second"}
    assert "Job first" in said(capsys, "why", "first")
    assert said(capsys, "queues", "pause", "default")
    assert not (below / "ergon.db").exists()
    store = f"sqlite:///{below.parents[1] / 'ergon.db'}"
    assert json.loads(said(capsys, "queues", "list", "--store", store, "--json"))[0]["paused"]


@pytest.mark.usefixtures("below")
def test_a_hint_works_where_it_is_pasted(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It names the store, so that it means the same in another folder."""
    said(capsys, "queues", "pause", "default")
    told = said(capsys, "why", "first")
    hint = next(line for line in told.splitlines() if "ergon queues resume" in line)
    command = shlex.split(hint[hint.index("ergon ") :].rstrip(".").rstrip(")"))
    monkeypatch.chdir("/")
    assert invoke(command[1:]) == 0


def test_a_script_without_provider_calls_has_none(
    below: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is no mistake, and no tables are made to say so."""
    capsys.readouterr()
    assert invoke(["providers", "health"]) == 0
    captured = capsys.readouterr()
    assert f"{below.parents[1] / 'ergon.db'} has no provider calls yet" in captured.err
    assert captured.out.startswith("tenant")


def test_the_journal_of_a_script_is_beside_its_store(
    below: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an operator did to its queues can be followed from any folder below."""
    said(capsys, "queues", "pause", "default")
    assert "queue.paused" in said(capsys, "tail", "--no-follow")
    assert (below.parents[1] / "ergon-journal.db").is_file()


def test_settings_are_found_from_below(
    below: Path, workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    """They win over a store beside them, and modules beside them can be imported."""
    workplace.module(ORDERS)
    workplace.settings('[store]\nurl = "sqlite:///work.db"\n[tasks.orders]\ntask = "shop:Orders"\n')
    assert json.loads(said(capsys, "tasks", "--json"))[0]["name"] == "orders"
    assert [row["kind"] for row in json.loads(said(capsys, "check", "--json"))] == ["task"]
    said(capsys, "enqueue", "shrink", "--id", "third")
    assert (workplace.directory / "work.db").is_file()


def test_debug_says_what_was_found(below: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And an error says where was looked when there is nothing."""
    capsys.readouterr()
    assert invoke(["jobs", "list", "--debug"]) == 0
    assert f"debug: found {below.parents[1] / 'ergon.db'}" in capsys.readouterr().err
    (below.parents[1] / "ergon.db").unlink()
    assert invoke(["jobs", "list"]) == 2
    assert f"no ergon.db in {below} or above" in capsys.readouterr().err


@pytest.mark.usefixtures("below")
def test_a_named_store_or_file_is_what_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever lies above."""
    said(capsys, "jobs", "list", "--store", "sqlite:///other.db", code=1)
    said(capsys, "jobs", "list", "--config", "missing.toml", code=2)


@pytest.mark.usefixtures("below")
def test_the_hint_of_an_error_names_the_store(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the store was an option: pasted elsewhere, it lists the same jobs."""
    monkeypatch.chdir("/")
    store = f"sqlite:///{workplace.directory / 'ergon.db'}"
    capsys.readouterr()
    assert invoke(["jobs", "show", "thrid", "--store", store]) == 1
    told = capsys.readouterr().err
    command = shlex.split(told[told.index("ergon jobs list") : told.index(";")])
    assert "first" in said(capsys, *command[1:])
    assert invoke(["jobs", "unreadable", "--restore", "thrid", "--store", store]) == 1
    told = capsys.readouterr().err
    assert f"ergon jobs unreadable --store {store} lists" in told


def test_a_job_without_a_worker_says_how_to_start_one(
    below: Path, workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script for its own jobs, whatever its store is called; a worker for the settings."""
    home = below.parents[1]
    start = f"No worker is alive. This starts that of its script:  ergon run {home / 'thumbs.py'}"
    assert start in said(capsys, "why", "first")
    other = f"sqlite:///{home / 'options.db'}"
    with App(other, name="thumbs") as app:
        app.client.enqueue("thumbs#shrink", ["a.png"], id="first")
    assert start in said(capsys, "why", "first", "--store", other)
    workplace.settings('[store]\nurl = "sqlite:///ergon.db"\n')
    assert start in said(capsys, "why", "first")
    (home / "thumbs.py").unlink()
    assert "Run the script that declares it, 'thumbs', or" in said(capsys, "why", "first")
    executor = '[executors.thumbs]\ncommand = ["mine"]\n'
    workplace.settings(f'[store]\nurl = "sqlite:///ergon.db"\n{executor}')
    started = f"This starts one:  ergon worker --config {home / 'ergon.toml'}"
    assert started in said(capsys, "why", "first")
