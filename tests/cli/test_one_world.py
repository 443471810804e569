"""Commands find the store of the script or the settings beside which they are typed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ergon_framework import App
from ergon_framework.app.earlier_store import earlier_store
from ergon_framework.app.settings import load_settings
from ergon_framework.cli import invoke
from tests.app.workplace import Workplace
from tests.campaign.parameter_sample import sampled
from tests.docs.programs import environment

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


NAMES_ANOTHER = '[store]\nurl = "sqlite:///work.db"\n'


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command says beside its answer."""
    capsys.readouterr()
    assert invoke(words) == code
    return capsys.readouterr().err


def test_jobs_from_before_the_settings_are_told_of(
    below: Path, workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where they wait, to whoever looks for jobs; not to who names a store."""
    home = below.parents[1]
    workplace.settings(NAMES_ANOTHER)
    waits = f"1 job waits in {home / 'ergon.db'}, where nobody looks: {home / 'ergon.toml'} names"
    run = f"ERGON_JOBS__STORE=sqlite:///{home / 'ergon.db'} ergon run {home / 'thumbs.py'} --burst"
    for words, code in (
        (["jobs", "list"], 1),  # there is no work.db yet
        (["check"], 0),
        (["why", "first"], 1),
    ):
        said_of_it = told(capsys, *words, code=code)
        assert waits in said_of_it
        assert run in said_of_it
    said(capsys, "enqueue", "shrink", "--id", "third")
    for words, code in ((["jobs", "list"], 0), (["jobs", "show", "first"], 1)):
        assert waits in told(capsys, *words, code=code)
    rows = json.loads(said(capsys, "doctor", "--json", code=0))
    [found] = [row for row in rows if row["check"] == "earlier job store"]
    assert (found["status"], found["found"].startswith(waits)) == ("note", True)
    store = f"sqlite:///{home / 'work.db'}"
    assert not told(capsys, "jobs", "list", "--store", store)
    assert "waits" not in told(capsys, "why", "first", "--store", store, code=1)


def test_the_move_that_is_proposed_brings_earlier_jobs_along(
    below: Path,
    workplace: Workplace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pasted anywhere; afterwards there is nothing to tell any more."""
    workplace.settings(NAMES_ANOTHER)
    text = told(capsys, "check")
    command = shlex.split(text[text.index("ergon move ") :].splitlines()[0])
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir("/")
        said(capsys, *command[1:])
    assert "first" in said(capsys, "jobs", "list")
    assert not told(capsys, "jobs", "list")
    assert below.is_dir()


def test_jobs_of_somebody_else_beside_a_script_are_not_its_own(
    below: Path, workplace: Workplace
) -> None:
    """A script that names its store may be in one folder with another that does not."""
    home = below.parents[1]
    settings, other = load_settings(environ={}), f"sqlite:///{home / 'other.db'}"
    assert earlier_store(settings, other, home=home, executors={"shop"}) is None
    found = earlier_store(settings, other, home=home, executors={"thumbs"})
    assert found is not None
    assert "ergon move" in found.remedy(None)
    assert "ergon run" not in found.remedy(None)
    assert earlier_store(settings, "memory://", home=home) is None
    assert earlier_store(settings, f"sqlite:///{home / 'ergon.db'}", home=home) is None
    (home / "ergon.db").write_text("somebody else's")
    assert earlier_store(settings, other, home=home) is None
    assert workplace.directory == home


RUNS = (
    SCRIPT
    + """
if __name__ == "__main__":
    import sys

    for path in sys.argv[1:]:
        shrink.enqueue(path)
    app.run(burst=True)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", sampled(["python thumbs.py", "ergon run thumbs.py --burst"], ["python thumbs.py"])
)
def test_the_run_that_is_proposed_runs_earlier_jobs(tmp_path: Path, start: str) -> None:
    """Whoever runs the script is told of jobs that it stored before its settings were written."""
    (tmp_path / "thumbs.py").write_text(RUNS)
    app = App(f"sqlite:///{tmp_path / 'ergon.db'}", name="thumbs")
    job = app.client.enqueue("thumbs#shrink", ["a.png"])
    (tmp_path / "ergon.toml").write_text(NAMES_ANOTHER)

    def run(command: str, place: Path) -> str:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        ended = subprocess.run(  # noqa: S602 - a user's shell
            command,
            shell=True,
            cwd=place,
            env=environment(PATH=path),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    text = run(start, tmp_path)
    assert "1 job waits in" in text
    assert job.status() == "pending"
    command = text[text.index("ERGON_JOBS__STORE=") : text.index("  and this moves")]
    assert "waits in" not in run(command, Path("/"))
    assert job.result(0) == "a.png"
    assert "waits in" not in run(start, tmp_path)
    app.close()


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
