from __future__ import annotations

from pathlib import Path

import pytest

from tools import judge_check
from tools.judge_check import mentions, violations


@pytest.mark.parametrize(
    "source",
    [
        "from ergon_framework.core.retry import judge",
        "from ergon_framework.core.retry import judge as decide",
        "from ergon_framework.core import retry\nretry.judge(1)",
        "def judge(): ...",
        "decide = judge",
    ],
)
def test_every_way_to_name_judge_is_seen(source: str) -> None:
    """Importing, renaming, reaching through the module and defining a second one all count."""
    assert list(mentions(source))


@pytest.mark.parametrize(
    "source",
    [
        "from ergon_framework.core.retry import Backoff, RetryRule",
        "# the judge decides",
        '"""Ask judge."""',
        "misjudged = judges = 1",
    ],
)
def test_documents_and_words_are_allowed(source: str) -> None:
    """The rule documents may be imported anywhere, and prose may speak of the judge."""
    assert list(mentions(source)) == []


def test_only_files_outside_the_core_are_reported(tmp_path: Path) -> None:
    """The core may call judge; a sibling whose name merely starts with core may not."""
    package = tmp_path / "ergon_framework"
    for place in ("core/retry.py", "core_two/a.py", "engine/b.py"):
        path = package / place
        path.parent.mkdir(parents=True)
        path.write_text("x = 1\njudge()\n")
    assert violations(package) == [
        "ergon_framework/core_two/a.py:2",
        "ergon_framework/engine/b.py:2",
    ]


def test_a_violation_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1, and the output says where and what to do."""
    (tmp_path / "a.py").write_text("judge()\n")
    monkeypatch.setattr(judge_check, "PACKAGE", tmp_path)
    assert judge_check.main() == 1
    assert "a.py:1: only the core calls judge" in capsys.readouterr().out
