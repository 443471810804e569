from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.app.observability import observed
from ergon_framework.app.settings import load_settings
from ergon_framework.cli import invoke
from ergon_framework.errors import WiringError

MODULE = """
calls = []
word = "text"

def fine():
    calls.append(1)

def broken():
    raise LookupError("no such thing")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module in it."""
    (tmp_path / "own_telemetry.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own_telemetry", None)


def settings(folder: Path, setup: str) -> Path:
    """A settings file whose processes call this first."""
    file = folder / "ergon.toml"
    file.write_text(f'[telemetry]\njournal = "none"\nsetup = "{setup}"\n')
    return file


def test_every_process_calls_it_first(folder: Path) -> None:
    """Once, before anything else is set up."""
    file = settings(folder, "own_telemetry:fine")
    with observed(load_settings(file), "test"):
        import own_telemetry  # type: ignore[import-not-found]

        assert own_telemetry.calls == [1]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken", "telemetry.setup: own_telemetry:broken raised LookupError: no such thing"),
        ("word", "telemetry.setup: own_telemetry:word is a str, which cannot be called"),
        ("fin", "did you mean 'fine'?"),
    ],
)
def test_one_that_cannot_be_called(folder: Path, name: str, told: str) -> None:
    """The process does not start, and says why."""
    chosen = load_settings(settings(folder, f"own_telemetry:{name}"))
    with pytest.raises(WiringError) as caught, observed(chosen, "test"):
        pass
    assert told in str(caught.value)


def test_check_finds_it_before(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is imported, and not called."""
    settings(folder, "own_telemetry:word")
    assert invoke(["check"]) != 0
    assert "which cannot be called" in " ".join("".join(capsys.readouterr()).split())
