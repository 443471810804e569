"""``ergon jobs archive`` and ``ergon why``: jobs are found after retention has deleted them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.cli import invoke
from ergon_framework.core.job import Succeeded
from ergon_framework.jobs.archive_files import JobArchive
from ergon_framework.jobs.archiver import Archiver
from ergon_framework.jobs.client import JobClient
from tests.app.workplace import Workplace
from tests.jobs.manual_worker import Hand

pytestmark = pytest.mark.req("JOBS:operator")
SETTINGS = """
[store]
url = "sqlite:///work.db"

[jobs]
default_executor = "python"

[jobs.archive]
folder = "archive"

[executors.python]
command = ["python"]
"""
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ergon(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The command line, on a store whose first job was archived and whose second was not."""
    workplace.settings(SETTINGS)
    with closing(JobClient("sqlite:///work.db")) as client:
        for job_id in ("old", "kept"):
            client.enqueue("h", [1], id=job_id, result_ttl=0.0 if job_id == "old" else 60.0)
            Hand(client.store).run(Succeeded(), {"page": 1})
        archive = JobArchive(Path("archive"))
        assert Archiver(client.store, archive).turn() == 1

    def ask(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = invoke(arguments)
        found = capsys.readouterr()
        return code, found.out, found.err

    return ask


def test_an_archived_job_is_shown_and_listed(ergon: Ask) -> None:
    """With all that the store had of it; the store has it no more."""
    code, out, _ = ergon("jobs", "archive", "show", "old", "--json")
    found = json.loads(out)
    assert (code, found["status"], found["result"]) == (0, "completed", {"page": 1})
    assert found["archived_at"].endswith("Z")
    assert ergon("jobs", "show", "old")[0] == 1
    code, out, _ = ergon("jobs", "archive", "list", "--json")
    (file,) = json.loads(out)
    assert (code, file["bytes"]) == (0, (Path("archive") / file["file"]).stat().st_size)
    assert "old" in ergon("jobs", "archive", "show", "old", "--folder", "archive")[1]


def test_the_whole_archive_is_printed_as_json_lines(ergon: Ask) -> None:
    """One object for each job."""
    code, out, _ = ergon("jobs", "archive", "cat")
    (line,) = out.splitlines()
    found = json.loads(line)
    assert (code, found["kind"], found["key"]) == (0, "job", "old")
    assert found["record"]["job"]["result"] == '{"page":1}'


def test_a_job_that_is_not_there_is_said_to_be_in_the_store(ergon: Ask) -> None:
    """With the command that shows it."""
    code, _, err = ergon("jobs", "archive", "show", "kept")
    assert code == 1
    assert "ergon jobs show kept" in err


def test_settings_without_an_archive_say_what_to_write(workplace: Workplace, ergon: Ask) -> None:
    """And a store without one is explained as before."""
    workplace.settings(SETTINGS.replace('[jobs.archive]\nfolder = "archive"\n', ""))
    code, _, err = ergon("jobs", "archive", "list")
    assert (code, 'folder = "archive" under [jobs.archive]' in err) == (2, True)
    assert ergon("why", "old")[0] == 1


def test_why_finds_an_archived_job(ergon: Ask) -> None:
    """It says where it is, and what became of it."""
    code, out, _ = ergon("why", "old")
    assert code == 0
    assert "It was archived at" in out
    assert "jobs-" in out
    code, out, _ = ergon("why", "kept", "--json")
    assert (code, json.loads(out)["status"]) == (0, "completed")
