"""``ergon run`` of an App: which object is meant, what it prints, and running it again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework import App
from ergon_framework.app.reload import Reloader, changed_files, file_states
from ergon_framework.cli import invoke
from tests.app.processes import Ergon
from tests.app.workplace import Workplace

pytestmark = pytest.mark.req("ONE:run")

SCRIPT = """
from ergon_framework import App

VERSION = 1
app = App()


@app.job
def greet(name: str) -> str:
    return f"hello {name} from {VERSION}"


if __name__ == "__main__":
    raise SystemExit("only python runs this line")
"""

LATE = """
from ergon_framework import App


def make() -> App:
    global app
    app = App()
    return app
"""


TALKATIVE = """
from ergon_framework import App, ConsumerTask, MemoryConnector, Transaction

print("imported")
app = App("memory://")


class Orders(ConsumerTask):
    @staticmethod
    def build_connectors():
        return {"orders": MemoryConnector([Transaction("t1", 1)])}

    def process_transaction(self, transaction):
        print("processed")
"""


@pytest.fixture
def script(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in a folder below the working directory, and no import path left behind."""
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    folder = workplace.directory / "jobs"
    folder.mkdir()
    file = folder / "greeting_script.py"
    file.write_text(SCRIPT)
    return file


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says that is refused."""
    assert invoke(["run", *words]) == 2
    return capsys.readouterr().err


def test_a_script_is_run_from_another_folder(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its executors find it, its only App need not be named, and the report counts jobs."""
    with App(f"sqlite:///{script.parent / 'ergon.db'}", name=script.stem) as app:
        job = app.client.enqueue(f"{script.stem}#greet", ["ada"])
        assert invoke(["run", f"jobs/{script.name}", "--burst", "--json"]) == 0
        assert job.result(timeout=10) == "hello ada from 1"
    report = json.loads(capsys.readouterr().out)
    assert (report["jobs"]["completed"], report["consumers"]) == (1, {})


