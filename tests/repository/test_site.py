from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.pages import GENERATED, ROOT, all_pages

pytestmark = [pytest.mark.slow, pytest.mark.req("ONE:site"), pytest.mark.timeout(240)]

_FETCHED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
"""Where an element names what a browser fetches to show a page."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the site, built as ``make docs`` does, and what the build said."""
    folder = tmp_path_factory.mktemp("site")
    [line] = re.findall(
        r"^\t(.* -m mkdocs build .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    words = line.split()
    variables = dict(word.split("=", 1) for word in words[: words.index("$(PY)")])
    arguments = words[words.index("$(PY)") + 1 :]
    done = subprocess.run(  # noqa: S603 - our own build
        [sys.executable, *arguments, "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return folder, said


class _Fetches(HTMLParser):
    """Collects what a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.diagrams = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        url = given.get(_FETCHED.get(tag, ""))
        if url and given.get("rel") not in {"canonical", "next", "prev"}:
            self.urls.append(url)
        self.diagrams += "mermaid" in (given.get("class") or "")


def _pages(folder: Path) -> Iterator[tuple[str, _Fetches]]:
    for path in sorted(folder.rglob("*.html")):
        found = _Fetches()
        found.feed(path.read_text(encoding="utf-8"))
        yield path.relative_to(folder).as_posix(), found


def test_the_site_builds_without_warnings(site: tuple[Path, str]) -> None:
    """Every line of the build is information, and it is not told to be silent."""
    said = [line for line in site[1].splitlines() if line.strip()]
    assert said
    assert [line for line in said if not line.startswith("INFO")] == []


def test_every_page_is_on_the_site(site: tuple[Path, str]) -> None:
    """A page of docs/ that was left out would not be found by search either."""
    pages = {name for name in [*all_pages(), *GENERATED] if name.startswith("docs/")}
    assert len(pages) > 40
    for name in pages:
        shown = site[0] / Path(name).relative_to("docs").with_suffix(".html")
        assert shown.is_file(), name


def test_nothing_is_fetched_from_elsewhere(site: tuple[Path, str]) -> None:
    """Scripts, styles, fonts and pictures come with the site; it can be read without a network."""
    for name, page in _pages(site[0]):
        assert [url for url in page.urls if url.startswith(("http:", "https:", "//"))] == [], name
        assert page.diagrams == 0, f"{name} has a diagram, whose script would be fetched"
    for style in site[0].rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style


def test_the_site_can_be_searched(site: tuple[Path, str]) -> None:
    """The index has the words of the pages."""
    index = (site[0] / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "one owner of patience" in index.lower()
