"""``benchmarks/plots.py`` draws kept results, and touches nothing when they cannot be read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.docs.pages import ROOT

SCRIPT = ROOT / "benchmarks" / "plots.py"
READABLE = 4.5
"""The contrast that text needs beside its background, as WCAG 2 has it."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The kept results and the page, where a test may change them; no pictures yet."""
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "results")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "benchmarks.md", tmp_path / "docs")
    return tmp_path


def draw(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The script, on the files of a test."""
    folders = ("--results", str(place / "results"), "--docs", str(place / "docs"))
    command = [sys.executable, str(SCRIPT), *folders, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)  # noqa: S603


def contents(place: Path) -> dict[str, bytes]:
    """Every file there is."""
    return {str(each.relative_to(place)): each.read_bytes()
            for each in place.rglob("*") if each.is_file()}  # fmt: skip


def rewrite(place: Path, part: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of one part's results."""
    path = place / "results" / f"{part}.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def test_what_is_kept_is_what_is_shown() -> None:
    """Pictures and table in the repository are those of the results in it."""
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)  # noqa: S603
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_picture_is_drawn_for_light_and_dark_pages(copy: Path) -> None:
    """Each picture on the page exists in both themes, is XML, and can be read."""
    assert draw(copy).returncode == 0
    page = (copy / "docs" / "benchmarks.md").read_text()
    shown = re.findall(r'"(images/benchmarks/[\w-]+-(?:light|dark)\.svg)"', page)
    drawn = {str(each.relative_to(copy / "docs")) for each in (copy / "docs").rglob("*.svg")}
    assert drawn == set(shown)
    for path in shown:
        root = ET.parse(copy / "docs" / path).getroot()  # noqa: S314 - drawn just now
        back = next(each.attrib["fill"] for each in root if each.tag.endswith("rect"))
        texts = [each.attrib["fill"] for each in root.iter() if each.tag.endswith("text")]
        assert texts
        assert min(contrast(each, back) for each in texts) >= READABLE, path


def contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Of a colour like ``#1f2328``."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_table_tells_each_race_with_its_verdict(copy: Path) -> None:
    """A ratio that is good enough is met; one that is not is said not to be."""

    def quicker(lines: list[str]) -> list[str]:
        records = [json.loads(line) for line in lines]
        for each in records:
            if each["case"] == "retries" and each["who"] == "tenacity + pybreaker + limits":
                each["ratio"], each["ratio_spread"] = ratio, [ratio - 0.1, ratio + 0.1]
        return [json.dumps(each) for each in records]

    for ratio, verdict in ((0.45, "yes"), (1.75, "no")):
        rewrite(copy, "providers", quicker)
        assert draw(copy).returncode == 0
        page = (copy / "docs" / "benchmarks.md").read_text()
        (line,) = [each for each in page.splitlines() if each.startswith("| … two retries |")]
        assert f"**{ratio:g} \N{MULTIPLICATION SIGN}**" in line
        assert line.endswith(f"| {verdict} |")


def test_a_missing_part_is_named_and_nothing_changes(copy: Path) -> None:
    """The error names the file; pictures and page stay as they are."""
    assert draw(copy).returncode == 0
    (copy / "results" / "boundary.jsonl").unlink()
    before = contents(copy)
    done = draw(copy)
    assert done.returncode == 2
    assert "boundary.jsonl" in done.stderr
    assert contents(copy) == before


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"case": "success", "who": "Ergon", "cpu', "line 2: not JSON"),
        ('["success"]', "line 2: not an object with a case"),
        ('{"case": "success", "who": "Ergon", "cpu_us": "12"}', "has no cpu_us"),
    ],
)
def test_a_damaged_line_is_named_and_nothing_changes(copy: Path, line: str, told: str) -> None:
    """A result that was cut off or edited by hand is refused, before any file is written."""
    assert draw(copy).returncode == 0
    rewrite(copy, "providers", lambda lines: [lines[0], line, *lines[2:]])
    before = contents(copy)
    done = draw(copy)
    assert done.returncode == 2
    assert told in done.stderr
    assert contents(copy) == before


def test_a_result_that_is_not_there_is_named_with_what_measures_it(copy: Path) -> None:
    """A contestant that a row needs and no line has."""
    rewrite(
        copy, "engine", lambda lines: [each for each in lines if '"consume-sync-c8"' not in each]
    )
    done = draw(copy)
    assert done.returncode == 2
    assert "'consume-sync-c8'" in done.stderr
    assert "--measure engine" in done.stderr
    assert not list(copy.rglob("*.svg"))


def test_a_page_without_a_place_for_the_table_stays_as_it_is(copy: Path) -> None:
    """Nothing is guessed: the marks are named."""
    page = copy / "docs" / "benchmarks.md"
    page.write_text("# Benchmarks\n")
    done = draw(copy)
    assert done.returncode == 2
    assert "no place for the table" in done.stderr
    assert page.read_text() == "# Benchmarks\n"


def test_a_stale_picture_is_named(copy: Path) -> None:
    """``--check`` writes nothing, and says what ``make bench-plots`` would change."""
    assert draw(copy).returncode == 0
    picture = copy / "docs" / "images" / "benchmarks" / "put-light.svg"
    picture.write_text("<svg/>")
    before = contents(copy)
    done = draw(copy, "--check")
    assert done.returncode == 1
    assert "docs/images/benchmarks/put-light.svg is stale" in done.stdout
    assert contents(copy) == before


def test_new_results_replace_those_of_the_same_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other cases stay, the machine is the new one, and no path of it is kept."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from plot_parts.results import merged  # type: ignore[import-not-found]

    kept = [{"case": "machine", "cores": 4}, {"case": "put", "us": 3}, {"case": "success", "us": 9}]
    new = [
        {"case": "machine", "cores": 2},
        {"case": "success", "us": 7},
        {"case": "success", "skipped": "no /home/someone/bin/redis-server"},
    ]
    found: list[dict[str, Any]] = merged(kept, new, "2030-01-31")
    assert found == [
        {"case": "machine", "cores": 2, "on": "2030-01-31"},
        {"case": "put", "us": 3},
        {"case": "success", "us": 7, "on": "2030-01-31"},
        {"case": "success", "skipped": "no …", "on": "2030-01-31"},
    ]


@pytest.mark.slow
def test_a_part_is_measured_kept_and_drawn(copy: Path) -> None:
    """Real processes are started, and only the case that was asked for is replaced."""
    before = (copy / "results" / "cold.jsonl").read_text().splitlines()
    words = ("--measure", "cold", "--case", "ergon --help", "--quick", "--rounds", "1")
    done = draw(copy, *words)
    assert done.returncode == 0, done.stderr
    after = (copy / "results" / "cold.jsonl").read_text().splitlines()
    assert [each for each in before if '"JobClient"' in each] == [
        each for each in after if '"JobClient"' in each
    ]
    ours = next(json.loads(each) for each in after if '"ergon --help"' in each)
    assert (ours["who"], ours["rounds"]) == ("Ergon", 1)
    assert ours["cpu_seconds"] > 0
