"""The pages about production say what is there: settings, metrics, commands and errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ergon_framework.app.settings import load_settings
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.req("SCALE:docs")

FOLDER = ROOT / "docs" / "howto" / "production"
TOPICS = (
    *("sizing", "connections", "durability", "systemd", "containers", "upgrade", "backup"),
    "monitoring",
)
SOURCES = "\n".join(
    file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")
).replace('"\n', "")


def text_of(name: str) -> str:
    """A page."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_a_page(topic: str) -> None:
    """The first page leads to it."""
    assert len(text_of(topic).split()) > 100
    assert f"]({topic}.md)" in text_of("index")


@pytest.mark.parametrize(
    "page", ["docs/howto/production/index.md", "docs/howto/grow-to-postgresql.md"]
)
def test_the_settings_on_the_pages_are_settings(page: str, tmp_path: Path) -> None:
    """Each block is a file that is read without complaint."""
    environ = {
        "WORK_STORE": "postgresql://ergon@db.example.org/work",
        "JOB_STORE": "redis://cache.example.org/0",
    }
    found = [
        each
        for each in blocks((ROOT / page).read_text(encoding="utf-8"))
        if each.language == "toml"
    ]
    assert found
    for each in found:
        file = tmp_path / "ergon.toml"
        file.write_text(each.text)
        assert load_settings(file, environ).file == file


ALERTED = ("production/monitoring", "serve-and-monitor")


@pytest.mark.parametrize("page", ALERTED)
def test_every_metric_that_is_alerted_on_exists(page: str) -> None:
    """As the reference names them."""
    reference = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bergon_(?!framework)\w+", text_of(f"../{page}")))
    assert {"ergon_part_up", "ergon_workers_alive", "ergon_dead_letters"} <= named
    assert all(f"`{name.removesuffix('_bucket')}`" in reference for name in named)


@pytest.mark.parametrize("page", ALERTED)
def test_no_gauge_is_taken_for_a_counter(page: str) -> None:
    """One that goes down would be taken for one that began anew, and be added once more."""
    reference = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(ergon_\w+)` \|.*?\| (\w+)", reference)
    kinds = {name: kind for name, kind in rows if kind in ("counter", "histogram")}
    assert kinds["ergon_job_duration_seconds"] == "histogram"
    found = re.findall(r"\b(?:i?rate|increase)\((\w+)", text_of(f"../{page}"))
    for each in set(found) - {"ergon_scrape_errors_total"}:
        assert kinds[each.removesuffix("_bucket")] == (
            "histogram" if "_bucket" in each else "counter"
        )


def test_both_pages_about_room_have_the_same_figures() -> None:
    """What a waiting job takes, in kilobytes here and in bytes there."""
    kilobytes = [
        float(re.findall(rf"\| {engine}.*? \| ([\d.]+) KB \|", text_of("sizing"))[0])
        for engine in ("SQLite", "PostgreSQL", "Redis")
    ]
    discussed = (ROOT / "docs" / "discussions" / "scale.md").read_text(encoding="utf-8")
    [line] = [each for each in discussed.splitlines() if each.startswith("| waiting, ")]
    assert [int(each) for each in re.findall(r"\d+", line)] == [
        round(1000 * each) for each in kilobytes
    ]


def test_the_errors_on_the_pages_are_ours() -> None:
    """Whoever searches for what a program said finds it here."""
    page = (ROOT / "docs" / "howto" / "grow-to-postgresql.md").read_text(encoding="utf-8")
    for quoted in (
        "a store on PostgreSQL needs psycopg",
        "the URL of the PostgreSQL store cannot be read",
        "does not let this user in",
        "the URL of a PostgreSQL store has no option",
        "the server has no database of that name",
        "cannot be used for now",
    ):
        assert quoted in page
        assert quoted in SOURCES
    for quoted in ("this program works with version", "for programs that work with"):
        assert quoted.partition("works")[0] in text_of("upgrade")


def test_a_stopping_service_has_more_time_than_its_grace() -> None:
    """Otherwise work is cut off that could have ended."""
    from ergon_framework.jobs.settings import JobsSettings

    grace = JobsSettings().grace
    [seconds] = re.findall(r"TimeoutStopSec=(\d+)", text_of("systemd"))
    assert int(seconds) > grace + JobsSettings().lease
    [seconds] = re.findall(r"terminationGracePeriodSeconds: (\d+)", text_of("containers"))
    assert int(seconds) > grace


def test_every_file_that_a_unit_names_is_installed() -> None:
    """Without its tokens the server ends with 2, and a unit is not started again after that."""
    page = text_of("systemd")
    named = set(re.findall(r"--[\w-]+ (/etc/ergon/\S+)", page))
    assert "/etc/ergon/tokens" in named
    for file in named:
        assert re.search(rf"install .*-m 0640 -g ergon \S+ {re.escape(file)}\b", page)
