"""The table of features beside the best queues: each row leads to a page whose examples are run."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, has_code

PAGE = ROOT / "docs" / "comparison.md"
HEADING = "## Jobs beside the best queues"
_LINK = re.compile(r"^\[(?P<what>[^]]+)\]\((?P<page>howto/[\w-]+\.md)(?:#[\w-]+)?\)$")


def rows() -> list[list[str]]:
    """The rows of the table, without its head."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition(HEADING)
    section, _, _ = text.partition("\n## ")
    lines = [line.strip("|\n") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].partition("]")[0].strip("["))
def test_each_feature_is_linked_to_a_page_that_is_run(row: list[str]) -> None:
    """With a cell for each queue, and an example on the page that the tests follow."""
    found = _LINK.match(row[0])
    assert found is not None, row[0]
    assert len(row) == 7
    assert all(row)
    assert has_code((PAGE.parent / found["page"]).read_text(encoding="utf-8"))


def test_what_was_built_is_in_the_table() -> None:
    """Nothing that a reader would look for is only in the how-tos."""
    names = " ".join(row[0] for row in rows())
    for page in (
        *("flows", "cancel-jobs", "find-and-handle-many-jobs", "limit-and-prioritise-jobs"),
        *("unique-jobs", "schedule-jobs", "keep-and-forget-jobs", "encrypt-and-compress-payloads"),
        *("keep-large-payloads-elsewhere", "roll-out-a-new-version.md#pin-a-queue"),
        *("grow-to-postgresql.md#behind-a-pooler", "write-handlers.md#progress"),
    ):
        assert page in names, page