@pytest.mark.parametrize("name", ["app", "Orders"])
def test_what_a_module_prints_is_kept_out_of_json(
    workplace: Workplace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """When it is imported, too: a program reads one document, and people read the rest."""
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    module = f"talkative_{name.lower()}"
    (workplace.directory / f"{module}.py").write_text(TALKATIVE)
    assert invoke(["run", f"{module}:{name}", *(["--burst"] * (name == "app")), "--json"]) == 0
    found = capsys.readouterr()
    assert isinstance(json.loads(found.out), dict)
    assert "imported" in found.err


def test_the_app_of_a_module(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name; people get a line for each part."""
    monkeypatch.chdir(script.parent)
    assert invoke(["run", f"{script.stem}:app", "--burst"]) == 0
    title, line = capsys.readouterr().out.splitlines()
    assert title.split()[:2] == ["part", "completed"]
    assert line.split()[:2] == ["jobs", "0"]


PIDS = """
import os
from pathlib import Path

from ergon_framework import App

app = App()
none = App()


@app.job
def meet(number: int) -> int:
    while len(list(Path(__file__).parent.glob("*.pid"))) < number:
        Path(__file__).with_name(f"{os.getpid()}.pid").touch()
    return os.getpid()
"""


@pytest.mark.slow
def test_so_many_processes_run_the_jobs_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``app.run(processes=2)`` does; an App without jobs has nothing for them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meeting.py").write_text(PIDS)
    enqueue = ["enqueue", "meeting#meet", "--args", "[2]", "--store", "sqlite:///ergon.db"]
    for _ in range(2):
        assert invoke([*enqueue, "--timeout", "20"]) == 0
    assert invoke(["run", "meeting.py:app", "--burst", "--workers", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["jobs"]["completed"] == 2
    assert len(list(tmp_path.glob("*.pid"))) == 2
    assert "this App declares none" in told(capsys, "meeting.py:none", "--workers", "2")


def test_what_is_no_app_is_refused(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to write instead."""
    place = f"jobs/{script.name}"
    assert "there is no 'ap' (did you mean 'app'?)" in told(capsys, f"{place}:ap")
    assert "is a JobHandler, not an App (name the App: app)" in told(capsys, f"{place}:greet")
    assert "there is no file 'jobs/missing.py'" in told(capsys, "jobs/missing.py")
    assert "--limit is for a task, and an App is none" in told(capsys, place, "--limit", "1")
    script.with_name("two.py").write_text(SCRIPT + "\nother = App()\n")
    assert "there are several: app, other" in told(capsys, "jobs/two.py")
    script.with_name("none.py").write_text("VERSION = 1\n")
    assert "there is none" in told(capsys, "jobs/none.py")
    script.with_name("late.py").write_text(LATE)
    for target in ("jobs/late.py", "jobs/late.py:app"):
        assert "is made in make(), and an import of the file does not" in told(capsys, target)
    assert "is a function that makes an App" in told(capsys, "jobs/late.py:make")
    other = script.with_name("ergon.toml")
    other.touch()
    assert "and the App reads" in told(capsys, place, "--config", str(other.with_name("x.toml")))
    for option in ("--stall-after", "--restart-window"):
        assert "inf is not a finite number" in told(capsys, place, option, "inf")
        assert option in told(capsys, place, option, "nan")
    script.with_name("v2.1.py").write_text(SCRIPT)
    assert "no other process could import" in told(capsys, "jobs/v2.1.py:app")
    script.with_name("hasty.py").write_text(SCRIPT + "\ngreet.enqueue('eve')\n")
    assert 'if __name__ == "__main__"' in told(capsys, "jobs/hasty.py")
    assert "--burst is for an App, and 'worker' is none (name one, module:app" in told(
        capsys, "worker", "--burst"
    )


# ---- running it again ----------------------------------------------------------------------------


def test_which_files_are_watched(tmp_path: Path) -> None:
    """Sources and settings of the project, not those of tools, caches and environments."""
    for name in ("a.py", "pkg/b.py", "pkg/ergon.toml", ".git/c.py", "venv/lib/d.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    before = file_states([tmp_path])
    names = {str(path.relative_to(tmp_path)) for path in before}
    assert names == {"a.py", "pkg/b.py", "pkg/ergon.toml"}
    (tmp_path / "a.py").write_text("VERSION = 2")
    (tmp_path / "pkg" / "b.py").unlink()
    (tmp_path / "new.py").touch()
    changed = changed_files(before, file_states([tmp_path]))
    assert [each.name for each in changed] == ["a.py", "new.py", "b.py"]


WAITING = """
import signal
import threading

from ergon_framework import App


class Waiting(App):
    def run(self, **options):  # a worker would start executors, and this is about one process
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        signal.signal(signal.SIGINT, lambda *_: stopped.set())
        print("runs", VERSION, flush=True)
        stopped.wait()
        print("stopped", VERSION, flush=True)
        raise SystemExit(0)


app = Waiting()
VERSION = 1
"""


@pytest.fixture
def reloading(script: Path) -> Iterator[Ergon]:
    """The command, started for a script that says which version runs."""
    script.write_text(WAITING)
    with Ergon("run", f"{script}:app", "--reload") as ergon:
        assert ergon.out.until("runs") == "runs 1"
        yield ergon


@pytest.mark.slow
def test_a_change_starts_it_again(script: Path, reloading: Ergon) -> None:
    """A program that does not start waits for the next change; Ctrl-C ends both processes."""
    script.write_text(WAITING.replace("VERSION = 1", "VERSION = 2"))
    assert "greeting_script.py changed; starting again" in reloading.err.until("ergon: ")
    assert reloading.out.line() == "stopped 1"
    assert reloading.out.line() == "runs 2"
    script.write_text(WAITING + "def (")
    reloading.err.until("error: the module 'greeting_script' cannot be imported")
    assert "ended with code 2; a change" in reloading.err.until("ergon: the program")
    script.write_text(WAITING.replace("VERSION = 1", "VERSION = 4"))
    assert reloading.out.until("runs") == "runs 4"
    reloading.signal(signal.SIGINT)
    assert reloading.code() == 130
    assert reloading.out.rest() == ["stopped 4"]  # and nobody is left who could print


@pytest.mark.slow
@pytest.mark.usefixtures("script")
def test_the_program_ends_with_who_watches(reloading: Ergon) -> None:
    """Killed, the watcher can pass on nothing: the program notices by itself."""
    reloading.process.kill()
    reloading.err.until("ergon: the supervisor is gone")
    assert reloading.out.rest() == ["stopped 1"]


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory is no project; a look at it would take longer than the pause between two."""

    class Entry:
        path = "x.py"

        def __init__(self, number: int) -> None:
            self.name = self.path = f"{number}.py"

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return follow_symlinks

        def stat(self) -> os.stat_result:
            return os.stat_result(range(10))

    class Folder:
        def __enter__(self) -> list[Entry]:
            return [Entry(number) for number in range(20_001)]

        def __exit__(self, *exc: object) -> None:
            return None

    monkeypatch.setattr(os, "scandir", lambda _place: Folder())
    with pytest.raises(Exception, match="more than 20,000 files to watch"):
        Reloader(lambda _lifeline: ["true"], [tmp_path]).run()


@pytest.mark.parametrize(
    ("name", "pasted"),
    [
        ("two words.py", "'two words.py'"),
        ("-dash.py", "./-dash.py"),
        ("noext", "noext"),
        ("shop.pyz", "shop.pyz"),
        ("__main__.py", "__main__.py"),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused_with_a_command_that_works(
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    pasted: str,
) -> None:
    """At once, and not by an executor that looks for a module which nobody wrote."""
    monkeypatch.chdir(script.parent)
    script.with_name(name).write_text(SCRIPT)
    said = told(capsys, f"./{name}")
    assert "no other process could import" in said
    assert f"run it with python {pasted})" in said


def test_the_app_that_is_proposed_can_be_pasted(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also from a folder with a blank in its name."""
    folder = script.parent / "my jobs"
    folder.mkdir()
    (folder / "two.py").write_text(SCRIPT + "\nother = App()\n")
    monkeypatch.chdir(script.parent)
    assert "(write 'my jobs/two.py:app')" in told(capsys, "my jobs/two.py")
