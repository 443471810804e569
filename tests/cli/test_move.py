"""``ergon move`` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.cli import invoke
from tests.app.move.stock import with_facts, with_jobs
from tests.docs.terminals import Terminal

pytestmark = pytest.mark.req("SCALE:move")


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str]:
    """Where jobs come from, and where they go."""
    return with_jobs(f"sqlite:///{tmp_path}/old.db"), f"sqlite:///{tmp_path}/new.db"


def test_people_get_a_table(places: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Counts and digests of each kind, and lines about the way on the error stream."""
    assert invoke(["move", *places]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].split() == ["part", "what", "copied", "discarded", "count", "digest"]
    [jobs] = [line.split() for line in lines if line.startswith("jobs  jobs ")]
    assert jobs[2:5] == ["9", "0", "9"]
    assert len(jobs[5]) == 16
    assert "copying jobs: 1 of 9" in said.err
    assert "verifying jobs: 1 of 9" in said.err


def test_programs_get_lines_of_json(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """How far it is, and at the end what became of each kind, with whole digests."""
    assert invoke(["move", *places, "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"part": "jobs", "doing": "copying jobs", "done": 1, "total": 9} in told
    [jobs] = [each for each in told if each.get("what") == "jobs"]
    assert (jobs["copied"], jobs["count"], len(jobs["digest"])) == (9, 9, 64)


def test_a_trial_has_no_digests(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """There is nothing yet to work them out from."""
    assert invoke(["move", *places, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == [
        *("part", "what", "copied", "discarded")
    ]
    assert not (tmp_path / "new.db").exists()


def test_a_zone_says_where_its_objects_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Notes stand below the table."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    source = with_facts(f"sqlite:///{tmp_path}/old/facts.db")
    assert invoke(["move", source, f"sqlite:///{tmp_path}/new/facts.db", "--zone", "plant-a"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("objects stay where they are")


def test_a_refusal_is_an_error(places: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and an exit code of its own."""
    with_jobs(places[1], lambda s: s.put("mine"))
    assert invoke(["move", *places]) == 1
    assert "holds jobs already" in capsys.readouterr().err
    assert invoke(["move", "nonsense://x", places[1]]) == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.slow
def test_a_terminal_shows_a_bar(places: tuple[str, str]) -> None:
    """It tells what is being done; the table comes when it is over."""
    with Terminal("-m", "ergon_framework.cli", "move", *places, patience=60.0) as (process, told):
        text = "".join(told)
    assert process.returncode == 0
    assert "verifying" in text
    assert "digest" in text


@pytest.mark.parametrize("target", ["sqlite:///nowhere/new.db", "sqlite:///old.db/new.db"])
def test_a_trial_refuses_a_file_that_cannot_be_made(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the move itself and the import do, in the same words."""
    monkeypatch.chdir(tmp_path)
    assert invoke(["enqueue", "greet", "--store", "sqlite:///old.db"]) == 0
    assert invoke(["export", "sqlite:///old.db", "jobs.jsonl"]) == 0
    for words in (["move", "sqlite:///old.db"], ["import", "jobs.jsonl"]):
        capsys.readouterr()
        told = []
        for option in ([], ["--dry-run"]):
            assert invoke([*words, target, *option]) == 1
            told.append(capsys.readouterr().err.splitlines()[-1])
        assert told[0] == told[1]
        assert "there is no folder" in told[0]


def test_a_trial_makes_no_folder_for_a_zone(tmp_path: Path) -> None:
    """The move itself makes it, and those above it, if the first one can be made."""
    url = f"sqlite:///{tmp_path}/zone/facts.db"
    (tmp_path / "zone").mkdir()
    open_fact_store(url, zone="plant").close()
    assert invoke(["move", str(tmp_path / "zone"), str(tmp_path / "a/b/c"), "--dry-run"]) == 0
    assert not (tmp_path / "a").exists()
    (tmp_path / "a").touch()
    assert invoke(["move", str(tmp_path / "zone"), str(tmp_path / "a/b/c"), "--dry-run"]) == 1
