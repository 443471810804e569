from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

from tests.docs.pages import ROOT, all_pages, blocks


@pytest.mark.parametrize(
    "page", [name for name in all_pages() if name.startswith(("docs/howto/", "docs/reference/"))]
)
def test_the_readme_leads_to_every_page(page: str) -> None:
    """A how-to or a reference page that the README does not link is not found."""
    assert f"]({page})" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.req("ONE:readme")
@pytest.mark.parametrize("first", ["task", "job", "fact", "provider call"])
def test_a_first_of_each_part_is_short(first: str) -> None:
    """Each first example has code, under twenty lines of it; the pages' own test runs them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _, _, rest = readme.partition(f"\n## A first {first}\n")
    section = list(blocks(rest.partition("\n## ")[0]))
    code = [each for each in section if each.language == "python" and each.is_run]
    assert len(code) == 1
    assert 5 < len([line for line in code[0].text.splitlines() if line.strip()]) < 20
    assert any(each.is_expected for each in section)


@pytest.mark.req("ONE:readme")
def test_the_readme_is_followed_literally_from_a_clone() -> None:
    """Each command is a target of make, or a program in the environment that make sets up."""
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    page = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    commands = [
        line.split()
        for each in page
        if each.is_commands or each.is_started or not each.language
        for line in each.text.splitlines()
    ]
    assert len(commands) > 5
    for program, *words in commands:
        assert program in {"make", ".venv/bin/python", ".venv/bin/ergon"}, program
        assert program != "make" or f"\n{words[0]}: " in targets


@pytest.mark.slow
def test_the_policies_of_the_reference_satisfy_a_type_checker(tmp_path: Path) -> None:
    """Whoever copies them into a program that is checked strictly gets no complaint."""
    page = (ROOT / "docs/reference/policies.md").read_text(encoding="utf-8")
    code = tmp_path / "page.py"
    code.write_text("\n".join(each.text for each in blocks(page) if each.language == "python"))
    settings = ["--strict", "--config-file", "", "--cache-dir", str(tmp_path / "cache")]
    told, broken, status = api.run([*settings, "--follow-imports", "silent", str(code)])
    assert (status, broken) == (0, ""), told
