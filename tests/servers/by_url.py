"""What is done with a store of which nothing is known but its URL: with TLS, every kind alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from ergon_framework.errors import ConfigurationError


@contextmanager
def refused(match: str, remedy: str = "") -> Iterator[None]:
    """What is done within is refused in these words, and the remedy has those."""
    with pytest.raises(ConfigurationError, match=match) as caught:
        yield
    assert caught.value.remedy
    assert remedy in caught.value.remedy


def doctor(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``ergon doctor`` says of settings, by the name of each check."""
    settings = folder / "ergon.toml"
    settings.write_text(text)
    capsys.readouterr()
    invoke(["doctor", "--config", str(settings), "--json"])
    return {each["check"]: each for each in json.loads(capsys.readouterr().out)}


def jobs_by_commands(
    place: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job is enqueued and listed there, and the doctor finds the server in order."""
    assert invoke(["enqueue", "mail", "--store", place]) == 0
    capsys.readouterr()
    assert invoke(["jobs", "list", "--store", place, "--json"]) == 0
    assert "mail" in capsys.readouterr().out
    text = f'[store]\nurl = "{place}"\n[executors.python]\ncommand = ["true"]\n'
    assert doctor(text, folder, capsys)[f"{kind} (jobs) version"]["status"] == "ok"
