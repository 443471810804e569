"""Every test that the page of guarantees names is there, and its numbers are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from ergon_framework.core.retention import DAY
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.providers import retention, shared_circuit, write_behind
from ergon_framework.providers.tasks import TaskOptions
from ergon_framework.task.mixins.policies import ConsumerPolicy
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
SUITES = ROOT / "src" / "ergon_framework" / "testing" / "suites"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_CHECK = re.compile(r"`(\w+store)\.(\w+)`")
_EVIDENCE = 3  # the column of a row that names its tests


@cache
def functions(file: Path) -> frozenset[str]:
    """The functions at the top level of a file, found by reading it."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return frozenset(
        each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def missing(text: str) -> list[str]:
    """What a page names and nobody has written."""
    found = []
    for path, name in _TEST.findall(text):
        file = ROOT / path
        if not name.startswith("test_") or not file.is_file() or name not in functions(file):
            found.append(f"{path}::{name}")
    for suite, name in _CHECK.findall(text):
        if not any(name in functions(file) for file in (SUITES / suite).glob("*.py")):
            found.append(f"{suite}.{name}")
    return found


def unshown(text: str) -> list[str]:
    """The rows of a page's tables with a column for tests that name none, but for disclaimers."""
    found, is_inside = [], False
    for line in text.splitlines():
        cells = [each.strip() for each in line.strip("|").split(" |")]
        if line.startswith("| ") and cells[-1] == "shown by":
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not line.startswith(("| ---", "| **not promised**")):
            is_shown = (
                cells[-1] == "as above" or _TEST.search(cells[-1]) or _CHECK.search(cells[-1])
            )
            if len(cells) != _EVIDENCE or not is_shown:
                found.append(cells[0])
    return found


def test_every_named_test_exists() -> None:
    """A test that was renamed or removed takes its promise along."""
    text = PAGE.read_text(encoding="utf-8")
    assert len(_TEST.findall(text)) > 50
    assert missing(text) == []


def test_the_numbers_are_the_defaults() -> None:
    """Whoever changes a default changes the promise with it."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    jobs, loop, task = JobsSettings(), ConsumerPolicy().loop, TaskOptions()
    rule, of_request = jobs.rule(), TaskOptions(computed_keys="request")
    assert (jobs.executor_wait, retention.DEFAULT_RETENTION) == (DAY, 90 * DAY)
    assert (task.keep_key_seconds, of_request.computed_key_memory) == (DAY, 3600.0)
    assert (shared_circuit.STORE_TIMEOUT, shared_circuit.FRESH_FOR, write_behind.SPILL_AFTER) == (
        0.5,
        1.0,
        1.0,
    )
    for phrase in (
        f"attempts ({rule.retry.attempts})",
        f"deliveries (attempts + {rule.max_deliveries - rule.retry.attempts})",
        f"time per attempt ({jobs.timeout:.0f} seconds",
        f"at most {jobs.lease:.0f} seconds (`lease`) later",
        "for a day (`executor_wait`)",
        f"{loop.settlement_attempts} calls at most, within {loop.settlement_timeout:.0f} seconds",
        f"is free after {shared_circuit.PROBE_LEASE:.0f} seconds",
        "waits half a second for it",
        "rows older than 90 days",
        f"`lease_grace_seconds` ({task.lease_grace_seconds:.0f})",
        "for a day (a computed key of the request: for an hour)",
    ):
        assert phrase in text, phrase


def test_every_promise_names_a_test() -> None:
    """A row that is added comes with its evidence."""
    assert unshown(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "name",
    ["tests/docs/test_pages.py::test_gone", "tests/docs/test_gone.py::test_x", "jobstore.gone"],
)
def test_a_name_that_is_gone_is_found(name: str) -> None:
    """In a file that is there, in one that is not, and among the checks of a suite."""
    assert missing(f"| a | b | `{name}` |") == [name]


def test_a_row_without_evidence_is_found() -> None:
    """Also one with a cell too few."""
    head = "| question | answer | shown by |\n| --- | --- | --- |\n"
    assert unshown(head + "| a | yes | soon |\n| b | yes |\n") == ["a", "b"]
