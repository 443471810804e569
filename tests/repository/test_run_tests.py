"""``make test`` leaves no test out, and says so when a group fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import run_tests


def test_every_folder_is_in_exactly_one_group() -> None:
    """Also one that nobody thought of when the groups were named."""
    tests = run_tests.ROOT / "tests"
    found = [path for paths in run_tests.groups(tests).values() for path in paths]
    folders = {each for each in tests.iterdir() if each.is_dir() and each.name != "__pycache__"}
    assert len(found) == len(set(found))
    assert set(found) >= folders
    named = {part for parts in run_tests.NAMED.values() for part in parts}
    assert named <= {folder.name for folder in folders}


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
    for name in ("boundary", "new"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        text = body if name == "boundary" else "pass"
        path = tmp_path / "tests" / name / f"test_{name}.py"
        path.write_text(f"def test_{name}():\n    {text}\n")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    assert run_tests.run_all(run_tests.groups(tmp_path / "tests"), 2) == code
    told = capfd.readouterr().out
    assert f"== boundary: exit code {code}" in told
    assert "== rest: exit code 0" in told
    assert told.count("1 passed") == 2 - code
