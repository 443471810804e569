"""The page of notices is the catalogue, and goes stale when that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.ports.notice import CATALOGUE, NoticeSpec
from tools import notice_docs

pytestmark = pytest.mark.req("ONE:notices")


def test_every_notice_has_a_row() -> None:
    """With its meaning and fields, under the part that tells it."""
    page = notice_docs.render()
    for name, known in CATALOGUE.items():
        section = page.partition(f"## {known.part[0].upper()}{known.part[1:]}\n")[2]
        row = next(line for line in section.splitlines() if line.startswith(f"| `{name}` |"))
        assert known.text in row
        assert all(f"`{field}`" in row for field in known.fields)


def test_the_page_is_written_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 1 and what to do when it is stale."""
    monkeypatch.setattr("sys.argv", ["notice_docs.py", "--check"])
    assert notice_docs.main(tmp_path) == 1
    assert "python tools/notice_docs.py" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["notice_docs.py"])
    assert notice_docs.main(tmp_path) == 0
    monkeypatch.setattr("sys.argv", ["notice_docs.py", "--check"])
    assert notice_docs.main(tmp_path) == 0
    changed = {**CATALOGUE, "new.told": NoticeSpec("Something.", ("a",), part="jobs")}
    assert notice_docs.main(tmp_path, changed) == 1


def test_the_page_of_this_checkout_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes the catalogue runs make docs."""
    monkeypatch.setattr("sys.argv", ["notice_docs.py", "--check"])
    assert notice_docs.main() == 0
