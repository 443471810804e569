"""Broken settings files: beside each stands the whole message that ``ergon check`` has for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.check import check
from ergon_framework.cli import invoke
from ergon_framework.errors import SettingsError
from tests.app.processes import SAMPLES
from tests.app.workplace import workplace_in

BROKEN = Path(__file__).parent / "broken_settings"
REMEDY = "docs/reference/settings.md describes every key"

FILES = sorted(BROKEN.glob("*.toml"))


@pytest.fixture(autouse=True)
def in_samples(monkeypatch: pytest.MonkeyPatch) -> object:
    """Where the modules are that the files name."""
    with workplace_in(SAMPLES, monkeypatch) as place:
        yield place


@pytest.mark.req("ONE:check")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_whole_message(file: Path) -> None:
    """Every mistake is told at once: file, line, key, what is wrong and what to do."""
    with pytest.raises(SettingsError) as caught:
        check(file, environ={"PATH": ""})
    told = str(caught.value).replace(f"{BROKEN}/", "")
    expected = file.with_suffix(".txt").read_text().splitlines()
    if len(expected) == 1:
        assert [told] == expected
    else:
        lines = [f"{len(expected)} mistakes in the settings:", *(f"  {each}" for each in expected)]
        assert told.splitlines() == [*lines, f" ({REMEDY})"]
    assert "hunter2" not in told + json.dumps(caught.value.to_dict())


def test_there_are_enough_of_them() -> None:
    """Each part of the settings has a broken file."""
    assert len(FILES) >= 15


@pytest.mark.req("ONE:check")
def test_the_command_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get the same mistakes as JSON, with their lines as numbers."""
    file = BROKEN / "no_such_class.toml"
    assert invoke(["check", "--config", str(file), "--json"]) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert error["code"] == "settings"
    (mistake,) = error["details"]["mistakes"]
    assert mistake == {
        "where": f"{file}:5",
        "file": str(file),
        "line": 5,
        "key": "tasks.orders.task",
        "problem": "'counter:Ordres': there is no 'Ordres' in counter",
        "remedy": "did you mean 'Orders'?",
    }
    assert captured.err.startswith(f"error: {file}:5: tasks.orders.task: ")
