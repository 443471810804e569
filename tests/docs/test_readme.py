from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

from tests.docs.pages import ROOT, all_pages, blocks
from tests.docs.programs import run_python


@pytest.mark.parametrize("page", [name for name in all_pages() if name.startswith("docs/")])
def test_the_index_leads_to_every_page(page: str) -> None:
    """A page that the index does not link is not found."""
    path = page.removeprefix("docs/")
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert path == "index.md" or f"]({path})" in index


@pytest.mark.req("ONE:readme")
def test_the_readme_is_for_the_hurried() -> None:
    """At most 150 lines; its first job is at most ten lines of code, and is run with its output."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    _, _, rest = readme.partition("\n## A first job\n")
    section = list(blocks(rest.partition("\n## ")[0]))
    (code,) = [each for each in section if each.language == "python"]
    assert len([line for line in code.text.splitlines() if line.strip()]) <= 10
    assert any(each.is_commands for each in section)
    assert any(each.is_expected for each in section)


@pytest.mark.slow
@pytest.mark.req("ONE:readme")
def test_the_four_kinds_fit_in_one_short_file(tmp_path: Path) -> None:
    """One file of at most 60 lines; its run charges, refuses, invoices and tells."""
    source = (ROOT / "examples/four_kinds.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 60
    (tmp_path / "four_kinds.py").write_text(source, encoding="utf-8")
    done = run_python("four_kinds.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    unfit = "InvalidPayloadError: the payload is no Order: Object missing required field `amount`"
    first, *refused, last = done.stdout.splitlines()
    assert first == "1 charged, 1 invoiced"
    # Eight threads handle the orders: whichever is refused first stands first.
    assert sorted(refused) == [
        "o-2 refused: Business: nothing to charge",
        f"o-3 refused: {unfit}",
    ]
    assert last == "told to hq: order:WO-1 {'usd': 5.4}"


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
    assert len(commands) >= 5
    for program, *words in commands:
        assert program in {"make", ".venv/bin/python", ".venv/bin/ergon"}, program
        assert program != "make" or f"\n{words[0]}: " in targets


@pytest.mark.campaign  # mypy reads the whole package for it
def test_the_policies_of_the_reference_satisfy_a_type_checker(tmp_path: Path) -> None:
    """Whoever copies them into a program that is checked strictly gets no complaint."""
    page = (ROOT / "docs/reference/policies.md").read_text(encoding="utf-8")
    code = tmp_path / "page.py"
    code.write_text("\n".join(each.text for each in blocks(page) if each.language == "python"))
    settings = ["--strict", "--config-file", "", "--cache-dir", str(tmp_path / "cache")]
    told, broken, status = api.run([*settings, "--follow-imports", "silent", str(code)])
    assert (status, broken) == (0, ""), told
