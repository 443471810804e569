"""The console in a folder where nothing was made yet: what a newcomer reads, what stays away."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from ergon_framework.app.settings import load_settings
from ergon_framework.jobs import JobClient
from ergon_framework.web.application import create_app
from ergon_framework.web.console.answers import Answers
from tests.web.console_client import ConsoleClient
from tests.web.content import fill_calls
from tests.web.test_console_pages import page

pytestmark = pytest.mark.req("ONE:serve")

FIRST_JOB = '{% from "parts.html" import first_job %}{{ first_job() }}'
STORE = '[store]\nurl = "sqlite:///work.db"\n'


def served(folder: Path, settings: str = STORE) -> ConsoleClient:
    """A server whose settings are the only file of a folder."""
    file = folder / "ergon.toml"
    file.write_text(settings)
    return ConsoleClient(create_app(settings=load_settings(file, {})))


@pytest.mark.parametrize(
    ("path", "taught"),
    [
        ("", "client.enqueue("),
        ("/jobs", "client.enqueue("),
        ("/flows", "client.chain("),
        ("/queues", "Nobody has to create one"),
        ("/dead-letters", "No job has given up"),
        ("/schedules", "[schedules.nightly]"),
        ("/workers", "ergon worker"),
        ("/tasks", "ergon worker"),
        ("/zones", "[zones.plant-a]"),
        ("/providers", "No provider has been called"),
        ("/traces", "ergon worker"),
        ("/journal", "ergon worker"),
        ("/audit", "Nobody has changed anything here"),
        ("/settings", "work.db"),
    ],
)
def test_every_page_teaches(tmp_path: Path, path: str, taught: str) -> None:
    """None says that a store is away which nobody has used yet, and looking makes no file."""
    text = page(served(tmp_path), f"/console{path}")
    assert taught in text
    assert "does not answer" not in text
    assert [each.name for each in tmp_path.iterdir()] == ["ergon.toml"]


def test_the_overview_tells_it_once(tmp_path: Path) -> None:
    """What makes the store, and that it may be a mistake; the first job ends it."""
    client = served(tmp_path)
    text = page(client, "/console")
    assert text.count("is not there yet") == 1
    assert "the settings name another place" in text
    assert "<code>ergon worker</code>" in text
    found = client.get("/console?format=json").json()
    assert [each["subject"] for each in found["attention"]] == ["The job store"]
    assert {each["problem"] for each in found["parts"]} == {"not_there_yet"}
    with JobClient(f"sqlite:///{tmp_path}/work.db") as jobs:
        jobs.enqueue("work", id="first")
    assert client.get("/console/jobs?format=json").json()["items"][0]["id"] == "first"
    assert client.get("/console/jobs/first").status_code == 200


def test_calls_are_there_with_the_first(tmp_path: Path) -> None:
    """A store of provider calls is looked at again, too."""
    client = served(tmp_path)
    assert client.get("/console/providers?format=json").json()["items"] == []
    fill_calls(f"sqlite:///{tmp_path}/work.db")
    assert client.get("/console/providers?format=json").json()["items"] != []


def test_a_file_that_is_lost_is_away(tmp_path: Path) -> None:
    """It was there since the server started: that is no new folder."""
    client = served(tmp_path)
    with JobClient(f"sqlite:///{tmp_path}/work.db") as jobs:
        jobs.enqueue("work")
    assert client.get("/console/jobs").status_code == 200
    for file in tmp_path.glob("work.db*"):
        file.unlink()
    assert "does not answer" in page(client, "/console/jobs", 503)


def test_a_folder_that_is_missing_is_a_mistake(tmp_path: Path) -> None:
    """No job makes it: the store does not answer."""
    client = served(tmp_path, '[store]\nurl = "sqlite:///data/work.db"\n')
    assert "does not answer" in page(client, "/console/jobs", 503)
    assert "is not there yet" not in page(client, "/console")


def test_programs_are_told_that_it_is_away(tmp_path: Path) -> None:
    """A probe must not call a server ready whose settings name the wrong place."""
    client = served(tmp_path)
    assert client.get("/ready").status_code == 503
    assert client.get("/api/v1/jobs").status_code == 503


def test_what_the_settings_do_not_name(tmp_path: Path) -> None:
    """Pages about it say what would, and the overview which command starts a zone."""
    client = served(tmp_path, '[zones.plant-a]\ndata = "a"\nlisten = "127.0.0.1:1"\n')
    assert "ergon run --all" in page(client, "/console")
    assert "sqlite:///work.db" in page(client, "/console/jobs", 404)
    assert "The settings name no store for calls" in page(client, "/console/providers")
    assert "the page of zones" in page(client, "/console/zones/plant-b", 404)


def test_examples_name_the_store_that_is_served(tmp_path: Path) -> None:
    """They can be run from any folder, and reach the store that the pages tell of."""
    client = served(tmp_path)
    with JobClient(f"sqlite:///{tmp_path}/work.db"):
        pass
    for path in ("", "/jobs", "/flows"):
        text = html.unescape(page(client, f"/console{path}"))
        [code] = re.findall(
            "<pre><code>(from ergon_framework.jobs.*?)</code></pre>", text, re.DOTALL
        )
        assert f'with JobClient("sqlite:///{tmp_path}/work.db") as client:\n    ' in code
        compile(code, path, "exec")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("redis://:secret@127.0.0.1:1/3", '"redis://127.0.0.1:1/3") as client:  # with its'),
        ("redis://127.0.0.1:1/3", '"redis://127.0.0.1:1/3") as client:\n'),
    ],
)
def test_an_example_shows_no_password(tmp_path: Path, url: str, code: str) -> None:
    """Whoever reads the page knows that one is needed."""
    environment = Answers(url).environment
    text = html.unescape(environment.from_string(FIRST_JOB).render())
    assert code in text
    assert "secret" not in text
