"""``make test`` leaves no test out, and says so when a group fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import run_tests


def takers(groups: dict[str, run_tests.Group], path: Path) -> list[str]:
    """The groups that run a file."""

    def holds(paths: tuple[Path, ...]) -> bool:
        return any(each == path or each in path.parents for each in paths)

    return [name for name, each in groups.items() if holds(each.paths) and not holds(each.ignored)]


def test_every_file_is_in_exactly_one_group() -> None:
    """And what the groups name is there."""
    tests = run_tests.ROOT / "tests"
    groups = run_tests.groups(tests)
    for path in tests.rglob("test_*.py"):
        assert len(takers(groups, path)) == 1, path
    named = [part for parts in run_tests.NAMED.values() for part in parts]
    assert len(named) == len(set(named))
    assert [part for part in named if not (tests / part).exists()] == []


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("new/test_new.py", "rest"),
        ("test_new.py", "rest"),
        ("boundary/new/test_new.py", "boundary"),
        ("boundary/node/test_new.py", "node"),
        ("app/move/new/test_new.py", "move"),
    ],
)
def test_what_nobody_thought_of_has_a_group(tmp_path: Path, path: str, group: str) -> None:
    """That of the folder it is in, or the last one."""
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    assert takers(run_tests.groups(tmp_path), tmp_path / path) == [group]


def test_fast_deals_each_of_its_files_to_one_process() -> None:
    """And every process gets about as much to do as the others."""
    tests = run_tests.ROOT / "tests"
    groups = run_tests.fast_groups(tests, 2)
    for path in tests.rglob("test_*.py"):
        is_fast = path.is_relative_to(tests / "unit") or path.is_relative_to(tests / "core")
        is_fast = is_fast or path == tests / "engine" / "test_twins.py"
        assert len(takers(groups, path)) == is_fast, path
    lengths = [sum(path.stat().st_size for path in each.paths) for each in groups.values()]
    assert max(lengths) < 1.1 * min(lengths)
    assert all(
        "not slow and not campaign" in each.arguments(run_tests.ROOT) for each in groups.values()
    )


@pytest.mark.slow
@pytest.mark.parametrize(("body", "code"), [("pass", 0), ("assert 0", 1)])
def test_a_failing_group_fails_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    body: str,
    code: int,
) -> None:
    """Its report is printed, and so is that of the others."""
    for name in ("boundary", "boundary/node", "new"):
        path = tmp_path / "tests" / name / "test_it.py"
        path.parent.mkdir(parents=True)
        text = body if name == "boundary/node" else "pass"
        path.write_text(f"def test_it():\n    {text}\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the tests
    assert run_tests.run_all(run_tests.groups(tmp_path / "tests"), 2, tmp_path) == code
    told = capfd.readouterr().out
    assert f"== node: exit code {code}" in told
    assert "== boundary: exit code 0" in told
    assert "== rest: exit code 0" in told
    assert told.count("1 passed") == 3 - code


@pytest.mark.slow
def test_what_there_is_no_time_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A group that runs is not cut off, and its failure counts."""
    for name, body in (("boundary", "time.sleep(0.5); assert 0"), ("docs", "pass")):
        path = tmp_path / "tests" / name / "test_it.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"import time\ndef test_it():\n    {body}\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    groups = run_tests.groups(tmp_path / "tests")
    assert run_tests.run_all(groups, 1, tmp_path, start_until=0.1) == 1
    told = capfd.readouterr().out
    assert "== boundary: exit code 1" in told
    assert "NOT run: docs" in told


FAILS_ONCE = (
    "import pathlib\n"
    "def test_it():\n"
    "    first = pathlib.Path('first')\n"
    "    is_first = not first.exists()\n"
    "    first.touch()\n"
    "    assert not is_first\n"
)
FAILS = "def test_it():\n    assert 0\n"
CANNOT_BE_READ = "import nothing_of_that_name\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reruns", "code", "is_flaky"),
    [
        (FAILS_ONCE, 1, 0, True),
        (FAILS_ONCE, 0, 1, False),
        (FAILS, 1, 1, False),
        (FAILS + FAILS.replace("it", "other"), 1, 1, False),
        (CANNOT_BE_READ, 1, 2, False),
    ],
)
def test_what_fails_beside_others_is_run_by_itself(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    text: str,
    reruns: int,
    code: int,
    is_flaky: bool,
) -> None:
    """Once, if hardly any test failed; what passes then is named, and fails no run."""
    for name, body in (("boundary", text), ("docs", "def test_it(): pass\n")):
        path = tmp_path / "tests" / name / "test_it.py"
        path.parent.mkdir(parents=True)
        path.write_text(body)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    groups = run_tests.groups(tmp_path / "tests")
    assert run_tests.run_all(groups, 2, tmp_path, reruns=reruns) == code
    told = capfd.readouterr().out
    assert f"== boundary: exit code {code or 1}" in told
    flaky = "== FLAKY, passed when run by themselves: tests/boundary/test_it.py::test_it"
    assert (flaky in told) is is_flaky


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_no_group_behind(tmp_path: Path) -> None:
    """Its groups stop their servers, and what they said until then is printed."""
    path = tmp_path / "tests" / "new" / "test_it.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import pathlib, time, pytest\n"
        "@pytest.fixture\n"
        "def server():\n    yield\n    pathlib.Path('stopped').touch()\n"
        "def test_one(): pass\n"
        "def test_two(server):\n    pathlib.Path('begun').touch()\n    time.sleep(60)\n"
    )
    program = (
        "import sys; from pathlib import Path; from tools import run_tests as runs\n"
        "runs.stop_on_sigterm(); root = Path(sys.argv[1])\n"
        "runs.run_all(runs.groups(root / 'tests'), 2, root)\n"
    )
    run = subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=run_tests.ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    run.terminate()
    told, _ = run.communicate(timeout=30)
    assert run.returncode == 143
    assert (tmp_path / "stopped").exists()
    assert "1 passed" in told
