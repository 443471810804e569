from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

from tests.docs.pages import ROOT, all_pages, blocks


@pytest.mark.parametrize(
    "page", [name for name in all_pages() if name.startswith(("docs/how-to/", "docs/reference/"))]
)
def test_the_readme_leads_to_every_page(page: str) -> None:
    """A how-to or a reference page that the README does not link is not found."""
    assert f"]({page})" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_policies_of_the_reference_satisfy_a_type_checker(tmp_path: Path) -> None:
    """Whoever copies them into a program that is checked strictly gets no complaint."""
    page = (ROOT / "docs/reference/policies.md").read_text(encoding="utf-8")
    code = tmp_path / "page.py"
    code.write_text("\n".join(each.text for each in blocks(page) if each.language == "python"))
    settings = ["--strict", "--config-file", "", "--cache-dir", str(tmp_path / "cache")]
    told, broken, status = api.run([*settings, "--follow-imports", "silent", str(code)])
    assert (status, broken) == (0, ""), told
