from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, entry_points
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.new_project import (
    NewProject,
    new_project,
    next_commands,
    origin,
    package_of,
)
from ergon_framework.cli import invoke
from ergon_framework.errors import ConfigurationError
from ergon_framework.jobs import JobClient
from tests import fork_server
from tests.docs.pages import ROOT

pytestmark = pytest.mark.req("ONE:new")

LONGEST = 100.0
"""Seconds for one command of a project."""


def ergon_in(folder: Path) -> Path:
    """A folder with the program ``ergon``, which a source tree does not have."""
    programs = folder / "programs"
    programs.mkdir()
    program = programs / "ergon"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ergon_framework.cli "$@"\n')
    program.chmod(0o755)
    return programs


def run_in(project: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a project, with the project and this source tree on its path."""
    path = os.pathsep.join([str(project / "src"), str(ROOT / "src")])
    return fork_server.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, **changes},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )


def plugin() -> tuple[str, ...]:
    """What pytest must be told about our plugin: nothing, once it is installed."""
    if entry_points(group="pytest11", name="ergon"):
        return ()
    return ("-p", "ergon_framework.testing.plugin")


def done(result: subprocess.CompletedProcess[str]) -> str:
    """What a command printed that must have succeeded."""
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# ---- a project that works -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_new_project_passes_its_own_tests_and_runs(tmp_path: Path) -> None:
    """Its tests, its check, its task and its job work without a line being changed."""
    search = os.pathsep.join([str(ergon_in(tmp_path)), os.environ["PATH"]])
    done(run_in(tmp_path, "-m", "ergon_framework.cli", "new", "corner-shop"))
    project = tmp_path / "corner-shop"

    def ergon(*words: str) -> str:
        return done(run_in(project, "-m", "ergon_framework.cli", *words, PATH=search))

    # Python 3.12.0 to 3.12.3 take ?1 for a name, and say so at every statement.
    strict = "-W", "error", "-W", "ignore:Binding 1:DeprecationWarning"
    tests = run_in(project, "-m", "pytest", "-q", *plugin(), *strict, PATH=search)
    assert "passed" in done(tests)
    listed = ergon("check")
    assert all(word in listed for word in ("orders", "prices", "python"))

    told = json.loads(ergon("run", "orders", "--json"))
    assert (told["report"]["succeeded"], told["report"]["failed"]) == (2, 1)

    job = ergon("enqueue", "quote", "--args", '["tea", 3]').strip()
    ergon("worker", "--burst")
    shown = json.loads(ergon("jobs", "show", job, "--json"))
    assert shown["status"] == "completed", shown
    assert shown["result"] == {"item": "tea", "pieces": 3, "cents": 1050}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_everything_in_a_new_project_runs_and_stops(tmp_path: Path) -> None:
    """What ``make run`` starts takes the orders, works on a job, and ends when it is told to."""
    project = new_project("shop", tmp_path).folder
    search = os.pathsep.join([str(ergon_in(tmp_path)), os.environ["PATH"]])
    path = os.pathsep.join([str(project / "src"), str(ROOT / "src")])
    with (
        JobClient(f"sqlite:///{project}/shop.db") as client,
        fork_server.start(
            [sys.executable, "-m", "ergon_framework.cli", "run", "--all"],
            cwd=project,
            env={**os.environ, "PYTHONPATH": path, "PATH": search},
            stdout=subprocess.PIPE,
            text=True,
        ) as everything,
    ):
        try:
            job = client.enqueue("quote", ["salt"], {"pieces": 2})
            assert job.result(timeout=60) == {"item": "salt", "pieces": 2, "cents": 160}
            assert everything.stdout is not None
            assert any(line.startswith("ended tasks.orders") for line in everything.stdout)
            everything.send_signal(signal.SIGINT)
            assert everything.wait(60) == 130
        finally:
            everything.kill()


def test_the_makefile_offers_what_the_readme_promises(tmp_path: Path) -> None:
    """The five commands are targets of make, or calls of the ergon that it installs."""
    folder = new_project("shop", tmp_path).folder
    targets = (folder / "Makefile").read_text()
    block = (folder / "README.md").read_text().split("```")[1]
    commands = [line.split("#")[0].split() for line in block.strip().splitlines()]
    assert len(commands) == 5
    for program, target, *_ in commands:
        assert program == ".venv/bin/ergon" or f"\n{target}: " in targets


def test_names_are_filled_in_everywhere(tmp_path: Path) -> None:
    """No file of a project holds a placeholder, and the package has a name Python can import."""
    project = new_project("Corner-Shop", tmp_path)
    assert project.package == "corner_shop"
    assert "src/corner_shop/handlers.py" in project.files
    for name in project.files:
        text = (project.folder / name).read_text()
        assert "@name@" not in text, name
        assert "@package@" not in text, name
    assert {path.name for path in tmp_path.iterdir()} == {"Corner-Shop"}  # nothing is left over


def test_it_prints_the_next_three_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made a project sees how to go on; a program gets the same as JSON."""
    monkeypatch.chdir(tmp_path)
    assert invoke(["new", "shop"]) == 0
    commands = [line.strip() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line.split()[0] for line in commands] == ["cd", "make", "make"]
    assert invoke(["new", "shop", "--dir", str(tmp_path / "shop"), "--json"]) == 0
    shape = json.loads(capsys.readouterr().out)
    assert (shape["name"], shape["package"]) == ("shop", "shop")
    assert len(shape["next"]) == 3
    assert "ergon.toml" in shape["files"]


def test_the_next_commands_can_be_pasted() -> None:
    """Also where the folder's name has a space."""
    project = NewProject("shop", "shop", Path("my shop"), ())
    assert next_commands(project) == ["cd 'my shop'", "make setup", "make test"]


@pytest.mark.parametrize("source", [None, "/a folder/ergon #1 $x"])
def test_the_setup_knows_where_ergon_comes_from(source: str | None, tmp_path: Path) -> None:
    """A project that was made by a clone or a wheel installs that one: there may be no release."""
    folder = new_project("shop", tmp_path, source).folder
    done = subprocess.run(
        ["make", "-n", "setup"],  # noqa: S607 - the system's
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = "" if source is None else f"'{source}' "
    assert f"pip install --quiet {wanted}--editable" in " ".join(done.stdout.split())
    assert "/.ergon.mk\n" in (folder / ".gitignore").read_text()


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ('{"url": "file://HERE/a%20b", "dir_info": {"editable": true}}', "HERE/a b"),
        ('{"url": "file://HERE/removed", "dir_info": {"editable": true}}', None),
        ('{"url": "https://example.org/ergon.whl"}', None),
        (None, None),
    ],
)
def test_the_origin_is_what_the_installer_wrote_down(
    told: str | None, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder or a wheel is named if it is there; what came from an index is found there again."""
    (tmp_path / "a b").mkdir()

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if told is None else told.replace("HERE", str(tmp_path))

    monkeypatch.setattr("ergon_framework.app.new_project.distribution", lambda name: Installed())
    assert origin() == (None if found is None else found.replace("HERE", str(tmp_path)))


def test_a_source_tree_is_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an installation, it is the folder with pyproject.toml."""

    def unknown(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("ergon_framework.app.new_project.distribution", unknown)
    assert origin() == str(ROOT)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "1st", "a b", "a/b", "../a", ".", "shop-", "_shop", "shöp", "a" * 65, "-x", "a.b"]
)
def test_a_name_that_cannot_be_used_is_refused(name: str) -> None:
    """The message says what a name is made of."""
    with pytest.raises(ConfigurationError, match="beginning with a letter"):
        package_of(name)


