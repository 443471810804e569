"""What users read imports from the top of a package, not from where the source happens to lie."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, all_pages

# A module more than two levels below the package, whether imported or named with one of its names.
_DEEP = re.compile(
    r"\b(?:from|import) ergon_framework(?:\.\w+){3,}|\bergon_framework(?:\.\w+){4,}"
    r"|\bergon_framework(?:\.\w+){3,}:\w"
)
_FOLDERS = {"examples": "*.py", "src/ergon_framework/app/scaffold": "*.tmpl"}
_SHOWN = all_pages() + [
    path.relative_to(ROOT).as_posix()
    for folder, pattern in _FOLDERS.items()
    for path in sorted((ROOT / folder).rglob(pattern))
]


def deep_names(text: str) -> list[str]:
    """What in a text needs a fourth dot."""
    return [found[0] for found in _DEEP.finditer(text)]


@pytest.mark.parametrize(
    "text",
    [
        "from ergon_framework.task.mixins.policies import RetryPolicy",
        "    import ergon_framework.jobs.stores.sqlite",
        "call `ergon_framework.testing.suites.executor.exercise_executor(command)`",
        'app = "ergon_framework.integrations.django.executor:app"',
    ],
)
def test_a_planted_deep_name_is_found(text: str) -> None:
    """In code, in prose and in settings."""
    assert deep_names(text)


@pytest.mark.parametrize(
    "text",
    [
        "from ergon_framework.task import RetryPolicy",
        "from ergon_framework.integrations.django import app",
        "`ergon_framework.web.application.create_app(store)`",
    ],
)
def test_two_levels_are_fine(text: str) -> None:
    """A package, and a module of it."""
    assert deep_names(text) == []


def test_no_page_example_or_new_project_needs_a_fourth_dot() -> None:
    """A name that users need has a home that they can remember."""
    found = {name: deep_names((ROOT / name).read_text(encoding="utf-8")) for name in _SHOWN}
    assert {name: deep for name, deep in found.items() if deep} == {}
