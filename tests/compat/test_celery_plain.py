"""Task modules that import their decorators from here, without Celery."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "plain_shop.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a shop that has run; what was told is in ``told``."""
    folder = tmp_path_factory.mktemp("shop")
    shutil.copy(PROGRAM, folder)
    done = subprocess.run(
        [sys.executable, "-c", "import plain_shop; plain_shop.main()"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "told").write_text(done.stdout.splitlines()[-1])
    return folder


def told(shop: Path) -> dict[str, Any]:
    """How each call ended."""
    found: dict[str, Any] = json.loads((shop / "told").read_text())
    return found


def test_results(shop: Path) -> None:
    """Values come back as Celery's JSON serializer brings them."""
    ended = told(shop)
    assert ended["add"] == ["SUCCESS", 5]
    assert ended["by name"] == ["SUCCESS", 2]
    assert ended["later"] == ["SUCCESS", ["2026-01-02 00:00:00+00:00", "b'\\xff!'"]]
    assert ended["about"] == [
        "SUCCESS",
        {
            "name": ["plain_shop.about", "plain_shop.about"],
            "id": "about-1",
            "arguments": [[1], {"x": 2}],
            "direct": [False, False],
            "queue": "chosen",
        },
    ]


def test_retries(shop: Path) -> None:
    """A task decides how often it is tried again; its last error is the job's."""
    ended = told(shop)
    assert ended["persistent"] == ["SUCCESS", 4]
    assert ended["hopeless"] == ["FAILURE", "ConnectionError"]
    assert ended["exhausted"] == ["FAILURE", "MaxRetriesExceededError"]
    assert ended["autoretry"] == ["FAILURE", "KeyError"]
    assert ended["excepted"] == ["FAILURE", "IndexError"]
    assert ended["changing"] == ["FAILURE", "UnsupportedOptionError"]


def test_ends_that_are_no_results(shop: Path) -> None:
    """``Ignore`` completes, ``Reject`` dead-letters or delivers again."""
    ended = told(shop)
    assert ended["ignoring"] == ["SUCCESS", None]
    assert ended["rejecting"] == ["FAILURE", "NonRetryableException"]
    assert ended["handing back"] == ["SUCCESS", "second time"]


def test_time_limits(shop: Path) -> None:
    """The soft one is raised inside the task, the hard one ends it."""
    ended = told(shop)
    assert ended["slow"] == ["SUCCESS", "cleaned up"]
    assert ended["stuck"] == ["FAILURE", "timeout"]


def test_a_process_that_dies(shop: Path) -> None:
    """A task runs again after that only with ``acks_late``."""
    ended = told(shop)
    assert ended["fragile"] == ["FAILURE", "executor_died"]
    assert ended["sturdy"] == ["SUCCESS", True]
    lines = [json.loads(line)[0] for line in (shop / "journal").read_text().splitlines()]
    runs = Counter(lines)
    assert (runs["fragile"], runs["sturdy"], runs["automatic"]) == (1, 2, 3 + 1)


def test_hooks(shop: Path) -> None:
    """A base class hears each attempt."""
    lines = [json.loads(line) for line in (shop / "journal").read_text().splitlines()]
    assert [each[1:] for each in lines if each[0] == "hook"] == [
        ["before_start", [], {}],
        ["on_retry", "RuntimeError('ill')"],
        ["before_start", [], {}],
        ["on_success", "well"],
        ["after_return", "SUCCESS"],
    ]


def test_the_bridge_needs_celery(shop: Path) -> None:
    """Whoever calls it without the package is told how to install it."""
    kind, text = told(shop)["missing"]
    assert kind == "MissingExtraError"
    assert 'pip install "ergon-framework[celery]"' in text


def test_a_task_that_calls_another(shop: Path) -> None:
    """It may call it, and not wait for it."""
    ended = told(shop)
    assert ended["inner"] == ["SUCCESS", 42]
    assert "holds a process" in ended["outer"][1][1]