@pytest.mark.parametrize(
    "name",
    ["class", "json", "Logging", "ergon-framework", "tests", "pytest", "Test", "pip", "pydantic"],
)
def test_a_name_that_would_hide_another_is_refused(name: str) -> None:
    """Named like a keyword or a module of Python or of what it needs, it breaks its own imports."""
    with pytest.raises(ConfigurationError, match=f"for example my-{name}"):
        package_of(name)


def test_a_module_of_the_working_directory_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be an earlier try at the same project."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert package_of("shop") == "shop"


def test_a_folder_with_something_in_it_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is overwritten, and the exit code says wrong use."""
    precious = tmp_path / "shop" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    assert invoke(["new", "shop", "--dir", str(tmp_path)]) == 2
    assert "exists and is not empty (take another name" in capsys.readouterr().err
    assert [path.name for path in precious.parent.iterdir()] == ["precious.txt"]


def test_a_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    """A file, or a link that leads nowhere, is not replaced."""
    (tmp_path / "shop").write_text("mine")
    (tmp_path / "other").symlink_to(tmp_path / "nowhere")
    for name in ("shop", "other"):
        with pytest.raises(ConfigurationError, match="exists and is not empty"):
            new_project(name, tmp_path)
    assert (tmp_path / "shop").read_text() == "mine"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    """Somebody may have made the folder first."""
    (tmp_path / "shop").mkdir()
    assert (new_project("shop", tmp_path).folder / "ergon.toml").is_file()


def test_a_place_that_does_not_exist_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders above the project are not made up."""
    assert invoke(["new", "shop", "--dir", str(tmp_path / "absent")]) == 2
    told = capsys.readouterr().err
    assert "No such file or directory" in told
    assert "--dir PATH" in told


def test_a_place_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system says is passed on, with what to do."""

    def refuse(*_args: Any, **_options: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(ConfigurationError, match=r"Permission denied \(give a folder"):
        new_project("shop", tmp_path)


def test_a_disk_that_fills_up_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a project is removed again."""

    def full(*_args: Any, **_options: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigurationError, match="No space left"):
        new_project("shop", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_project_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Killed before the last step, the command leaves no folder of that name; again, it works."""
    command = ("-m", "ergon_framework.cli", "new", "shop")
    killed = run_in(tmp_path, *command, ERGON_FAILPOINTS="app.scaffold.written=kill")
    assert killed.returncode == -9, killed.stderr
    assert not (tmp_path / "shop").exists()
    done(run_in(tmp_path, *command))
    assert (tmp_path / "shop" / "ergon.toml").is_file()
